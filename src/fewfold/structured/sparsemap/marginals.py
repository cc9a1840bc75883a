"""Marginals with all their derivatives.

They are piecewise linear in the scores. So the derivative is a linear map that stays the same as
long as the active structures do, and its transpose and itself are each other's derivatives.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch._functorch.utils import unwrap_dead_wrappers

from fewfold._torch import forward_mode, under_transform
from fewfold.structured.sparsemap.solver import Active, Limits, derived, pulled, solve
from fewfold.structured.structures.structure import Structure

__all__ = ["Problem", "marginals_of", "tracked"]


def marginals_of(scores: Tensor, structure: Structure, limits: Limits) -> Tensor:
    """SparseMAP of `(..., *event)`, differentiable any number of times."""
    problem = Problem(scores.shape, structure, limits)
    problem.tracked = tracked(scores, *structure.additional)
    found: Tensor = _Marginals.apply(scores, problem, *structure.additional)
    return found


def tracked(*values: Tensor) -> bool:
    """Whether someone may ask for derivatives by these."""
    if under_transform() or forward_mode():
        return True
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


class Problem:
    """What is solved, and then how the answer changes: `push`, and its transpose `pull`."""

    def __init__(self, shape: torch.Size, structure: Structure, limits: Limits) -> None:
        self.structure, self.limits = structure, limits
        self.batch = shape[: len(shape) - structure.event_dim]
        self.event = shape[len(shape) - structure.event_dim :]
        self.tracked = True  # whether derivatives may be asked for
        self.active: Active | None = None
        self.closed: tuple[Tensor, Tensor] | None = None  # scores and marginals
        self.under: tuple[int | None, Problem] | None = None  # all instances of a vmap, its level

    def solve(self, scores: Tensor, additional: tuple[Tensor, ...]) -> Tensor:
        """Marginals of the shape of the scores."""
        known = self.structure.additional
        if any(mine is not given for mine, given in zip(known, additional, strict=True)):
            self.structure = self.structure.with_additional(additional)
        rows, made, event = self.structure.prepared(scores, None)
        closed = None if additional else made.project(rows)
        if closed is not None:
            self.closed, marginals = (rows, closed[0]), closed[0]
        else:
            self.active = solve(rows, made, event, self.limits, widen=self.tracked)
            marginals = self.active.marginals
        return marginals.reshape(scores.shape).to(scores)

    def push(self, scores: Tensor, additional: tuple[Tensor, ...]) -> Tensor:
        """By how much the marginals change."""
        extra = scores.dim() - len(self.batch) - len(self.event)
        if extra:
            every = [
                self.push(one, tuple(more)) for one, *more in zip(scores, *additional, strict=True)
            ]
            return torch.stack(every)
        flat = self._flat(scores)
        if self.active is None:
            return self._faced(flat).view(scores.shape).to(scores)
        own = self.active.read(flat)
        if additional:
            own = own + self._extra(*additional)
        return self.active.write(derived(own, self.active)).view(scores.shape).to(scores)

    def pull(self, grad: Tensor, more: bool) -> tuple[Tensor, ...]:
        """The gradient of the scores, and those of the additional ones if they are wanted too."""
        if grad.dim() > len(self.batch) + len(self.event):
            every = [self.pull(one, more) for one in grad]
            return tuple(torch.stack(parts) for parts in zip(*every, strict=True))
        flat = self._flat(grad)
        if self.active is None:
            return (self._faced(flat).view(grad.shape).to(grad),)
        back, by = pulled(flat, self.active)
        back = back.view(grad.shape).to(grad)
        given = self.structure.additional
        if not given:
            return (back,)
        if not more:
            return back, *[torch.zeros_like(value) for value in given]
        assert self.active.small is not None
        found = self.structure.extra_pull(
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
        made = self.structure.with_additional(wide).flat(self.batch, self.event)
        return made.extra(self.active.codes, self.active.row, self.event)

    def _faced(self, change: Tensor) -> Tensor:
        assert self.closed is not None
        shaped = change.view(len(change), *self.event)
        return self.structure.face_apply(*self.closed, shaped).reshape(change.shape)

    def joined(
        self, size: int, scores: Tensor, additional: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """`(size, ...)` instances of a vmap as one batch, additional scores for each of them."""
        flats = []
        for own in zip(*additional, strict=True) if additional else [()] * size:
            made = self.structure.with_additional(list(own)).flat(self.batch, self.event)
            flats.append(made.additional)
        rows = scores.reshape(size * self.batch.numel(), *self.event)
        return rows, [torch.cat(parts) for parts in zip(*flats, strict=True)]

    def parted(self, size: int, grads: list[Tensor], columns: int) -> list[Tensor]:
        """The transpose of `joined` for additional scores: (size * rows, ...) -> (size, ...)."""
        if not grads:
            return []
        if columns:
            every = [self.parted(size, list(own), columns - 1) for own in zip(*grads, strict=True)]
            return [torch.stack(parts) for parts in zip(*every, strict=True)]
        zeros = [torch.zeros(value.shape, dtype=value.dtype) for value in self.structure.additional]

        def flat(*own: Tensor) -> tuple[Tensor, ...]:
            return self.structure.with_additional(own).flat(self.batch, self.event).additional

        back = torch.func.vjp(flat, *zeros)[1]
        each = zip(*[grad.chunk(size) for grad in grads], strict=True)
        return [torch.stack(parts) for parts in zip(*map(back, each), strict=True)]


def _leading(values: tuple[Tensor, ...], dims: tuple[Any, ...], size: int) -> list[Tensor]:
    """The dimension of a vmap first, everywhere."""
    return [
        value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


class _Function(torch.autograd.Function):
    """A function whose arguments are all given by position.

    Without a transform that needs no look at what `forward` is called with, which takes longer
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
        back, *more = _pull(ctx.problem, grads[0], any(ctx.needs_input_grad[2:]))
        return (back, None, *more)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        return _pushed(ctx.problem, scores, additional)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Problem, *additional: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        first, *others = _leading((scores, *additional), (dims[0], *dims[2:]), size)
        rows, joined = problem.joined(size, first, others)
        own = problem.structure.with_additional([value[0] for value in others])
        flat = own.flat(problem.batch, problem.event)  # lays additional scores out by instance
        inner = Problem(rows.shape, flat.with_additional(joined), problem.limits)
        problem.under = maybe_current_level(), inner
        found: Tensor = _Marginals.apply(rows, inner, *joined)
        return found.view(size, *problem.batch, *problem.event), 0


