"""Factors that agree: LP-SparseMAP in plain torch, and how its answer changes.

    max <t, mu> + sum_f <v_f, nu_f> - |mu|^2 / 2   where mu, at the bits of f, is a mix of f's.

The dual has a multiplier for every link, those of a bit summing to zero. Factor f answers with its
best point near to t + l_f; how far the answers for a bit differ is the gradient of the dual, zero
at the optimum. Some turns of alternating directions come near to it. Newton's method, whose matrix
are the faces of the projections, then ends in a few steps, exactly once the faces are the right ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.structured.factor_graph.links import ActiveFaces, Faces, FactorProjections, Links
from fewfold.structured.structures.structure import Structure

__all__ = ["PlainSolver", "SolverResult"]

RELAX = 1.6  # over-relaxation of alternating directions
ADMM, NEWTON = 15, 30  # turns of each before the other
EXACT = 1e-11  # a disagreement, next to the scores, that is rounding


@dataclass(frozen=True, eq=False)
class SolverResult:
    """What a solver says of rows (instances).

    Attributes:
        marginals: (rows, bits); NaN where scores are NaN.
        turns: (rows,) int64.
        apart: (rows,) how far factors disagree, root mean square.
        moved: (rows,) how far the marginals moved in the last turn.
        settled: (rows,) bool, whether every factor's own answer is the best it has.
    """

    marginals: Tensor
    iterations: Tensor
    disagreement: Tensor
    moved: Tensor
    factors_converged: Tensor


class PlainSolver:
    """A graph with additional scores, solved without kernels."""

    def __init__(self, links: Links, structures: list[Structure], rows: int) -> None:
        """`structures` are the flat structures of the groups: rows are (instances, factors)."""
        self.links, self.structures = links, structures
        self._projections = FactorProjections(links, structures)
        self._state: _State | None = None

    def solve(
        self, scores: Tensor, *, turns: int, tolerance: float, step: Tensor, warm: bool = False
    ) -> SolverResult:
        """LP-SparseMAP of (rows, bits) scores.

        Args:
            scores: float64, -inf where a bit is off, NaN in rows that have no answer.
            turns: at most.
            tolerance: of the disagreement.
            step: (rows,) of alternating directions.
            warm: whether to start from the multipliers of the last call.
        """
        invalid = scores.isnan().any(1)
        clean = torch.where(invalid.unsqueeze(1), 0.0, scores)
        start = self._state.multipliers if warm and self._state else None
        found = _solve_dual(
            self.links, self._projections, clean, turns=turns, tolerance=tolerance, step=step,
            multipliers=start,
        )  # fmt: skip
        self._state, self._invalid = found, invalid
        marginals = found.marginals.masked_fill(invalid.unsqueeze(1), math.nan)
        apart, moved = (
            value.masked_fill(invalid, math.nan) for value in (found.disagreement, found.moved)
        )
        return SolverResult(
            marginals, found.iterations, apart, moved, found.faces.converged(len(scores))
        )

    def pull(self, grad: Tensor) -> Tensor:
        """By how much the marginals move as the scores move by this; a symmetric map."""
        assert self._state is not None
        moved = _marginals_jvp(self.links, self._state.faces, self._state.marginals, grad)
        return moved.masked_fill(self._invalid.unsqueeze(1), math.nan)

    def active(self, place: int, change: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The structures of a group without a closed form.

        Args:
            place: of the group.
            change: (rows, bits), how the marginals move.

        Returns:
            Codes (m, slots), weights (m,), by how much these change (m,), and rows (m,), which are
            (instances, factors).
        """
        assert self._state is not None
        face = self._state.faces.parts[place]
        assert isinstance(face, ActiveFaces)
        group = self.links.groups[place]
        counts = torch.tensor([len(one.weights) for one in face.found])
        row = torch.repeat_interleave(torch.arange(len(counts)), counts)
        atoms = torch.cat([torch.from_numpy(one.atoms) for one in face.found]) / face.scale[row]
        weights = torch.cat([torch.from_numpy(one.weights) for one in face.found])
        by = torch.zeros_like(weights)
        if change is not None:
            own = self.links.local_change(place, change)
            by = torch.cat([torch.from_numpy(one) for one in face.weights_jvp(own)])
        codes = group.structure.codes(atoms.round().view(-1, *group.event), group.event)
        return codes, weights, by, row

    def as_bit_scores(self, place: int, values: Tensor) -> Tensor:
        """(rows, bits) what changes of the scores of structures are worth as those of bits.

        Args:
            place: of the group.
            values: (m,) in the order of `active`.
        """
        assert self._state is not None
        face = self._state.faces.parts[place]
        assert isinstance(face, ActiveFaces)
        own = face.score_jvp(values) * face.scale
        return self.links.scatter_change(place, own)


