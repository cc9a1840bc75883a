"""LP-SparseMAP of a batch as one differentiable function of all scores.

It is piecewise linear, so that derivatives are linear maps, each the transpose of the other. All
tensors have instances first, so that those of a vmap are more of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

from fewfold.structured.links import Links
from fewfold.structured.relaxation import Relaxation, Search

__all__ = ["relaxed"]


def relaxed(
    scores: Tensor, links: Links, batch: torch.Size, search: Search
) -> tuple[Tensor, Tensor, Tensor]:
    """What `Relaxation.solve` returns; LP-SparseMAP is differentiable by all scores."""
    structures, additional = [], []
    for group in links.groups:
        given = [value.to("cpu", torch.float64) for value in group.structure.additional]
        made = group.structure.with_additional(given)
        structures.append(made.flat(torch.Size([*batch, *group.factors]), group.event))
        for value in structures[-1].additional:
            additional.append(value.unflatten(0, (len(scores), len(group.bits))))
    problem = Relaxation(links, structures, len(scores), search)
    found: tuple[Tensor, Tensor, Tensor] = _Relaxed.apply(scores, problem, *additional)
    return found


def _leading(values: Sequence[Tensor], dims: Sequence[Any], size: int) -> list[Tensor]:
    """The dimension of a vmap first, everywhere."""
    return [
        value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


def _through(
    function: Any, problem: Relaxation, size: int, values: list[Tensor], *more: Any
) -> Any:
    """A linear map under vmap, of (size, ..., rows, bits) and so on.

    Either many changes of one answer, or one of each of many answers, which are then one batch.
    """
    if problem.under is None or problem.under[0] != maybe_current_level():
        found = function.apply(problem, *more, *values)
        return found, (0,) * len(found)
    columns = values[0].dim() - 3
    joined = [v.movedim(0, columns).flatten(columns, columns + 1) for v in values]
    found = function.apply(problem.under[1], *more, *joined)
    return tuple(v.unflatten(columns, (size, problem.rows)) for v in found), (columns,) * len(found)


class _Relaxed(torch.autograd.Function):
    """Marginals, objectives, and what else is told."""

    @staticmethod
    def forward(scores: Tensor, problem: Relaxation, *additional: Tensor) -> Any:
        return problem.solve(scores, additional)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem = inputs[1]
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad, price, _ = grads
        more = any(ctx.needs_input_grad[2:])
        back, *others = _Pulled.apply(ctx.problem, more, grad, price)
        (marginals,) = ctx.saved_tensors  # the slope of the objective, which has a slope of its own
        back = back + price.unsqueeze(-1) * (marginals - marginals.detach())
        return back, None, *others

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        return *_pushed(ctx.problem, scores, *additional), None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Relaxation, *additional: Tensor
    ) -> tuple[Any, tuple[int, ...]]:
        values = _leading((scores, *additional), (dims[0], *dims[2:]), info.batch_size)
        problem.under = maybe_current_level(), problem.wider(info.batch_size)
        first, *others = (value.flatten(0, 1) for value in values)
        found = _Relaxed.apply(first, problem.under[1], *others)
        return tuple(v.unflatten(0, (info.batch_size, problem.rows)) for v in found), (0, 0, 0)


def _pushed(problem: Relaxation, *changes: Tensor | None) -> Any:
    filled = [
        zeros if change is None else change
        for zeros, change in zip(problem.zeros(), changes, strict=True)
    ]
    return _Pushed.apply(problem, *filled)


class _Pulled(torch.autograd.Function):
    """Gradients of all scores, linear in those of marginals and objectives."""

    @staticmethod
    def forward(problem: Relaxation, more: bool, grad: Tensor, price: Tensor) -> Any:
        return problem.pull(grad, price, more)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem, ctx.more = inputs[:2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, *_pushed(ctx.problem, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Pulled.apply(ctx.problem, ctx.more, *tangents[2:])

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], problem: Relaxation, more: bool, *values: Tensor
    ) -> Any:
        leading = _leading(values, dims[2:], info.batch_size)
        return _through(_Pulled, problem, info.batch_size, leading, more)


class _Pushed(torch.autograd.Function):
    """How marginals and objectives move with all scores."""

    @staticmethod
    def forward(problem: Relaxation, *changes: Tensor) -> Any:
        return problem.push(changes[0], changes[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, *_Pulled.apply(ctx.problem, any(ctx.needs_input_grad[2:]), *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _pushed(ctx.problem, *tangents[1:])

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], problem: Relaxation, *changes: Tensor) -> Any:
        leading = _leading(changes, dims[1:], info.batch_size)
        return _through(_Pushed, problem, info.batch_size, leading)
