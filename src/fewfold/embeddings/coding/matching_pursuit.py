"""Batched orthogonal matching pursuit, optionally with non-negative weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["precise", "pursue"]


def precise(table: Tensor) -> torch.dtype:
    """Return the dtype for least squares: that of the table, at least float32."""
    return torch.promote_types(table.dtype, torch.float32)


def pursue(
    rows: Tensor, dictionary: Tensor, width: int, signed: bool, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return sparse codes of the rows: weights and slots, (n, width).

    `allowed` (n, anchors), at least `width` True in each row, restricts the anchors of each row.
    """
    rows, dictionary = rows.to(precise(rows)), dictionary.to(precise(rows))
    length = dictionary.norm(dim=1)
    unit = dictionary / length.clamp(min=torch.finfo(rows.dtype).tiny)[:, None]
    unit = F.pad(unit, (0, 0, 0, 1))  # a zero anchor at the end stands for an empty place
    none = len(dictionary)
    weights = rows.new_zeros(len(rows), width)
    slots = torch.full((len(rows), width), none, device=rows.device)
    if allowed is None:
        allowed = torch.ones(len(rows), none, dtype=torch.bool, device=rows.device)
    forbidden = ~F.pad(allowed, (0, 1), value=False)
    negligible = 16 * torch.finfo(rows.dtype).eps * rows.norm(dim=1)
    fit = _fit(rows, unit, signed).masked_fill_(forbidden, -torch.inf)
    # Up to `width` more steps for dropped anchors; a row is done when full or without residual.
    for _ in range(width if signed else 2 * width):
        value, best = fit.scatter(1, slots, -torch.inf).max(1)
        grows = ((value > negligible) & (slots == none).any(1)).nonzero()[:, 0]
        if not len(grows):
            break
        chosen = slots[grows]
        at = torch.arange(len(grows), device=rows.device), (chosen == none).int().argmax(1)
        chosen[at] = best[grows]
        weights[grows], slots[grows] = _solve(rows[grows], unit, weights[grows], chosen, signed)
        rest = rows[grows] - (weights[grows, None] @ unit[slots[grows]])[:, 0]
        fit[grows] = _fit(rest, unit, signed).masked_fill_(forbidden[grows], -torch.inf)
    # Empty places get unused anchors with weight zero, so that the slots of a row are distinct.
    free = slots == none
    spare = fit.scatter(1, slots, -torch.inf).topk(width, dim=1).indices
    slots = torch.where(free, spare.gather(1, (free.cumsum(1) - 1).clamp(min=0)), slots)
    slots, order = slots.sort(1)
    return (weights.gather(1, order) / length[slots]).where(~free.gather(1, order), 0.0), slots


def _fit(rest: Tensor, unit: Tensor, signed: bool) -> Tensor:
    """Return the correlation of the residual with every anchor."""
    fit = rest @ unit.T
    return fit.abs_() if signed else fit


def _solve(
    rows: Tensor, unit: Tensor, weights: Tensor, slots: Tensor, signed: bool
) -> tuple[Tensor, Tensor]:
    """Return least-squares weights of the chosen anchors; if not signed, some are dropped.

    Lawson and Hanson: move from the current positive weights towards the unconstrained solution,
    stop where the first weight would become negative, drop that anchor and solve again.
    """
    atoms = unit[slots].double()
    free = slots == len(unit) - 1
    # The last term regularises the system for nearly equal anchors.
    gram = atoms @ atoms.mT + torch.diag_embed(free.double() + 1e-12)
    along = (atoms @ rows.double()[:, :, None])[:, :, 0]
    slots, weights = slots.clone(), weights.double()
    todo = torch.arange(len(rows), device=rows.device)
    while len(todo):
        none = slots[todo] == len(unit) - 1
        keep = (~none).double()
        system = gram[todo] * keep[:, :, None] * keep[:, None] + torch.diag_embed(none.double())
        factor = torch.linalg.cholesky_ex(system).L
        best = torch.cholesky_solve((along[todo] * keep)[:, :, None], factor)[:, :, 0]
        if signed:
            return best.to(rows.dtype), slots
        now = weights[todo]
        falls = ~none & (best <= 0)
        share = torch.where(falls, now / (now - best).clamp(min=1e-300), torch.inf)
        stop = share.amin(1, keepdim=True)
        weights[todo] = (now + stop.clamp(max=1) * (best - now)).where(~none, 0.0)
        leaves = falls & (share <= stop)
        weights[todo] = weights[todo].masked_fill(leaves, 0.0)
        slots[todo] = slots[todo].masked_fill(leaves, len(unit) - 1)
        todo = todo[falls.any(1)]
    return weights.to(rows.dtype), slots
