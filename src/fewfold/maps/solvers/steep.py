"""Entmax for alpha > 2, where the slope of a probability is infinite at the threshold.

The score of an entry lies `p^(alpha - 1) / (alpha - 1)` above the threshold: at alpha = 5, p =
0.0001 is less than 1e-16, which a threshold near 1 cannot resolve. The unknown is therefore `base`,
the probability of the smallest entry in the support, and the others follow from their distance:

    p_i = (base^c + c (v_i - v_smallest))^(1/c),   c = alpha - 1

This is the c-norm of a pair, hence convex in `base`: Newton's method from above is monotone.
"""

import torch
from torch import Tensor

from fewfold._torch import compiled, eager, tracks_grad
from fewfold.maps.solvers.operators import number, opaque

__all__ = ["steep", "steep_floor"]

_PARTS, _ROUNDS = 8, 8  # subdivisions of the sorted row when tracing, for up to 8^8 entries
_STEPS = 8  # Newton steps when control flow may not depend on data
_TINY = 1e-38


def steep(values: Tensor, c: Tensor | float) -> Tensor:
    """Entmax of rows whose maximum is 0, for `c = alpha - 1 > 1`."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    inside, distance = _above_smallest(values, fixed_c)
    base = _base(distance.detach(), inside, fixed_c)
    if not eager(values) or tracks_grad(values, c):
        base = _attach(base, distance, inside, c)
    return torch.where(inside, _probs(base, distance, c), 0.0)


def steep_floor(values: Tensor, c: Tensor | float) -> Tensor:
    """Score below which probabilities are 0, in any row that contains these values."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    values = values.detach()
    inside, distance = _above_smallest(values, fixed_c)
    smallest = torch.where(inside, values, 0.0).amin(-1, keepdim=True)
    return smallest - _base(distance, inside, fixed_c) ** fixed_c / fixed_c


def _above_smallest(values: Tensor, c: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the support, and the distance of its entries to the smallest one.

    The distance of the smallest entry is the constant 0: its slope is the largest and would
    otherwise be added to the gradient and subtracted again, cancelling the others.
    """
    fixed = values.detach()
    index = _smallest(fixed, c)
    smallest = values.gather(-1, index)
    inside = fixed >= smallest.detach()
    other = inside & (torch.arange(values.shape[-1], device=values.device) != index)
    return inside, torch.where(other, torch.where(other, values, 0.0) - smallest, 0.0)


def _smallest(values: Tensor, c: Tensor | float) -> Tensor:
    """Index of the smallest entry of the support.

    It is the last entry, in descending order, whose score as threshold leaves a total weight below
    1. Found by bisection of the sorted row: the weights are too steep for Newton's method.
    """
    if compiled():
        return _smallest_operator(values, number(c, values))
    levels, order = (c * values).clamp(min=-1).sort(-1, descending=True)
    first = torch.zeros_like(order[..., :1])  # in the support: the maximum always is
    last = torch.full_like(first, 1) * values.shape[-1]  # beyond it
    quick = eager(values)
    parts = 2 if quick else _PARTS
    inner = torch.arange(1, parts, device=values.device)
    column = c.unsqueeze(-1) if isinstance(c, Tensor) and c.dim() else c
    for _ in range(values.shape[-1].bit_length() if quick else _ROUNDS):
        pivot = first + torch.div((last - first) * inner, parts, rounding_mode="floor")
        level = levels.gather(-1, pivot)
        above = (levels.unsqueeze(-2) - level.unsqueeze(-1)).clamp(min=0)
        weight = torch.where(above > 0, (above.clamp(min=_TINY).log() / column).exp(), 0.0)
        belongs = (weight.sum(-1) < 1) & (level > -1)
        first = torch.maximum(first, torch.where(belongs, pivot, 0).amax(-1, keepdim=True))
        last = torch.minimum(last, torch.where(belongs, last, pivot).amin(-1, keepdim=True))
    return order.gather(-1, first)


def _smallest_of_rows(values: Tensor, c: Tensor) -> Tensor:
    return _smallest(values, c)


_smallest_operator = opaque(_smallest_of_rows, torch.int64)


def _base(distance: Tensor, inside: Tensor, c: Tensor | float) -> Tensor:
    """Return the detached probability of the smallest entry of the support."""
    if compiled():
        return _base_operator(distance, inside, number(c, distance))
    quick = eager(distance)
    eps = torch.finfo(distance.dtype).eps
    ties = (inside & (distance == 0)).sum(-1, keepdim=True)
    base = 1 / ties.to(distance.dtype)
    for _ in range(100 if quick else _STEPS):
        probs = torch.where(inside, _probs(base, distance, c), 1.0)
        total = torch.where(inside, probs, 0.0).sum(-1, keepdim=True)
        slope = torch.where(inside, (base / probs) ** (c - 1), 0.0).sum(-1, keepdim=True)
        step = (total - 1) / slope
        base = (base - step.clamp(min=0)).clamp(min=torch.finfo(base.dtype).tiny)
        if quick and bool((step <= eps * base).all()):
            break
    return base


def _base_of_rows(distance: Tensor, inside: Tensor, c: Tensor) -> Tensor:
    return _base(distance, inside, c)


_base_operator = opaque(_base_of_rows)


def _attach(base: Tensor, distance: Tensor, inside: Tensor, c: Tensor | float) -> Tensor:
    """Attach the first and second derivatives of the exact solution to the detached `base`.

    The first Newton step gives the first derivatives, the second step the second ones.
    """
    solved = base
    for _ in range(2):
        probs = torch.where(inside, _probs(solved, distance, c), 1.0)
        total = torch.where(inside, probs, 0.0).sum(-1, keepdim=True)
        slope = torch.where(inside, (solved / probs) ** (c - 1), 0.0).sum(-1, keepdim=True)
        step = (total - 1) / slope
        solved = solved - (step - step.detach())
    return solved


def _probs(base: Tensor, distance: Tensor, c: Tensor | float) -> Tensor:
    """`(base^c + c distance)^(1/c)`."""
    y = base**c + c * distance
    lost = y.detach() < torch.finfo(y.dtype).tiny  # base^c underflows when alpha is huge
    safe = torch.where(lost, 1.0, y)
    return torch.where(lost, base.expand_as(y), (safe.log() / c).exp())
