"""LP-SparseMAP in plain torch by dual consensus, and the derivative of its solution.

    max <t, mu> + sum_f <v_f, nu_f> - |mu|^2 / 2   s.t. mu at the bits of f is in the hull of f.

The dual has a multiplier l per link; those of a bit sum to zero. Each factor f projects t + l_f on
its polytope; the disagreement of the projections of a bit is the gradient of the dual and vanishes
at the optimum. Iterations of ADMM approach it. Newton's method, whose matrix consists of the faces
of the projections, then converges in a few steps, exactly once the faces are the final ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.structured.factor_graph.links import ActiveFaces, Faces, FactorProjections, Links
from fewfold.structured.structures.structure import Structure

__all__ = ["PlainSolver", "SolverResult"]

RELAX = 1.6  # over-relaxation of ADMM
ADMM, NEWTON = 15, 30  # iterations of one method before switching to the other
EXACT = 1e-11  # disagreement, relative to the scores, that is rounding error


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Solution of each row (instance) of a factor graph.

    Attributes:
        marginals: (rows, bits); NaN where scores are NaN.
        iterations: (rows,) int64.
        disagreement: (rows,) root mean square disagreement between factors.
        moved: (rows,) root mean square change of the marginals in the last iteration.
        factors_converged: (rows,) bool, whether all projections on factors are optimal.
    """

    marginals: Tensor
    iterations: Tensor
    disagreement: Tensor
    moved: Tensor
    factors_converged: Tensor


