"""LP-SparseMAP of a batch: what is solved, and how that changes with all scores."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.structured.factor_graph.consensus import PlainSolver, Told
from fewfold.structured.factor_graph.links import Links, check_held
from fewfold.structured.factor_graph.native_solver import NativeSolver, known
from fewfold.structured.score_limits import check_size
from fewfold.structured.structures.bit_polytopes import Pair
from fewfold.structured.structures.structure import Structure, by_row

__all__ = ["Relaxation", "Search"]

SHARP = 10.0  # in LP-MAP, scores next to the pull towards the last marginals


class Search(NamedTuple):
    """How to look for the best: by at most so many turns, until factors agree so well."""

    turns: int
    tolerance: float
    step: float
    regularised: bool


class Relaxation:
    """What is solved, and what it leaves for derivatives.

    All tensors have instances first: scores (rows, bits), additional ones (rows, factors, ...).
    """

    def __init__(
        self, links: Links, structures: Sequence[Structure], rows: int, search: Search
    ) -> None:
        """`structures` are those of the groups, flat; their additional scores may be any."""
        self.links, self.structures, self.rows, self.search = links, structures, rows, search
        self.under: tuple[int | None, Relaxation] | None = (
            None  # all instances of a vmap, its level
        )
        self.solver: PlainSolver | NativeSolver | None = None

    def wider(self, size: int) -> "Relaxation":
        """So many times as many instances."""
        return Relaxation(self.links, self.structures, size * self.rows, self.search)

    def zeros(self) -> list[Tensor]:
        """Changes of scores and of additional ones that change nothing."""
        found = [torch.zeros(self.rows, self.links.size, dtype=torch.float64)]
        for group, structure in zip(self.links.groups, self.structures, strict=True):
            for value in structure.additional:
                shape = (self.rows, len(group.bits), *value.shape[1:])
                found.append(torch.zeros(shape, dtype=torch.float64))
        return found

    def made(self, additional: Sequence[Tensor]) -> list[Structure]:
        """Flat structures with these additional scores: rows are (instances, factors)."""
        left, found = [value.flatten(0, 1) for value in additional], []
        for structure in self.structures:
            count = len(structure.additional)
            found.append(structure.with_additional(left[:count]))
            left = left[count:]
        return found

    def solve(self, scores: Tensor, additional: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, bits) marginals, (rows,) objectives, (rows, 4) turns, apart, moved and settled."""
        if not scores.numel():
            nothing = scores.new_zeros(len(scores), 4)
            nothing[:, 3] = 1
            return torch.zeros_like(scores), nothing[:, 0].clone(), nothing
        self.odd = _odd(scores)  # instances that have no answer, and whose slopes are zero
        for value in additional:
            self.odd |= _odd(value.flatten(1))
        if bool(self.odd.any()):
            scores = scores.masked_fill(self.odd.unsqueeze(1), math.nan)
            additional = [value.masked_fill(_like(self.odd, value), 0.0) for value in additional]
        check_held(self.links, self.made(additional), scores)
        sharp = 1.0 if self.search.regularised else SHARP
        kind = NativeSolver if known(self.links) else PlainSolver
        sharper = self.made([sharp * value for value in additional])
        self.solver = kind(self.links, sharper, self.rows)
        self.told = self._turn(scores) if self.search.regularised else self._map(scores)
        told = self.told
        marginals = told.marginals.clone()  # its own would hold on to what is differentiated
        parts = (told.turns.double(), told.apart, told.moved, told.settled.double())
        return marginals, self._objective(scores, additional), torch.stack(parts, 1)

    def _map(self, scores: Tensor) -> Told:
        """LP-MAP: each turn is best near to the last one's answer; finitely many are enough."""
        middle = torch.zeros_like(scores)
        turns = torch.zeros(len(scores), dtype=torch.int64)
        moved = torch.full_like(turns, 1, dtype=torch.float64)
        told = None
        while bool(((moved > self.search.tolerance) & (turns < self.search.turns)).any()):
            told = self._turn(SHARP * scores + middle, warm=told is not None)
            moved = (told.marginals - middle).abs().amax(1).nan_to_num(0.0)
            middle, turns = told.marginals.nan_to_num(0.0), turns + told.turns
        assert told is not None
        near = told.marginals.round()
        whole = (told.marginals - near).abs() <= self.search.tolerance
        marginals = torch.where(whole, near, told.marginals)
        moved = torch.maximum(moved, told.apart)
        return Told(marginals, turns, told.apart, moved, told.settled)

    def _turn(self, scores: Tensor, warm: bool = False) -> Told:
        assert self.solver is not None
        step = _size(scores)
        for structure in self.solver.made:
            for value in structure.additional:
                step = torch.maximum(step, _size(by_row(value, len(scores))))
        return self.solver.solve(
            scores, turns=self.search.turns, tolerance=self.search.tolerance,
            step=self.search.step * step, warm=warm,
        )  # fmt: skip

    def _objective(self, scores: Tensor, additional: Sequence[Tensor]) -> Tensor:
        mu = self.told.marginals
        total = torch.where(mu != 0, scores * mu, 0.0).sum(1)
        if self.search.regularised:
            total = total - mu.square().sum(1) / 2
        return total + self._priced(additional)

    def _priced(self, additional: Sequence[Tensor]) -> Tensor:
        """(rows,) what additional scores add to the objective."""
        assert self.solver is not None
        total = torch.zeros(self.rows, dtype=torch.float64)
        for place, structure in enumerate(self.made(additional)):
            if isinstance(structure, Pair):
                both = self._both(place)
                own = torch.where(both != 0, structure.score * both, 0.0)
                total = total + by_row(own, self.rows).sum(1)
            elif structure.additional:
                codes, weights, _, row = self.solver.active(place, None)
                group = self.links.groups[place]
                extra = torch.where(weights != 0, structure.extra(codes, row, group.event), 0.0)
                total = total.index_add(0, row // len(group.bits), extra * weights)
        return total

    def slopes(self, more: bool) -> tuple[Tensor, ...]:
        """Gradients of the objectives by scores and, if `more`, by additional ones."""
        if self.solver is None:
            return tuple(self.zeros()) if more else (self.zeros()[0],)
        own = self.told.marginals.masked_fill(self.odd.unsqueeze(1), 0.0)
        return own, *(self._shares(None) if more else ())

    def bent(self, changes: Sequence[Tensor], more: bool) -> tuple[Tensor, ...]:
        """How `slopes` move with scores and, if they are given, additional ones: a symmetric map.

        Args:
            changes: (..., rows, bits) of scores, and (..., rows, factors, ...) of additional ones.
            more: as in `slopes`.
        """
        if changes[0].dim() > 2:
            every = [self.bent(own, more) for own in zip(*changes, strict=True)]
            return tuple(torch.stack(parts) for parts in zip(*every, strict=True))
        if self.solver is None:
            return self.slopes(more)
        total = changes[0]
        for place, structure in enumerate(self.made(changes[1:]) if len(changes) > 1 else ()):
            if isinstance(structure, Pair):
                own = structure.score.unsqueeze(1) * self._leans(place)
                total = total + self.links.gathered(place, own)
            elif structure.additional:
                codes, _, _, row = self.solver.active(place, None)
                extra = structure.extra(codes, row, self.links.groups[place].event)
                total = total + self.solver.weigh(place, extra)
        moved = self.solver.pull(total).masked_fill(self.odd.unsqueeze(1), 0.0)
        return moved, *(self._shares(moved) if more else ())

    def _shares(self, moved: Tensor | None) -> tuple[Tensor, ...]:
        """How much additional parts are used, or by how much that moves as the marginals move."""
        assert self.solver is not None
        with torch.enable_grad():
            given = [value.requires_grad_() for value in self.zeros()[1:]]
            sums = []
            for place, structure in enumerate(self.made(given)):
                if isinstance(structure, Pair):
                    used = self._both(place)
                    if moved is not None:
                        used = (self._leans(place) * self.links.local_change(place, moved)).sum(1)
                    sums.append(structure.score * used)
                elif structure.additional:
                    codes, weights, by, row = self.solver.active(place, moved)
                    extra = structure.extra(codes, row, self.links.groups[place].event)
                    used = weights if moved is None else by
                    sums.append(extra * used)
            found = torch.autograd.grad([own.sum() for own in sums], given) if given else ()
        return tuple(value.masked_fill(_like(self.odd, value), 0.0) for value in found)

    def _both(self, place: int) -> Tensor:
        """How much of both bits of a pair is on: all that can be, or as little, as it wants."""
        score, z = self._pair(place)
        return torch.where(score >= 0, z.amin(1), (z.sum(1) - 1).clamp(min=0))

    def _leans(self, place: int) -> Tensor:
        """(n, 2) the slope of `_both`."""
        score, z = self._pair(place)
        first = (z[:, 0] <= z[:, 1]).to(z)
        lower = torch.stack([first, 1 - first], 1)
        above = (z.sum(1, keepdim=True) > 1).to(z).expand(-1, 2)
        return torch.where(score.unsqueeze(1) >= 0, lower, above)

    def _pair(self, place: int) -> tuple[Tensor, Tensor]:
        assert self.solver is not None
        flat = self.solver.made[place]
        assert isinstance(flat, Pair)
        return flat.score, self.links.local(place, self.told.marginals)


def _odd(values: Tensor) -> Tensor:
    """(rows,) whether a row has a NaN or +inf."""
    check_size(values)
    return ~(values < math.inf).all(1)


def _like(rows: Tensor, values: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (values.dim() - 1))


def _size(values: Tensor) -> Tensor:
    """(rows,) the root mean square of what is finite, or one: what steps are in proportion to."""
    finite = values.isfinite()
    total = torch.where(finite, values, 0.0).square().sum(1) / finite.sum(1).clamp(min=1)
    return total.sqrt().clamp(min=1)
