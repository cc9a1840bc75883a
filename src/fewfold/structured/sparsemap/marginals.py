"""SparseMAP marginals with derivatives of any order.

Marginals are piecewise linear in the scores. The derivative is a linear map that is constant as
long as the active structures do not change; the pushforward and the pullback, each linear, are
each other's derivatives.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch._functorch.utils import unwrap_dead_wrappers

from fewfold._torch import forward_mode, under_transform
from fewfold.structured.sparsemap.solver import Active, Limits, marginals_vjp, solve, weights_jvp
from fewfold.structured.structures.structure import Structure

__all__ = ["Problem", "needs_derivatives", "sparsemap_marginals"]


def sparsemap_marginals(scores: Tensor, structure: Structure, limits: Limits) -> Tensor:
    """SparseMAP of `(..., *event)`, differentiable any number of times."""
    problem = Problem(scores.shape, structure, limits)
    problem.differentiable = needs_derivatives(scores, *structure.additional)
    found: Tensor = _Marginals.apply(scores, problem, *structure.additional)
    return found


def needs_derivatives(*values: Tensor) -> bool:
    """Whether derivatives with respect to these tensors may be requested."""
    if under_transform() or forward_mode():
        return True
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


class Problem:
    """A SparseMAP problem: `solve`, the pushforward `push` and its transpose `pull`."""

    def __init__(self, shape: torch.Size, structure: Structure, limits: Limits) -> None:
        self.structure, self.limits = structure, limits
        self.batch = shape[: len(shape) - structure.event_dim]
        self.event = shape[len(shape) - structure.event_dim :]
        self.differentiable = True  # whether derivatives may be requested
        self.active: Active | None = None
        self.closed: tuple[Tensor, Tensor] | None = None  # scores and marginals
        self.vmapped: tuple[int | None, Problem] | None = None  # vmap level and its merged problem

    def solve(self, scores: Tensor, additional: tuple[Tensor, ...]) -> Tensor:
        """Compute marginals in the shape of the scores."""
        known = self.structure.additional
        if any(previous is not given for previous, given in zip(known, additional, strict=True)):
            self.structure = self.structure.with_additional(additional)
        rows, flat, event = self.structure.solver_inputs(scores, None)
        closed = None if additional else flat.project(rows)
        if closed is not None:
            self.closed, marginals = (rows, closed[0]), closed[0]
        else:
            self.active = solve(rows, flat, event, self.limits, widen=self.differentiable)
            marginals = self.active.marginals
        return marginals.reshape(scores.shape).to(scores)

    def push(self, scores: Tensor, additional: tuple[Tensor, ...]) -> Tensor:
        """Directional derivative of the marginals."""
        extra = scores.dim() - len(self.batch) - len(self.event)
        if extra:
            every = [
                self.push(one, tuple(more)) for one, *more in zip(scores, *additional, strict=True)
            ]
            return torch.stack(every)
        flat = self._flat(scores)
        if self.active is None:
            return self._project_jvp(flat).view(scores.shape).to(scores)
        own = self.active.sum_parts(flat)
        if additional:
            own = own + self._extra(*additional)
        return (
            self.active.sum_structures(weights_jvp(own, self.active)).view(scores.shape).to(scores)
        )

    def pull(self, grad: Tensor, more: bool) -> tuple[Tensor, ...]:
        """Gradient with respect to the scores, and, if `more`, to the additional scores."""
        if grad.dim() > len(self.batch) + len(self.event):
            every = [self.pull(one, more) for one in grad]
            return tuple(torch.stack(parts) for parts in zip(*every, strict=True))
        flat = self._flat(grad)
        if self.active is None:
            return (self._project_jvp(flat).view(grad.shape).to(grad),)
        back, by = marginals_vjp(flat, self.active)
        back = back.view(grad.shape).to(grad)
        given = self.structure.additional
        if not given:
            return (back,)
        if not more:
            return back, *[torch.zeros_like(value) for value in given]
        assert self.active.small is not None
        found = self.structure.additional_score_vjp(
            by, self.active.small, self.active.row, self.batch, self.event
        )
        if found is not None:
            return back, *found
        transposed = torch.func.vjp(self._extra, *[value.detach() for value in given])[1]
        return back, *transposed(by)

    def _flat(self, values: Tensor) -> Tensor:
        return values.to("cpu", torch.float64).reshape(self.batch.numel(), self.event.numel())

    def _extra(self, *additional: Tensor) -> Tensor:
        assert self.active is not None
        assert self.active.codes is not None
        wide = [value.to("cpu", torch.float64) for value in additional]
        flat = self.structure.with_additional(wide).flat(self.batch, self.event)
        return flat.additional_score(self.active.codes, self.active.row, self.event)

    def _project_jvp(self, change: Tensor) -> Tensor:
        assert self.closed is not None
        shaped = change.view(len(change), *self.event)
        return self.structure.project_jvp(*self.closed, shaped).reshape(change.shape)

    def merge_vmap(
        self, size: int, scores: Tensor, additional: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Merge a vmap dimension `(size, ...)` into the batch; additional scores become per row."""
        flats = []
        for own in zip(*additional, strict=True) if additional else [()] * size:
            flat = self.structure.with_additional(list(own)).flat(self.batch, self.event)
            flats.append(flat.additional)
        rows = scores.reshape(size * self.batch.numel(), *self.event)
        return rows, [torch.cat(parts) for parts in zip(*flats, strict=True)]

    def split_vmap(self, size: int, grads: list[Tensor], columns: int) -> list[Tensor]:
        """Transpose of `merge_vmap` for additional scores: (size * rows, ...) -> (size, ...)."""
        if not grads:
            return []
        if columns:
            every = [
                self.split_vmap(size, list(own), columns - 1) for own in zip(*grads, strict=True)
            ]
            return [torch.stack(parts) for parts in zip(*every, strict=True)]
        zeros = [torch.zeros(value.shape, dtype=value.dtype) for value in self.structure.additional]

        def flat(*own: Tensor) -> tuple[Tensor, ...]:
            return self.structure.with_additional(own).flat(self.batch, self.event).additional

        back = torch.func.vjp(flat, *zeros)[1]
        each = zip(*[grad.chunk(size) for grad in grads], strict=True)
        return [torch.stack(parts) for parts in zip(*map(back, each), strict=True)]