@dataclass(frozen=True, eq=False)
class _State:
    """The solution of rows (instances).

    Attributes:
        marginals: (rows, bits).
        multipliers: (rows, links), of the dual.
        differ: (rows, links) of the factors' projections, from the marginals.
        faces: of the factors' projections.
        turns: (rows,) int64.
        apart: (rows,) how far factors disagree, root mean square.
        moved: (rows,) how far the marginals moved in the last turn.
    """

    marginals: Tensor
    multipliers: Tensor
    differ: Tensor
    faces: Faces
    iterations: Tensor
    disagreement: Tensor
    moved: Tensor


class _DualSearch:
    """A graph with scores, and answers to multipliers."""

    def __init__(self, links: Links, projections: FactorProjections, scores: Tensor) -> None:
        self.links, self.projections = links, projections
        self.given, self.alone = links.spread(scores), scores.clamp(0, 1)
        finite = torch.where(scores.isfinite(), scores, 0.0).abs()
        self.exact = EXACT * (1 + (finite.amax(1) if scores.shape[1] else finite.sum(1)))

    def evaluate(self, dual: Tensor) -> tuple[Tensor, Tensor, Faces]:
        """Where the answers meet (rows, bits), how they differ from there (rows, links), faces."""
        z, faces = self.projections.nearest(self.given + dual, dual.new_ones(len(dual)))
        mean = self.mean(z)
        return mean, z - self.links.spread(mean), faces

    def mean(self, z: Tensor) -> Tensor:
        return torch.where(self.links.degree > 0, self.links.mean(z), self.alone)

    def size(self, values: Tensor) -> Tensor:
        """Root mean square over links, by their weights."""
        return (self.inner(values, values) / max(1, len(self.links.bit))).sqrt()

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.links.weight * a * b).sum(1)

    def admm(self, dual: Tensor, mean: Tensor, on: Tensor, step: Tensor, turns: int) -> Tensor:
        """Alternating directions: multipliers that are nearer to the best."""
        share, step = 1 / (1 + step), step.unsqueeze(1)
        for _ in range(turns):
            old = self.links.spread(mean)
            z, _ = self.projections.nearest((self.given + dual + step * old) / (1 + step), share)
            mixed = RELAX * z + (1 - RELAX) * old
            mean = self.mean(mixed)
            dual = torch.where(on, dual - step * (mixed - self.links.spread(mean)), dual)
        return dual

    def newton(self, faces: Faces, apart: Tensor, size: Tensor) -> Tensor:
        """The step after which all factors agree, as far as faces go; conjugate gradients."""
        ease = (10 * size).clamp(max=1).unsqueeze(1)
        found, left = torch.zeros_like(apart), -apart
        along, square = left, self.inner(left, left)
        enough = square * size.clamp(max=0.01)
        for _ in range(100):
            pushed = faces.push(along)
            pushed = pushed - self.links.spread(self.links.mean(pushed)) + ease * along
            by = _ratio(square, self.inner(along, pushed))
            by = torch.where(square > enough, by, 0.0).unsqueeze(1)  # rows that are done stay
            found, left = found + by * along, left - by * pushed
            now = self.inner(left, left)
            if not bool((now > enough).any()):
                break
            along = left + _ratio(now, square).unsqueeze(1) * along
            square = now
        return found

    def line_search(self, dual: Tensor, step: Tensor, slope: Tensor) -> Tensor:
        """How far to go: until the dual, convex, is half as steep."""
        by, low, high = torch.ones_like(slope), torch.zeros_like(slope), torch.ones_like(slope)
        low_slope, high_slope = slope, torch.full_like(slope, math.inf)
        for _ in range(20):
            now = self.inner(self.evaluate(dual + by.unsqueeze(1) * step)[1], step)
            open_ = now.abs() > 0.5 * slope.abs()
            if not bool(open_.any()):
                break
            high, high_slope = (
                torch.where(open_ & (now > 0), new, old)
                for new, old in ((by, high), (now, high_slope))
            )
            low, low_slope = (
                torch.where(open_ & (now < 0), new, old)
                for new, old in ((by, low), (now, low_slope))
            )
            between = low + (high - low) * (_ratio(-low_slope, high_slope - low_slope)).clamp(
                0.1, 0.9
            )
            by = torch.where(open_, torch.where(high_slope < math.inf, between, 2 * by), by)
        return dual + by.unsqueeze(1) * step


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def _solve_dual(
    links: Links, projections: FactorProjections, scores: Tensor, *, turns: int, tolerance: float, step: Tensor,
    multipliers: Tensor | None = None,
) -> _State:  # fmt: skip
    """Solve all rows in step.

    Args:
        links, projections: the graph.
        scores: (rows, bits) float64, -inf where a bit is off.
        turns: at most.
        tolerance: of the disagreement.
        step: (rows,) of alternating directions.
        multipliers: to start from.
    """
    search = _DualSearch(links, projections, scores)
    start = torch.zeros_like(search.given) if multipliers is None else multipliers
    mean, differ, faces = search.evaluate(start)
    size, one = search.size(differ), torch.ones(len(scores), dtype=torch.int64)
    found = _State(mean, start, differ, faces, one, size, size)
    done = 1
    while done < turns and bool((found.disagreement > search.exact).any()):
        on = found.disagreement > search.exact
        count = min(ADMM, turns - done)
        dual = search.admm(found.multipliers, found.marginals, on.unsqueeze(1), step, count)
        found = _advance(search, found, dual, on, count)
        done += count
        for _ in range(min(NEWTON, turns - done)):
            on = found.disagreement > search.exact
            if not bool(on.any()):
                break
            differ = torch.where(on.unsqueeze(1), found.differ, 0.0)
            ahead = search.newton(found.faces, differ, found.disagreement)
            dual = search.line_search(found.multipliers, ahead, search.inner(differ, ahead))
            found = _advance(search, found, dual, on, 1)
            done += 1
        if not bool((found.disagreement > tolerance).any()):
            break
    return found


