"""The threshold of entmax for alpha > 2, where probabilities rise with infinite slope.

A probability p is `(p^(alpha - 1))^(1/(alpha - 1))`: at alpha = 5 one of 0.0001 stands for a score
1e-16 above the threshold, which no threshold near 1 can resolve. So the unknown is `base`, the
probability of the smallest entry in the support, and the others follow from their distance to it:

    p_i = (base^c + c (v_i - v_smallest))^(1/c),   c = alpha - 1

This is the c-norm of a pair, hence convex in `base`: Newton from above is monotone.
"""

import math

import torch
from torch import Tensor

from fewfold.maps.rows import eager, tracks_grad

__all__ = ["steep", "steep_floor"]

_HALVINGS = 23  # of the sorted row when its length may be symbolic: enough for 4 million entries
_STEPS = 12  # of Newton when control flow may not depend on data


def steep(values: Tensor, c: Tensor | float) -> Tensor:
    """Entmax of rows whose maximum is 0, for `c = alpha - 1 > 1`."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    fixed = values.detach()
    smallest = _smallest(fixed, fixed_c)
    inside = fixed >= smallest
    distance = torch.where(inside, values, smallest) - smallest
    base = _base(distance.detach(), inside, fixed_c)
    if not eager(values) or tracks_grad(values, c):
        base = _attach(base, distance, inside, c)
    return torch.where(inside, _raise(base, distance, c), 0.0)


def steep_floor(values: Tensor, c: Tensor | float) -> Tensor:
    """The score at which a probability becomes 0, also for any row that contains these values."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    smallest = _smallest(values, fixed_c)
    inside = values >= smallest
    distance = torch.where(inside, values, smallest) - smallest
    return smallest - _base(distance, inside, fixed_c) ** fixed_c / fixed_c


def _smallest(values: Tensor, c: Tensor | float) -> Tensor:
    """The smallest entry of the support: those above it weigh less than 1 with it as threshold.

    Found by halving the sorted row, because the weight jumps too steeply for any slope to help.
    """
    ordered = (c * values).clamp(min=-1).sort(-1, descending=True)
    levels, n = ordered.values, values.shape[-1]
    first = torch.zeros_like(ordered.indices[..., :1])  # in the support: the maximum always is
    last = torch.full_like(first, 1) * n  # beyond it
    for _ in range(n.bit_length() if eager(values) else _HALVINGS):
        middle = torch.div(first + last, 2, rounding_mode="floor")
        level = levels.gather(-1, middle)
        above = (levels - level).clamp(min=0)
        positive = above > 0
        weight = torch.where(positive, torch.where(positive, above, 1.0).log() / c, -math.inf)
        belongs = (weight.exp().sum(-1, keepdim=True) < 1) & (level > -1)
        first = torch.where(belongs, middle, first)
        last = torch.where(belongs, last, middle)
    return values.gather(-1, ordered.indices.gather(-1, first))


def _base(distance: Tensor, inside: Tensor, c: Tensor | float) -> Tensor:
    """The probability of the smallest entry, on constants."""
    quick = eager(distance)
    eps = torch.finfo(distance.dtype).eps
    ties = (inside & (distance == 0)).sum(-1, keepdim=True)
    base = 1 / ties.to(distance.dtype)
    for _ in range(100 if quick else _STEPS):
        probs = torch.where(inside, _raise(base, distance, c), 1.0)
        total = torch.where(inside, probs, 0.0).sum(-1, keepdim=True)
        slope = torch.where(inside, (base / probs) ** (c - 1), 0.0).sum(-1, keepdim=True)
        step = (total - 1) / slope
        base = (base - step.clamp(min=0)).clamp(min=torch.finfo(base.dtype).tiny)
        if quick and bool((step <= eps * base).all()):
            break
    return base


def _attach(base: Tensor, distance: Tensor, inside: Tensor, c: Tensor | float) -> Tensor:
    """`base` with the first and second derivatives of the exact solution attached.

    The first step of Newton gives the first derivatives, the second step the second ones.
    """
    solved = base
    for _ in range(2):
        probs = torch.where(inside, _raise(solved, distance, c), 1.0)
        total = torch.where(inside, probs, 0.0).sum(-1, keepdim=True)
        slope = torch.where(inside, (solved / probs) ** (c - 1), 0.0).sum(-1, keepdim=True)
        step = (total - 1) / slope
        solved = solved - (step - step.detach())
    return solved


def _raise(base: Tensor, distance: Tensor, c: Tensor | float) -> Tensor:
    """`(base^c + c distance)^(1/c)`."""
    y = base**c + c * distance
    lost = y.detach() < torch.finfo(y.dtype).tiny  # base^c underflows when alpha is huge
    safe = torch.where(lost, 1.0, y)
    return torch.where(lost, base.expand_as(y), (safe.log() / c).exp())
