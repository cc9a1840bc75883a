"""LP-SparseMAP of a batch, and the derivatives of its objective and marginals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.structured.factor_graph.consensus import PlainSolver, SolverResult
from fewfold.structured.factor_graph.links import Links, check_fixed_bits
from fewfold.structured.factor_graph.native_solver import NativeSolver, has_kernels
from fewfold.structured.score_limits import check_size
from fewfold.structured.structures.batch_rows import by_row, rows_like
from fewfold.structured.structures.structure import Structure

__all__ = ["Relaxation", "SearchOptions"]

LP_SCALE = 10.0  # in LP-MAP, weight of the scores relative to the proximal term


class SearchOptions(NamedTuple):
    """Iteration limit, tolerance on the disagreement, ADMM step size, and kind of problem."""

    turns: int
    tolerance: float
    step: float
    regularised: bool


class Relaxation:
    """A problem, its solution, and the linear maps that are its derivatives.

    In all tensors the first dimension is the instance: scores (rows, bits), additional scores
    (rows, factors, ...).
    """

    def __init__(
        self, links: Links, structures: Sequence[Structure], rows: int, options: SearchOptions
    ) -> None:
        """`structures` are the flat structures of the groups; additional scores are ignored."""
        self.links, self.structures, self.rows, self.options = links, structures, rows, options
        self.vmapped: tuple[int | None, Relaxation] | None = (
            None  # vmap level and its merged problem
        )
        self.solver: PlainSolver | NativeSolver | None = None

    def repeated(self, size: int) -> "Relaxation":
        """Return the problem with `size` times as many instances."""
        return Relaxation(self.links, self.structures, size * self.rows, self.options)

    def zeros(self) -> list[Tensor]:
        """Zero tangents for the scores and for all additional scores."""
        found = [torch.zeros(self.rows, self.links.size, dtype=torch.float64)]
        for group, structure in zip(self.links.groups, self.structures, strict=True):
            for value in structure.additional:
                shape = (self.rows, len(group.bits), *value.shape[1:])
                found.append(torch.zeros(shape, dtype=torch.float64))
        return found

    def with_scores(self, additional: Sequence[Tensor]) -> list[Structure]:
        """Flat structures with these additional scores; rows count (instances, factors)."""
        left, found = [value.flatten(0, 1) for value in additional], []
        for structure in self.structures:
            count = len(structure.additional)
            found.append(structure.with_additional(left[:count]))
            left = left[count:]
        return found

    def solve(self, scores: Tensor, additional: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return marginals (rows, bits), objectives (rows,) and diagnostics (rows, 4).

        The diagnostics are iterations, disagreement, last change and whether factors converged.
        """
        if not scores.numel():
            diagnostics = scores.new_zeros(len(scores), 4)
            diagnostics[:, 3] = 1
            return torch.zeros_like(scores), diagnostics[:, 0].clone(), diagnostics
        self.invalid = _invalid_rows(scores)  # their marginals are NaN and gradients zero
        for value in additional:
            self.invalid |= _invalid_rows(value.flatten(1))
        if bool(self.invalid.any()):
            scores = scores.masked_fill(self.invalid.unsqueeze(1), math.nan)
            additional = [
                value.masked_fill(rows_like(self.invalid, value), 0.0) for value in additional
            ]
        check_fixed_bits(self.links, self.with_scores(additional), scores)
        scale = 1.0 if self.options.regularised else LP_SCALE
        kind = NativeSolver if has_kernels(self.links) else PlainSolver
        scaled = self.with_scores([scale * value for value in additional])
        self.solver = kind(self.links, scaled, self.rows)
        self.result = (
            self._solve_once(scores) if self.options.regularised else self._solve_lp_map(scores)
        )
        result = self.result
        marginals = (
            result.marginals.clone()
        )  # the result itself must not be part of the autograd graph
        parts = (
            result.iterations.double(),
            result.disagreement,
            result.moved,
            result.factors_converged.double(),
        )
        return marginals, self._objective(scores, additional), torch.stack(parts, 1)

    def _solve_lp_map(self, scores: Tensor) -> SolverResult:
        """Solve LP-MAP by the proximal point method, which ends after finitely many steps."""
        center = torch.zeros_like(scores)
        turns = torch.zeros(len(scores), dtype=torch.int64)
        moved = torch.full_like(turns, 1, dtype=torch.float64)
        result = None
        while bool(((moved > self.options.tolerance) & (turns < self.options.turns)).any()):
            result = self._solve_once(LP_SCALE * scores + center, warm=result is not None)
            moved = (result.marginals - center).abs().amax(1).nan_to_num(0.0)
            center, turns = result.marginals.nan_to_num(0.0), turns + result.iterations
        assert result is not None
        rounded = result.marginals.round()
        integral = (result.marginals - rounded).abs() <= self.options.tolerance
        marginals = torch.where(integral, rounded, result.marginals)
        moved = torch.maximum(moved, result.disagreement)
        return SolverResult(marginals, turns, result.disagreement, moved, result.factors_converged)

    def _solve_once(self, scores: Tensor, warm: bool = False) -> SolverResult:
        """Solve LP-SparseMAP, with steps proportional to the size of the scores."""
        assert self.solver is not None
        step = _size(scores)
        for structure in self.solver.structures:
            for value in structure.additional:
                step = torch.maximum(step, _size(by_row(value, len(scores))))
        return self.solver.solve(
            scores, turns=self.options.turns, tolerance=self.options.tolerance,
            step=self.options.step * step, warm=warm,
        )  # fmt: skip

    def _objective(self, scores: Tensor, additional: Sequence[Tensor]) -> Tensor:
        mu = self.result.marginals
        total = torch.where(mu != 0, scores * mu, 0.0).sum(1)
        if self.options.regularised:
            total = total - mu.square().sum(1) / 2
        return total + self._additional_objective(additional)

    def _additional_objective(self, additional: Sequence[Tensor]) -> Tensor:
        """Contribution of the additional scores to the objective, (rows,)."""
        assert self.solver is not None
        total = torch.zeros(self.rows, dtype=torch.float64)
        for place, structure in enumerate(self.with_scores(additional)):
            if not structure.additional:
                continue
            usage = self._usage(place)
            if usage is not None:
                own = torch.where(usage != 0, structure.additional[0] * usage, 0.0)
                total = total + by_row(own, self.rows).sum(1)
            else:
                codes, weights, _, row = self.solver.active(place, None)
                group = self.links.groups[place]
                extra = torch.where(
                    weights != 0, structure.additional_score(codes, row, group.event), 0.0
                )
                total = total.index_add(0, row // len(group.bits), extra * weights)
        return total

    def objective_grad(self, more: bool) -> tuple[Tensor, ...]:
        """Gradients of the objectives in the scores and, if `more`, in the additional scores."""
        if self.solver is None:
            return tuple(self.zeros()) if more else (self.zeros()[0],)
        own = self.result.marginals.masked_fill(self.invalid.unsqueeze(1), 0.0)
        return own, *(self._additional_grad(None) if more else ())

    def hessian_product(self, changes: Sequence[Tensor], more: bool) -> tuple[Tensor, ...]:
        """Directional derivative of `objective_grad`: a Hessian-vector product.

        Args:
            changes: tangents (..., rows, bits) of the scores, and optionally
                (..., rows, factors, ...) of the additional scores.
            more: as in `objective_grad`.
        """
        if changes[0].dim() > 2:
            every = [self.hessian_product(own, more) for own in zip(*changes, strict=True)]
            return tuple(torch.stack(parts) for parts in zip(*every, strict=True))
        if self.solver is None:
            return self.objective_grad(more)
        total = changes[0]
        structures = self.with_scores(changes[1:]) if len(changes) > 1 else ()
        for place, structure in enumerate(structures):
            if not structure.additional:
                continue
            if self._usage(place) is not None:
                own = structure.additional[0].unsqueeze(1) * self._usage_grad(place)
                total = total + self.links.scatter_change(place, own)
            else:
                codes, _, _, row = self.solver.active(place, None)
                extra = structure.additional_score(codes, row, self.links.groups[place].event)
                total = total + self.solver.as_bit_scores(place, extra)
        moved = self.solver.pull(total).masked_fill(self.invalid.unsqueeze(1), 0.0)
        return moved, *(self._additional_grad(moved) if more else ())

    def _additional_grad(self, moved: Tensor | None) -> tuple[Tensor, ...]:
        """Gradient of the objectives in the additional scores, or its change with the marginals."""
        assert self.solver is not None
        with torch.enable_grad():
            given = [value.requires_grad_() for value in self.zeros()[1:]]
            sums = []
            for place, structure in enumerate(self.with_scores(given)):
                if not structure.additional:
                    continue
                used = self._usage(place)
                if used is not None:
                    if moved is not None:
                        change = self.links.local_change(place, moved)
                        used = (self._usage_grad(place) * change).sum(1)
                    sums.append(structure.additional[0] * used)
                else:
                    codes, weights, by, row = self.solver.active(place, moved)
                    extra = structure.additional_score(codes, row, self.links.groups[place].event)
                    used = weights if moved is None else by
                    sums.append(extra * used)
            found = torch.autograd.grad([own.sum() for own in sums], given) if given else ()
        return tuple(value.masked_fill(rows_like(self.invalid, value), 0.0) for value in found)

    def _usage(self, place: int) -> Tensor | None:
        """Usage of the additional score of a group by the marginals, in closed form, or None."""
        assert self.solver is not None
        local = self.links.local(place, self.result.marginals)
        return self.solver.structures[place].additional_usage(local)

    def _usage_grad(self, place: int) -> Tensor:
        """Gradient of `_usage` with respect to the bits of each factor."""
        assert self.solver is not None
        local = self.links.local(place, self.result.marginals)
        return self.solver.structures[place].additional_usage_grad(local)


def _invalid_rows(values: Tensor) -> Tensor:
    """Whether each row has a NaN or +inf, (rows,)."""
    check_size(values)
    return ~(values < math.inf).all(1)


def _size(values: Tensor) -> Tensor:
    """Root mean square of the finite values of each row, at least one, (rows,)."""
    finite = values.isfinite()
    total = torch.where(finite, values, 0.0).square().sum(1) / finite.sum(1).clamp(min=1)
    return total.sqrt().clamp(min=1)
