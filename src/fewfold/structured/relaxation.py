"""LP-SparseMAP of a batch as one differentiable function of all scores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfold.structured.closed import Pair
from fewfold.structured.consensus import PlainSolver, Told
from fewfold.structured.fast_graph import NativeSolver, known
from fewfold.structured.links import Links
from fewfold.structured.structure import Structure

__all__ = ["Relaxation", "relaxed"]

SHARP = 10.0  # in LP-MAP, scores next to the pull towards the last marginals


class Relaxation:
    """What is solved, and what it leaves for derivatives."""

    def __init__(
        self, links: Links, batch: torch.Size, turns: int, tolerance: float, step: float
    ) -> None:
        self.links, self.batch = links, batch
        self.turns, self.tolerance, self.step = turns, tolerance, step
        self.additional = [v for group in links.groups for v in group.structure.additional]

    def made(self, additional: Sequence[Tensor]) -> list[Structure]:
        """Flat structures with these additional scores: rows are (instances, factors)."""
        left = [value.to("cpu", torch.float64) for value in additional]
        found = []
        for group in self.links.groups:
            count = len(group.structure.additional)
            own, left = left[:count], left[count:]
            batch = torch.Size([*self.batch, *group.factors])
            found.append(group.structure.with_additional(own).flat(batch, group.event))
        return found

    def solve(self, scores: Tensor, additional: Sequence[Tensor]) -> Tensor:
        """(rows, bits) marginals; how they came about is kept."""
        self.solver = self._solver(additional)
        self.told = self._turn(scores)
        return self.told.marginals

    def solve_map(self, scores: Tensor, additional: Sequence[Tensor]) -> Tensor:
        """LP-MAP: each turn is best near to the last one's answer; finitely many are enough."""
        self.solver = self._solver([SHARP * value for value in additional])
        middle = torch.zeros_like(scores)
        turns = torch.zeros(len(scores), dtype=torch.int64)
        moved = torch.full_like(turns, 1, dtype=torch.float64)
        told = None
        while bool(((moved > self.tolerance) & (turns < self.turns)).any()):
            told = self._turn(SHARP * scores + middle, warm=told is not None)
            moved = (told.marginals - middle).abs().amax(1).nan_to_num(0.0)
            middle, turns = told.marginals.nan_to_num(0.0), turns + told.turns
        assert told is not None
        near = told.marginals.round()
        whole = (told.marginals - near).abs() <= self.tolerance
        marginals = torch.where(whole, near, told.marginals)
        self.told = Told(marginals, turns, told.apart, torch.maximum(moved, told.apart))
        return marginals

    def _solver(self, additional: Sequence[Tensor]) -> PlainSolver | NativeSolver:
        kind = NativeSolver if known(self.links) else PlainSolver
        return kind(self.links, self.made([v.detach() for v in additional]), self.batch.numel())

    def _turn(self, scores: Tensor, warm: bool = False) -> Told:
        step = _size(scores)
        for structure in self.solver.made:
            for value in structure.additional:
                step = torch.maximum(step, _size(value.reshape(len(scores), -1)))
        return self.solver.solve(
            scores, turns=self.turns, tolerance=self.tolerance, step=self.step * step, warm=warm
        )

    def objective(self, scores: Tensor, *, regularised: bool) -> Tensor:
        """(rows,) its gradient are the marginals, of parts and of additional scores."""
        mu = self.told.marginals
        total = torch.where(mu != 0, scores * mu, 0.0).sum(1)
        if regularised:
            total = total - mu.square().sum(1) / 2
        for place, structure in enumerate(self.made(self.additional)):
            if isinstance(structure, Pair):
                z = self.links.local(place, mu)
                own = structure.score * _both(structure.score.detach(), z)
                total = total + own.view(len(mu), -1).sum(1)
            elif structure.additional:
                codes, weights, _, row = self.solver.active(place, None)
                group = self.links.groups[place]
                extra = structure.extra(codes, row, group.event) * weights
                total = total.index_add(0, row // len(group.bits), extra)
        return total

    def pull(self, grad: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Gradients of the scores and of all additional ones."""
        moved = self.solver.pull(grad)
        if not self.additional:
            return moved, ()
        with torch.enable_grad():
            given = [value.detach().requires_grad_() for value in self.additional]
            made = self.made(given)
            sums = [
                self._moved_extra(place, structure, moved)
                for place, structure in enumerate(made)
                if structure.additional
            ]
            return moved, torch.autograd.grad(torch.stack(sums).sum(), given)

    def push(self, scores: Tensor, additional: Sequence[Tensor]) -> Tensor:
        """How marginals move with scores and additional ones; the transpose of `pull`."""
        total = scores
        for place, structure in enumerate(self.made(additional)):
            group = self.links.groups[place]
            if isinstance(structure, Pair):
                flat = self.solver.made[place]
                assert isinstance(flat, Pair)
                z = self.links.local(place, self.told.marginals)
                own = structure.score.unsqueeze(1) * _leans(flat.score, z)
                total = total + self.links.gathered(place, own)
            elif structure.additional:
                codes, _, _, row = self.solver.active(place, None)
                extra = structure.extra(codes, row, group.event)
                total = total + self.solver.weigh(place, extra.detach())
        return self.solver.pull(total)

    def _moved_extra(self, place: int, structure: Structure, moved: Tensor) -> Tensor:
        """What additional scores add, by how much their share changes as marginals do."""
        if isinstance(structure, Pair):
            z = self.links.local(place, self.told.marginals)
            change = self.links.local_change(place, moved)
            lean = _leans(structure.score.detach(), z)
            return (structure.score * (lean * change).sum(1)).sum()
        codes, _, by, row = self.solver.active(place, moved)
        return (structure.extra(codes, row, self.links.groups[place].event) * by).sum()


def _size(values: Tensor) -> Tensor:
    """(rows,) the root mean square of what is finite, or one: what steps are in proportion to."""
    finite = values.isfinite()
    total = torch.where(finite, values, 0.0).square().sum(1) / finite.sum(1).clamp(min=1)
    return total.sqrt().clamp(min=1)


def _both(score: Tensor, z: Tensor) -> Tensor:
    """How much of both bits is on: as much as can be, or as little, as the score wants."""
    return torch.where(score >= 0, z.amin(1), (z.sum(1) - 1).clamp(min=0))


def _leans(score: Tensor, z: Tensor) -> Tensor:
    """(n, 2) the slope of `_both`."""
    first = (z[:, 0] <= z[:, 1]).to(z)
    lower = torch.stack([first, 1 - first], 1)
    above = (z.sum(1, keepdim=True) > 1).to(z).expand(-1, 2)
    return torch.where(score.unsqueeze(1) >= 0, lower, above)


def relaxed(scores: Tensor, problem: Relaxation, *, regularised: bool) -> Tensor:
    """(rows, bits) marginals; LP-SparseMAP is differentiable by all scores."""
    if not regularised:
        return problem.solve_map(scores, problem.additional)
    found: Tensor = _Relaxed.apply(scores, problem, *problem.additional)
    return found


class _Relaxed(torch.autograd.Function):
    """Piecewise linear in all scores, so that derivatives repeat themselves."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, problem: Relaxation, *additional: Tensor) -> Tensor:
        ctx.problem = problem
        return problem.solve(scores, additional).clone()  # its own would hold on to this node

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        back, *more = _Pulled.apply(grads[0], ctx.problem)
        return (back, None, *more)


class _Pulled(torch.autograd.Function):
    """Gradients of the scores and all additional ones, linear in that of the marginals."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, problem: Relaxation) -> tuple[Tensor, ...]:
        ctx.problem = problem
        back, more = problem.pull(grad)
        return (back, *more)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Pushed.apply(ctx.problem, *grads), None


class _Pushed(torch.autograd.Function):
    """The transpose of `_Pulled`."""

    @staticmethod
    def forward(ctx: Any, problem: Relaxation, scores: Tensor, *additional: Tensor) -> Tensor:
        ctx.problem = problem
        return problem.push(scores, additional)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, *_Pulled.apply(grads[0], ctx.problem))