def _vmap_dim_first(values: tuple[Tensor, ...], dims: tuple[Any, ...], size: int) -> list[Tensor]:
    """Move the vmap dimension of all tensors to the front."""
    return [
        value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


class _Function(torch.autograd.Function):
    """An autograd function whose arguments are all positional.

    Outside of transforms, `apply` skips binding the signature of `forward`, which takes longer
    than a small problem.
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        if under_transform():
            return super().apply(*args)
        args = unwrap_dead_wrappers(args)
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]


class _Marginals(_Function):
    @staticmethod
    def forward(scores: Tensor, problem: Problem, *additional: Tensor) -> Tensor:
        return problem.solve(scores, additional)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.problem = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        back, *more = _pullback(ctx.problem, grads[0], any(ctx.needs_input_grad[2:]))
        return (back, None, *more)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        return _pushforward(ctx.problem, scores, additional)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Problem, *additional: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        first, *others = _vmap_dim_first((scores, *additional), (dims[0], *dims[2:]), size)
        rows, joined = problem.merge_vmap(size, first, others)
        own = problem.structure.with_additional([value[0] for value in others])
        flat = own.flat(problem.batch, problem.event)  # additional scores per row
        inner = Problem(rows.shape, flat.with_additional(joined), problem.limits)
        problem.vmapped = maybe_current_level(), inner
        found: Tensor = _Marginals.apply(rows, inner, *joined)
        return found.view(size, *problem.batch, *problem.event), 0


def _pushforward(
    problem: Problem, scores: Tensor | None, additional: list[Tensor | None]
) -> Tensor:
    given = problem.structure.additional
    if scores is None:
        scores = torch.zeros((*problem.batch, *problem.event), dtype=torch.float64)
    filled = [
        torch.zeros_like(value) if change is None else change
        for value, change in zip(given, additional, strict=True)
    ]
    found: Tensor = _Pushforward.apply(scores, problem, *filled)
    return found


def _pullback(problem: Problem, grad: Tensor, more: bool) -> tuple[Tensor, ...]:
    if not needs_derivatives(grad):
        return problem.pull(grad, more)
    found: tuple[Tensor, ...] = _Pullback.apply(grad, problem, more)
    return found


class _Pullback(_Function):
    @staticmethod
    def forward(grad: Tensor, problem: Problem, more: bool) -> tuple[Tensor, ...]:
        return problem.pull(grad, more)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.problem, ctx.more = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None, None]:
        return _pushforward(ctx.problem, grads[0], list(grads[1:])), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Pullback.apply(tangents[0], ctx.problem, ctx.more)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], grad: Tensor, problem: Problem, more: bool
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        (grad,) = _vmap_dim_first((grad,), dims[:1], info.batch_size)
        if problem.vmapped is None or problem.vmapped[0] != maybe_current_level():
            found = _Pullback.apply(grad, problem, more)  # several gradients of one solution
            return found, (0,) * len(found)
        size, (_, inner) = info.batch_size, problem.vmapped
        columns = grad.dim() - 1 - len(problem.batch) - len(problem.event)
        lead = grad.shape[1 : 1 + columns]
        moved = grad.movedim(0, columns).reshape(*lead, -1, *problem.event)
        back, *rest = _Pullback.apply(moved, inner, more)
        back = back.view(*lead, size, *problem.batch, *problem.event)
        own = problem.split_vmap(size, rest, columns)
        return (back, *own), (columns,) * (1 + len(own))


class _Pushforward(_Function):
    @staticmethod
    def forward(scores: Tensor, problem: Problem, *additional: Tensor) -> Tensor:
        return problem.push(scores, additional)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        back, *more = _pullback(ctx.problem, grads[0], any(ctx.needs_input_grad[2:]))
        return (back, None, *more)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        return _pushforward(ctx.problem, scores, additional)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Problem, *additional: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        first, *others = _vmap_dim_first((scores, *additional), (dims[0], *dims[2:]), size)
        if problem.vmapped is None or problem.vmapped[0] != maybe_current_level():
            return _Pushforward.apply(first, problem, *others), 0
        columns = first.dim() - 1 - len(problem.batch) - len(problem.event)
        if columns:
            first, *others = (value.movedim(0, 1) for value in (first, *others))
            pairs = [problem.merge_vmap(size, *own) for own in _each(first, others)]
            rows = torch.stack([pair[0] for pair in pairs])
            joined = [torch.stack(parts) for parts in zip(*[p[1] for p in pairs], strict=True)]
        else:
            rows, joined = problem.merge_vmap(size, first, others)
        found: Tensor = _Pushforward.apply(rows, problem.vmapped[1], *joined)
        lead = rows.shape[:columns]
        return found.view(*lead, size, *problem.batch, *problem.event), columns


def _each(first: Tensor, others: list[Tensor]) -> list[tuple[Tensor, list[Tensor]]]:
    return [(own, [other[i] for other in others]) for i, own in enumerate(first)]