def _advance(search: _DualSearch, found: _State, dual: Tensor, on: Tensor, turns: int) -> _State:
    mean, differ, faces = search.evaluate(dual)
    change = mean - found.marginals
    moved = (change.square().sum(1) / max(1, len(search.links.bit))).sqrt()
    moved = torch.where(on, moved, found.moved)
    took = found.iterations + turns * on
    return _State(mean, dual, differ, faces, took, search.size(differ), moved)


def _marginals_jvp(links: Links, faces: Faces, marginals: Tensor, change: Tensor) -> Tensor:
    """By how much the marginals move with the scores: on what the faces of all factors share.

    x = change - project is what (1 - mean of faces) x = (1 - mean of faces) change has of least
    norm, which conjugate gradients find.

    Args:
        marginals, change: (rows, bits).
    """
    alone = links.degree == 0
    held = alone & ((marginals <= 0) | (marginals >= 1))

    def outside(values: Tensor) -> Tensor:
        own = values - links.mean(faces.push(links.spread(values)))
        return torch.where(alone, torch.where(held, values, 0.0), own)

    left = outside(change)
    found = torch.zeros_like(change)
    along, size = left, left.square().sum(1)
    enough = 1e-28 * change.square().sum(1)
    for _ in range(2 * links.size + 20):
        if not bool((size > enough).any()):
            break
        pushed = outside(along)
        by = torch.where(size > enough, _ratio(size, (along * pushed).sum(1)), 0.0).unsqueeze(1)
        found, left = found + by * along, left - by * pushed
        now = left.square().sum(1)
        along = left + _ratio(now, size).unsqueeze(1) * along
        size = now
    return change - found
