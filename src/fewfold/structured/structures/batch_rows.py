"""Scores laid out as rows: one row per instance of the flattened batch."""

import math
from typing import TypeVar

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores
from fewfold.structured.structures.solver_interface import SolverInterface

__all__ = [
    "by_row", "clone_if_inference", "divide_by_temperature", "expand_to_batch", "flatten_with_grad",
    "rows_like",
]  # fmt: skip

Kind = TypeVar("Kind", bound=SolverInterface)


def by_row(values: Tensor, rows: int) -> Tensor:
    """Reshape to (rows, -1), also where there are no rows."""
    return values.reshape(rows, values.numel() // max(rows, 1))


def rows_like(values: Tensor, other: Tensor) -> Tensor:
    """View values (rows,) with trailing dimensions of size one, to broadcast against another."""
    return values.view(-1, *[1] * (other.dim() - 1))


def clone_if_inference(value: Tensor) -> Tensor:
    """Return a tensor that autograd can save: a clone if it was made in `torch.inference_mode`."""
    return value.clone() if value.is_inference() else value


def divide_by_temperature(
    scores: Tensor, structure: Kind, temperature: float
) -> tuple[Tensor, Kind]:
    """Divide the scores and the additional scores of a structure by a temperature, in float64."""
    if temperature == 1:
        return scores, structure
    more = [value.double() / temperature for value in structure.additional]
    return scores.double() / temperature, structure.with_additional(more)


def expand_to_batch(value: Tensor | None, batch: torch.Size, own: int, name: str) -> Tensor | None:
    """Broadcast additional scores to (rows, ...), one table per instance.

    Args:
        value: additional scores, or None.
        batch: the shape of the batch.
        own: number of trailing dimensions that form one table.
        name: for the error message.
    """
    if value is None:
        return None
    shape = value.shape[value.dim() - own :]
    try:
        return value.expand(*batch, *shape).reshape(batch.numel(), *shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to the batch {tuple(batch)}, got shape {tuple(value.shape)}"
        ) from None


def flatten_with_grad(
    structure: Kind, scores: Tensor, mask: Tensor | None
) -> tuple[Tensor, Kind, torch.Size]:
    """Return scores as `(rows, *event)`, the flat structure and the batch; gradients flow."""
    check_scores(scores)
    event = structure.event_of(scores)
    if mask is not None:
        check_mask(mask, scores)
        scores = scores.masked_fill(~mask, -math.inf)
    batch = scores.shape[: scores.dim() - structure.event_dim]
    rows = scores.reshape(batch.numel(), *event)
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    given = [value.to(rows) for value in structure.additional]
    return rows, structure.with_additional(given).flat(batch, event), batch