class PlainSolver:
    """Solver of a factor graph without kernels."""

    def __init__(self, links: Links, structures: list[Structure], rows: int) -> None:
        """`structures` are the flat structures of the groups; rows count (instances, factors)."""
        self.links, self.structures = links, structures
        self._projections = FactorProjections(links, structures)
        self._state: _State | None = None

    def solve(
        self, scores: Tensor, *, turns: int, tolerance: float, step: Tensor, warm: bool = False
    ) -> SolverResult:
        """Solve LP-SparseMAP for scores (rows, bits).

        Args:
            scores: float64, -inf where a bit is fixed at 0, NaN in invalid rows.
            turns: maximum number of iterations.
            tolerance: on the disagreement.
            step: (rows,) step size of ADMM.
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
        disagreement, moved = (
            value.masked_fill(invalid, math.nan) for value in (found.disagreement, found.moved)
        )
        return SolverResult(
            marginals, found.iterations, disagreement, moved, found.faces.converged(len(scores))
        )

    def pull(self, grad: Tensor) -> Tensor:
        """Product of the Jacobian of the marginals, which is symmetric, with `grad`."""
        assert self._state is not None
        moved = _marginals_jvp(self.links, self._state.faces, self._state.marginals, grad)
        return moved.masked_fill(self._invalid.unsqueeze(1), math.nan)

    def active(self, place: int, change: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Active structures of a group without a closed form.

        Args:
            place: index of the group.
            change: (rows, bits) change of the marginals, or None.

        Returns:
            Codes (m, slots), weights (m,), changes of the weights (m,), and rows (m,), which count
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
        """Convert changes of structure scores to equivalent changes of bit scores (rows, bits).

        Args:
            place: index of the group.
            values: (m,) in the order of `active`.
        """
        assert self._state is not None
        face = self._state.faces.parts[place]
        assert isinstance(face, ActiveFaces)
        own = face.score_jvp(values) * face.scale
        return self.links.scatter_change(place, own)


@dataclass(frozen=True, eq=False)
class _State:
    """State of the solver.

    Attributes:
        marginals: (rows, bits).
        multipliers: (rows, links) dual variables.
        differ: (rows, links) projections of the factors minus the marginals.
        faces: faces of the projections.
        iterations: (rows,) int64.
        disagreement: (rows,) root mean square of `differ`.
        moved: (rows,) root mean square change of the marginals in the last iteration.
    """

    marginals: Tensor
    multipliers: Tensor
    differ: Tensor
    faces: Faces
    iterations: Tensor
    disagreement: Tensor
    moved: Tensor


class _DualSearch:
    """Evaluation of the dual of a graph, and the steps of ADMM and Newton's method."""

    def __init__(self, links: Links, projections: FactorProjections, scores: Tensor) -> None:
        self.links, self.projections = links, projections
        self.given, self.alone = links.spread(scores), scores.clamp(0, 1)
        finite = torch.where(scores.isfinite(), scores, 0.0).abs()
        self.exact = EXACT * (1 + (finite.amax(1) if scores.shape[1] else finite.sum(1)))

    def evaluate(self, dual: Tensor) -> tuple[Tensor, Tensor, Faces]:
        """Mean projection (rows, bits), differences from it (rows, links), and faces."""
        z, faces = self.projections.nearest(self.given + dual, dual.new_ones(len(dual)))
        mean = self.mean(z)
        return mean, z - self.links.spread(mean), faces

    def mean(self, z: Tensor) -> Tensor:
        """Average (rows, links) over the links of each bit; clipped scores for bits without."""
        return torch.where(self.links.degree > 0, self.links.mean(z), self.alone)

    def size(self, values: Tensor) -> Tensor:
        """Weighted root mean square over links."""
        return (self.inner(values, values) / max(1, len(self.links.bit))).sqrt()

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Weighted inner product over links."""
        return (self.links.weight * a * b).sum(1)

    def admm(self, dual: Tensor, mean: Tensor, on: Tensor, step: Tensor, turns: int) -> Tensor:
        """Improve the multipliers of the rows `on` by iterations of ADMM."""
        share, step = 1 / (1 + step), step.unsqueeze(1)
        for _ in range(turns):
            old = self.links.spread(mean)
            z, _ = self.projections.nearest((self.given + dual + step * old) / (1 + step), share)
            mixed = RELAX * z + (1 - RELAX) * old
            mean = self.mean(mixed)
            dual = torch.where(on, dual - step * (mixed - self.links.spread(mean)), dual)
        return dual

    def newton(self, faces: Faces, differ: Tensor, size: Tensor) -> Tensor:
        """Newton step to zero disagreement on the current faces, by conjugate gradients."""
        damping = (10 * size).clamp(max=1).unsqueeze(1)
        found, left = torch.zeros_like(differ), -differ
        along, square = left, self.inner(left, left)
        enough = square * size.clamp(max=0.01)
        for _ in range(100):
            pushed = faces.push(along)
            pushed = pushed - self.links.spread(self.links.mean(pushed)) + damping * along
            by = _ratio(square, self.inner(along, pushed))
            by = torch.where(square > enough, by, 0.0).unsqueeze(1)  # converged rows do not change
            found, left = found + by * along, left - by * pushed
            now = self.inner(left, left)
            if not bool((now > enough).any()):
                break
            along = left + _ratio(now, square).unsqueeze(1) * along
            square = now
        return found

    def line_search(self, dual: Tensor, step: Tensor, slope: Tensor) -> Tensor:
        """Line search until the slope of the (convex) dual is halved."""
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
    """a / b, or 0 where b is not positive."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def _solve_dual(
    links: Links, projections: FactorProjections, scores: Tensor, *, turns: int, tolerance: float,
    step: Tensor, multipliers: Tensor | None = None,
) -> _State:  # fmt: skip
    """Solve the dual for all rows at once.

    Args:
        links, projections: the graph.
        scores: (rows, bits) float64, -inf where a bit is fixed at 0.
        turns: maximum number of iterations.
        tolerance: on the disagreement.
        step: (rows,) step size of ADMM.
        multipliers: starting point, zero by default.
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
    """State at new multipliers, after `turns` iterations of the rows `on`."""
    mean, differ, faces = search.evaluate(dual)
    change = mean - found.marginals
    moved = (change.square().sum(1) / max(1, len(search.links.bit))).sqrt()
    moved = torch.where(on, moved, found.moved)
    iterations = found.iterations + turns * on
    return _State(mean, dual, differ, faces, iterations, search.size(differ), moved)


def _marginals_jvp(links: Links, faces: Faces, marginals: Tensor, change: Tensor) -> Tensor:
    """Directional derivative of the marginals: the projection on the intersection of all faces.

    With P the mean of the projections on the faces, change - result is the solution x of least norm
    of (1 - P) x = (1 - P) change, found by conjugate gradients.

    Args:
        marginals, change: (rows, bits).
    """
    alone = links.degree == 0
    fixed = alone & ((marginals <= 0) | (marginals >= 1))

    def outside(values: Tensor) -> Tensor:
        own = values - links.mean(faces.push(links.spread(values)))
        return torch.where(alone, torch.where(fixed, values, 0.0), own)

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
