"""SparseMAP as one custom operator of compiled graphs."""

import ast
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fewfold.structured.sparsemap.marginals import Problem
from fewfold.structured.sparsemap.solver import Limits
from fewfold.structured.structures.structure import Structure

__all__ = ["is_registered", "opaque_marginals", "registered"]

_KINDS: dict[str, type[Structure]] = {}


def registered(kind: type[Structure]) -> type[Structure]:
    """Class decorator: register a structure by name, for use in compiled graphs."""
    _KINDS[kind.__name__] = kind
    return kind


def is_registered(structure: Structure) -> bool:
    """Whether the class of this structure is registered."""
    return type(structure).__name__ in _KINDS


def opaque_marginals(scores: Tensor, structure: Structure, limits: Limits) -> Tensor:
    """Compute `sparsemap` as an operator that is opaque to the compiler."""
    description, tensors = _describe(structure)
    found: Tensor = _marginals(scores, tensors, description, limits.turns, limits.tolerance)
    return found


def _describe(structure: Structure) -> tuple[str, list[Tensor]]:
    """Describe a structure as a string, which the compiler can trace, and its tensors."""
    description, tensors = [type(structure).__name__], []
    for field in fields(structure):  # type: ignore[arg-type]
        value = getattr(structure, field.name)
        if isinstance(value, Tensor):
            description.append(field.name)
            tensors.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            description.append(f"{field.name}={int(value)}")  # a constant, not a symbolic int
        else:
            description.append(f"{field.name}={value!r}")
    return ";".join(description), tensors


def _rebuild(description: str, tensors: list[Tensor]) -> Structure:
    """Inverse of `_describe`."""
    kind, *parts = description.split(";")
    values: dict[str, Any] = {}
    left = iter(tensors)
    for part in parts:
        name, equals, value = part.partition("=")
        values[name] = ast.literal_eval(value) if equals else next(left)
    return _KINDS[kind](**values)


# The schemas are written out, since torch 2.6 cannot derive one from list[Tensor].
@torch.library.custom_op(
    "fewfold::sparsemap",
    mutates_args=(),
    schema="(Tensor scores, Tensor[] tensors, str description, SymInt turns, float tolerance) "
    "-> Tensor",
)
def _marginals(
    scores: Tensor, tensors: list[Tensor], description: str, turns: int, tolerance: float
) -> Tensor:
    structure = _rebuild(description, tensors)
    problem = Problem(scores.shape, structure, Limits(turns, tolerance))
    return problem.solve(scores, structure.additional).contiguous()


@_marginals.register_fake
def _(
    scores: Tensor, tensors: list[Tensor], description: str, turns: int, tolerance: float
) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@_marginals.register_vmap
def _(
    info: Any, dims: tuple[Any, ...], scores: Tensor, tensors: list[Tensor], description: str,
    turns: int, tolerance: float,
) -> tuple[Tensor, int]:  # fmt: skip
    if any(dim is not None for dim in dims[1]):
        raise NotImplementedError(
            "vmap over additional scores is not implemented in compiled graphs"
        )
    return _marginals(scores.movedim(dims[0], 0), tensors, description, turns, tolerance), 0


@torch.library.custom_op(
    "fewfold::sparsemap_pull",
    mutates_args=(),
    schema="(Tensor scores, Tensor[] tensors, Tensor grad, str description, SymInt turns, "
    "float tolerance) -> Tensor[]",
)
def _pull(
    scores: Tensor,
    tensors: list[Tensor],
    grad: Tensor,
    description: str,
    turns: int,
    tolerance: float,
) -> list[Tensor]:
    """Gradients of the scores and of each tensor; solves again, as operators save tensors only."""
    structure = _rebuild(description, tensors)
    problem = Problem(scores.shape, structure, Limits(turns, tolerance))
    problem.solve(scores, structure.additional)
    back, *more = problem.pull(grad.detach(), True)
    names = [part for part in description.split(";")[1:] if "=" not in part]
    found = [torch.zeros_like(tensor) for tensor in tensors]
    wanted = [name for name in structure.additional_names if name in names]
    for name, own in zip(wanted, more, strict=True):
        found[names.index(name)] = own.to(found[names.index(name)]).contiguous().clone()
    return [back.contiguous().clone(), *found]


@_pull.register_fake
def _(
    scores: Tensor,
    tensors: list[Tensor],
    grad: Tensor,
    description: str,
    turns: int,
    tolerance: float,
) -> list[Tensor]:
    return [torch.empty_like(one) for one in (scores, *tensors)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, tensors, *ctx.rest = inputs
    ctx.save_for_backward(scores, *tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scores, *tensors = ctx.saved_tensors
    first, *others = _pull(scores, tensors, grad.contiguous(), *ctx.rest)
    return first, others, None, None, None


_marginals.register_autograd(_backward, setup_context=_setup_context)
