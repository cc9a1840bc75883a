"""LP-SparseMAP of a batch as a differentiable function of all scores.

Marginals are piecewise linear and the gradient of the objective, so derivatives are symmetric
linear maps. In all tensors the first dimension is the instance; vmap adds more instances.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

from fewfold.structured.factor_graph.links import Links
from fewfold.structured.factor_graph.relaxation import Relaxation, SearchOptions

__all__ = ["solve_relaxation"]


def solve_relaxation(
    scores: Tensor, links: Links, batch: torch.Size, options: SearchOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `Relaxation.solve`, differentiable in the scores and the additional scores."""
    structures, additional = [], []
    for group in links.groups:
        given = [value.to("cpu", torch.float64) for value in group.structure.additional]
        structure = group.structure.with_additional(given)
        structures.append(structure.flat(torch.Size([*batch, *group.factors]), group.event))
        for value in structures[-1].additional:
            additional.append(value.unflatten(0, (len(scores), len(group.bits))))
    problem = Relaxation(links, structures, len(scores), options)
    found: tuple[Tensor, Tensor, Tensor] = _Solve.apply(scores, problem, *additional)
    return found


def _vmap_dim_first(values: Sequence[Tensor], dims: Sequence[Any], size: int) -> list[Tensor]:
    """Move the vmap dimension of all tensors to the front."""
    return [
        value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


def _linear_map_vmap(
    function: Any, problem: Relaxation, size: int, values: list[Tensor], *more: Any
) -> Any:
    """Apply a linear map under vmap, to tensors (size, ..., rows, bits) and so on.

    Either many tangents of one solution, or one tangent of each of many solutions, which are then
    merged into one batch.
    """
    if problem.vmapped is None or problem.vmapped[0] != maybe_current_level():
        found = function.apply(problem, *more, *values)
        return found, (0,) * len(found)
    columns = values[0].dim() - 3
    joined = [v.movedim(0, columns).flatten(columns, columns + 1) for v in values]
    found = function.apply(problem.vmapped[1], *more, *joined)
    return tuple(v.unflatten(columns, (size, problem.rows)) for v in found), (columns,) * len(found)


class _Solve(torch.autograd.Function):
    """Marginals, objectives and diagnostics."""

    @staticmethod
    def forward(scores: Tensor, problem: Relaxation, *additional: Tensor) -> Any:
        return problem.solve(scores, additional)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        scores, ctx.problem, *additional = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, *additional)
        ctx.save_for_forward(scores, *additional)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        grad, price, _ = grads
        more, back = any(ctx.needs_input_grad[2:]), []
        if grad is not None:
            back.append(_HessianProduct.apply(ctx.problem, more, grad))
        if price is not None:
            slopes = _ObjectiveGrad.apply(ctx.problem, more, *ctx.saved_tensors)
            back.append([_scale_rows(price, slope) for slope in slopes])
        first, *others = (sum(parts) for parts in zip(*back, strict=True)) if back else (None,)
        return first, None, *_or_nones(others, len(ctx.saved_tensors) - 1)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        changes = _fill_tangents(ctx.problem, scores, *additional)
        slopes = _ObjectiveGrad.apply(ctx.problem, len(changes) > 1, *ctx.saved_tensors)
        parts = zip(slopes, changes, strict=True)
        priced = [(slope * change).flatten(1).sum(1) for slope, change in parts]
        return _HessianProduct.apply(ctx.problem, False, *changes)[0], sum(priced), None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Relaxation, *additional: Tensor
    ) -> tuple[Any, tuple[int, ...]]:
        values = _vmap_dim_first((scores, *additional), (dims[0], *dims[2:]), info.batch_size)
        problem.vmapped = maybe_current_level(), problem.repeated(info.batch_size)
        first, *others = (value.flatten(0, 1) for value in values)
        found = _Solve.apply(first, problem.vmapped[1], *others)
        return tuple(v.unflatten(0, (info.batch_size, problem.rows)) for v in found), (0, 0, 0)


def _scale_rows(factor: Tensor, values: Tensor) -> Tensor:
    """Multiply values by one factor per row."""
    return factor.view(*factor.shape, *[1] * (values.dim() - factor.dim())) * values


def _or_nones(values: list[Tensor], count: int) -> list[Tensor | None]:
    """The values, or `count` times None if there are none."""
    return [*values] if values else [None] * count


def _fill_tangents(problem: Relaxation, *changes: Tensor | None) -> list[Tensor]:
    """Replace missing tangents by zeros; drop those of additional scores if all are missing."""
    zeros = problem.zeros()
    if all(change is None for change in changes[1:]):
        zeros = zeros[:1]
    return [z if c is None else c for z, c in zip(zeros, changes, strict=False)]


class _ObjectiveGrad(torch.autograd.Function):
    """Gradients of the objectives as functions of all scores."""

    @staticmethod
    def forward(problem: Relaxation, more: bool, *given: Tensor) -> Any:
        return problem.objective_grad(more)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem, ctx.more = inputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        more = any(ctx.needs_input_grad[3:])
        first, *others = _HessianProduct.apply(ctx.problem, more, *grads)
        return None, None, first, *_or_nones(others, len(ctx.needs_input_grad) - 3)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _HessianProduct.apply(
            ctx.problem, ctx.more, *_fill_tangents(ctx.problem, *tangents[2:])
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], problem: Relaxation, more: bool, *given: Any) -> Any:
        leading = _vmap_dim_first(given, dims[2:], info.batch_size)
        return _linear_map_vmap(_ObjectiveGrad, problem, info.batch_size, leading, more)


class _HessianProduct(torch.autograd.Function):
    """Hessian-vector products of the objectives."""

    @staticmethod
    def forward(problem: Relaxation, more: bool, *changes: Tensor) -> Any:
        return problem.hessian_product(changes, more)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem, ctx.more = inputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        more = len(ctx.needs_input_grad) > 3  # additional scores were given
        return None, None, *_HessianProduct.apply(ctx.problem, more, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _HessianProduct.apply(
            ctx.problem, ctx.more, *_fill_tangents(ctx.problem, *tangents[2:])
        )

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], problem: Relaxation, more: bool, *changes: Tensor
    ) -> Any:
        leading = _vmap_dim_first(changes, dims[2:], info.batch_size)
        return _linear_map_vmap(_HessianProduct, problem, info.batch_size, leading, more)
