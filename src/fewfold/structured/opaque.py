"""SparseMAP as one operator of a compiled graph."""

import ast
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fewfold.structured.solver import Limits, pulled, solve
from fewfold.structured.structure import Structure

__all__ = ["opaque_marginals", "registered"]

_KINDS: dict[str, type[Structure]] = {}


def registered(kind: type[Structure]) -> type[Structure]:
    """Make a kind of structure known to compiled graphs, by its name."""
    _KINDS[kind.__name__] = kind
    return kind


def opaque_marginals(scores: Tensor, structure: Structure, limits: Limits) -> Tensor:
    """`sparsemap`, as an operator that a compiler does not look into."""
    told, tensors = _described(structure)
    found: Tensor = _marginals(scores, tensors, told, limits.turns, limits.tolerance)
    return found


def _described(structure: Structure) -> tuple[str, list[Tensor]]:
    """What a structure is, as a text that a compiler can trace, and its tensors."""
    told, tensors = [type(structure).__name__], []
    for field in fields(structure):  # type: ignore[arg-type]
        value = getattr(structure, field.name)
        if isinstance(value, Tensor):
            told.append(field.name)
            tensors.append(value)
        else:
            told.append(f"{field.name}={value!r}")
    return ";".join(told), tensors


def _made(told: str, tensors: list[Tensor]) -> Structure:
    kind, *parts = told.split(";")
    values: dict[str, Any] = {}
    left = iter(tensors)
    for part in parts:
        name, equals, value = part.partition("=")
        values[name] = ast.literal_eval(value) if equals else next(left)
    return _KINDS[kind](**values)


@torch.library.custom_op("fewfold::sparsemap", mutates_args=())
def _marginals(
    scores: Tensor, tensors: list[Tensor], told: str, turns: int, tolerance: float
) -> Tensor:
    structure = _made(told, tensors)
    rows, made, event = structure.prepared(scores, None)
    return solve(rows, made, event, Limits(turns, tolerance)).marginals.view_as(scores).to(scores)


@_marginals.register_fake
def _(scores: Tensor, tensors: list[Tensor], told: str, turns: int, tolerance: float) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@torch.library.custom_op("fewfold::sparsemap_pull", mutates_args=())
def _pull(
    scores: Tensor, tensors: list[Tensor], grad: Tensor, told: str, turns: int, tolerance: float
) -> list[Tensor]:
    """The gradients of the scores and of each tensor; solved once more, as nothing else is kept."""
    structure = _made(told, tensors)
    rows, made, event = structure.prepared(scores, None)
    active = solve(rows, made, event, Limits(turns, tolerance), widen=True)
    flat = grad.detach().to("cpu", torch.float64).reshape(len(rows), -1)
    back, by = pulled(flat, active)
    return [
        back.view_as(scores).to(scores),
        *_extra_pull(structure, tensors, active, by, scores, event),
    ]


def _extra_pull(
    structure: Structure, tensors: list[Tensor], active: Any, by: Tensor, scores: Tensor,
    event: torch.Size,
) -> list[Tensor]:  # fmt: skip
    given = structure.additional
    found = [torch.zeros_like(tensor) for tensor in tensors]
    if not given:
        return found
    batch = scores.shape[: scores.dim() - structure.event_dim]

    def extra(*values: Tensor) -> Tensor:
        wide = [value.to("cpu", torch.float64) for value in values]
        flat = structure.with_additional(wide).flat(batch, event)
        return flat.extra(active.codes, active.row, event)

    pull: Callable[[Tensor], tuple[Tensor, ...]]
    pull = torch.func.vjp(extra, *[value.detach() for value in given])[1]
    for value, own in zip(given, pull(by), strict=True):
        place = next(i for i, tensor in enumerate(tensors) if tensor is value)
        found[place] = own.contiguous().clone()
    return found


@_pull.register_fake
def _(
    scores: Tensor, tensors: list[Tensor], grad: Tensor, told: str, turns: int, tolerance: float
) -> list[Tensor]:
    return [torch.empty_like(one) for one in (scores, *tensors)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, tensors, *ctx.rest = inputs
    ctx.save_for_backward(scores, *tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scores, *tensors = ctx.saved_tensors
    first, *others = _pull(scores, tensors, grad.contiguous(), *ctx.rest)
    return first, others, None, None, None


_marginals.register_autograd(_backward, setup_context=_keep)
