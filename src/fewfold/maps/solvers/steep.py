"""The threshold of entmax for alpha > 2, where probabilities rise with infinite slope.

A probability p is `(p^(alpha - 1))^(1/(alpha - 1))`: at alpha = 5 one of 0.0001 stands for a score
1e-16 above the threshold, which no threshold near 1 can resolve. So the unknown is `base`, the
probability of the smallest entry in the support, and the others follow from their distance to it:

    p_i = (base^c + c (v_i - v_smallest))^(1/c),   c = alpha - 1

This is the c-norm of a pair, hence convex in `base`: Newton from above is monotone.
"""

import torch
from torch import Tensor

from fewfold._torch import compiled, eager, tracks_grad
from fewfold.maps.solvers.operators import number, opaque

__all__ = ["steep", "steep_floor"]

_PARTS, _ROUNDS = 8, 8  # divisions of the sorted row when tracing: enough for 16 million entries
_STEPS = 8  # of Newton when control flow may not depend on data
_TINY = 1e-38


def steep(values: Tensor, c: Tensor | float) -> Tensor:
    """Entmax of rows whose maximum is 0, for `c = alpha - 1 > 1`."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    inside, distance = _above_smallest(values, fixed_c)
    base = _base(distance.detach(), inside, fixed_c)
    if not eager(values) or tracks_grad(values, c):
        base = _attach(base, distance, inside, c)
    return torch.where(inside, _raise(base, distance, c), 0.0)


def steep_floor(values: Tensor, c: Tensor | float) -> Tensor:
    """The score at which a probability becomes 0, also for any row that contains these values."""
    fixed_c = c.detach() if isinstance(c, Tensor) else c
    values = values.detach()
    inside, distance = _above_smallest(values, fixed_c)
    smallest = torch.where(inside, values, 0.0).amin(-1, keepdim=True)
    return smallest - _base(distance, inside, fixed_c) ** fixed_c / fixed_c


def _above_smallest(values: Tensor, c: Tensor | float) -> tuple[Tensor, Tensor]:
    """The support, and how far its entries lie above the smallest one.

    The smallest one itself is at 0 for good: its slope is the largest, and would otherwise be
    added to the gradient and taken away again, with all the digits of the others.
    """
    fixed = values.detach()
    index = _smallest(fixed, c)
    smallest = values.gather(-1, index)
    inside = fixed >= smallest.detach()
    other = inside & (torch.arange(values.shape[-1], device=values.device) != index)
    return inside, torch.where(other, torch.where(other, values, 0.0) - smallest, 0.0)


def _smallest(values: Tensor, c: Tensor | float) -> Tensor:
    """Where the smallest entry of the support is: as threshold, it leaves a weight below 1.

    Found by dividing the sorted row, because the weight jumps too steeply for any slope to help.
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
    """The probability of the smallest entry, on constants."""
    if compiled():
        return _base_operator(distance, inside, number(c, distance))
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


def _base_of_rows(distance: Tensor, inside: Tensor, c: Tensor) -> Tensor:
    return _base(distance, inside, c)


_base_operator = opaque(_base_of_rows)


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