def _pushed(problem: Problem, scores: Tensor | None, additional: list[Tensor | None]) -> Tensor:
    given = problem.structure.additional
    if scores is None:
        scores = torch.zeros((*problem.batch, *problem.event), dtype=torch.float64)
    filled = [
        torch.zeros_like(value) if change is None else change
        for value, change in zip(given, additional, strict=True)
    ]
    found: Tensor = _Pushed.apply(scores, problem, *filled)
    return found


def _pull(problem: Problem, grad: Tensor, more: bool) -> tuple[Tensor, ...]:
    if not tracked(grad):
        return problem.pull(grad, more)
    found: tuple[Tensor, ...] = _Pulled.apply(grad, problem, more)
    return found


class _Pulled(_Function):
    @staticmethod
    def forward(grad: Tensor, problem: Problem, more: bool) -> tuple[Tensor, ...]:
        return problem.pull(grad, more)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.problem, ctx.more = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None, None]:
        return _pushed(ctx.problem, grads[0], list(grads[1:])), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Pulled.apply(tangents[0], ctx.problem, ctx.more)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], grad: Tensor, problem: Problem, more: bool
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        (grad,) = _leading((grad,), dims[:1], info.batch_size)
        if problem.under is None or problem.under[0] != maybe_current_level():
            found = _Pulled.apply(grad, problem, more)  # several gradients of one answer
            return found, (0,) * len(found)
        size, (_, inner) = info.batch_size, problem.under
        columns = grad.dim() - 1 - len(problem.batch) - len(problem.event)
        lead = grad.shape[1 : 1 + columns]
        moved = grad.movedim(0, columns).reshape(*lead, -1, *problem.event)
        back, *rest = _Pulled.apply(moved, inner, more)
        back = back.view(*lead, size, *problem.batch, *problem.event)
        own = problem.parted(size, rest, columns)
        return (back, *own), (columns,) * (1 + len(own))


class _Pushed(_Function):
    @staticmethod
    def forward(scores: Tensor, problem: Problem, *additional: Tensor) -> Tensor:
        return problem.push(scores, additional)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.problem = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        back, *more = _pull(ctx.problem, grads[0], any(ctx.needs_input_grad[2:]))
        return (back, None, *more)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        scores, _, *additional = tangents
        return _pushed(ctx.problem, scores, additional)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], scores: Tensor, problem: Problem, *additional: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        first, *others = _leading((scores, *additional), (dims[0], *dims[2:]), size)
        if problem.under is None or problem.under[0] != maybe_current_level():
            return _Pushed.apply(first, problem, *others), 0
        columns = first.dim() - 1 - len(problem.batch) - len(problem.event)
        if columns:
            first, *others = (value.movedim(0, 1) for value in (first, *others))
            pairs = [problem.joined(size, *own) for own in _each(first, others)]
            rows = torch.stack([pair[0] for pair in pairs])
            joined = [torch.stack(parts) for parts in zip(*[p[1] for p in pairs], strict=True)]
        else:
            rows, joined = problem.joined(size, first, others)
        found: Tensor = _Pushed.apply(rows, problem.under[1], *joined)
        lead = rows.shape[:columns]
        return found.view(*lead, size, *problem.batch, *problem.event), columns


def _each(first: Tensor, others: list[Tensor]) -> list[tuple[Tensor, list[Tensor]]]:
    return [(own, [other[i] for other in others]) for i, own in enumerate(first)]
