"""SparseMAP of a batch: choice of the solver, active structures, and derivatives."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.sparsemap.active_set import complete_face, solve_plain
from fewfold.structured.structures.score_errors import raise_infeasible
from fewfold.structured.structures.structure import Structure

__all__ = ["Active", "Limits", "marginals_vjp", "solve", "weights_jvp"]


@dataclass(frozen=True)
class Limits:
    """Stopping criteria of a solver.

    Attributes:
        turns: maximum number of oracle calls per instance.
        tolerance: on the duality gap.
    """

    turns: int = 1000
    tolerance: float = 1e-9


@dataclass(frozen=True, eq=False)
class Active:
    """The active structures of all rows, and the solver diagnostics of each row.

    Attributes:
        small: (m, slots) int32 codes, the part at each slot or -1; None for `Custom`.
        vectors: (m, parts) float64, the structures of `Custom`; otherwise None.
        weights: (m,) float64.
        offsets: (rows + 1,) int64, index of the first structure of each row.
        marginals: (rows, parts) float64.
        gap, turns, converged: (rows,); turns counts oracle calls.
        factors: factorisation that a kernel saves for derivatives, or None.
    """

    small: Tensor | None
    vectors: Tensor | None
    weights: Tensor
    offsets: Tensor
    marginals: Tensor
    gap: Tensor
    turns: Tensor
    converged: Tensor
    factors: Tensor | None = None

    @cached_property
    def codes(self) -> Tensor | None:
        """Codes as int64, (m, slots)."""
        return None if self.small is None else self.small.long()

    @cached_property
    def row(self) -> Tensor:
        """Row of each structure, (m,) int64, ascending."""
        counts = np.diff(self.offsets.numpy())
        return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))

    def select_rows(self, rows: Tensor) -> "Active":
        """Return a copy with the structures of the selected rows only, (rows,) bool."""
        counts = torch.where(rows, self.offsets.diff(), 0)
        some = rows[self.row]
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        small = None if self.small is None else self.small[some].contiguous()
        vectors = None if self.vectors is None else self.vectors[some]
        weights = self.weights[some]
        return replace(
            self, small=small, vectors=vectors, weights=weights, offsets=offsets, factors=None
        )

    def sum_parts(self, values: Tensor) -> Tensor:
        """Sum values (rows, parts) over the parts of each structure, (m,)."""
        if self.codes is None:
            assert self.vectors is not None
            own = values[self.row]
            return (self.vectors * torch.where(self.vectors != 0, own, 0.0)).sum(1)
        parts = values.shape[1]
        where = self.row.unsqueeze(1) * parts + self.codes.clamp(min=0)
        found = values.reshape(-1)[where]
        return torch.where(self.codes >= 0, found, 0.0).sum(1)

    def sum_structures(self, values: Tensor) -> Tensor:
        """Sum values (m,) over the structures that contain each part, (rows, parts)."""
        rows, parts = self.marginals.shape
        if self.codes is None:
            assert self.vectors is not None
            total = values.new_zeros(rows, parts)
            return total.index_add(0, self.row, values.unsqueeze(1) * self.vectors)
        where = self.row.unsqueeze(1) * parts + self.codes.clamp(min=0)
        spread = torch.where(self.codes >= 0, values.unsqueeze(1), 0.0)
        total = values.new_zeros(rows * parts).index_add(0, where.flatten(), spread.flatten())
        return total.view(rows, parts)


def solve(
    scores: Tensor,
    structure: Structure,
    event: torch.Size,
    limits: Limits,
    warm: "Active | None" = None,
    *,
    widen: bool = False,
) -> Active:
    """Solve SparseMAP for `(rows, *event)` float64 scores; the structure is flat.

    With `widen`, structures of weight zero are included where the derivative needs them.

    Raises:
        ValueError: if an instance has no structure.
    """
    if not event.numel():
        return _empty_events(len(scores))
    if not structure.binary or not dispatch.enabled():
        return _solve_plain(scores, structure, event, limits, warm, widen)
    rows, parts = len(scores), event.numel()
    width = structure.width(event)
    marginals = scores.new_empty(rows, parts)
    gap, turns = scores.new_empty(rows), torch.empty(rows, dtype=torch.int64)
    outcome = torch.empty(rows, dtype=torch.int32)
    warm_codes = warm_offsets = None
    if warm is not None and warm.small is not None:
        warm_codes, warm_offsets = warm.small, warm.offsets
    request = dispatch.kernel("Request")(
        scores, rows, parts, width, limits.turns, limits.tolerance, warm_codes, warm_offsets,
        marginals, gap, turns, outcome, dispatch.threads(), widen,
    )  # fmt: skip
    found = structure.native(request, scores)
    if found is None:
        return _solve_plain(scores, structure, event, limits, warm, widen)
    raise_infeasible(outcome == 2, structure)
    codes, weights, offsets, *more = (torch.from_numpy(part) for part in found)
    factors = more[0] if more and widen else None
    return Active(codes, None, weights, offsets, marginals, gap, turns, outcome == 0, factors)


def _empty_events(rows: int) -> Active:
    """Result for instances without parts: the empty structure."""
    empty = torch.empty(rows, 0, dtype=torch.float64)
    ones, zeros = torch.ones(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    done = torch.ones(rows, dtype=torch.bool)
    return Active(empty.int(), None, ones, torch.arange(rows + 1), empty, zeros, zeros.long(), done)


def _solve_plain(
    scores: Tensor, structure: Structure, event: torch.Size, limits: Limits, warm: Active | None,
    widen: bool,
) -> Active:  # fmt: skip
    rows, parts = len(scores), event.numel()
    flat = scores.reshape(rows, parts)
    valid = ~(flat.isnan() | (flat == math.inf)).any(1)
    where = valid.nonzero()[:, 0]

    def oracle(left: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = where[which]
        best, feasible = structure.select_rows(own).plain_best(left.view(-1, *event))
        return best.flatten(1), _additional_score(structure, best, own, event), feasible

    start = None
    if warm is not None:
        known = _vectors(warm, parts)
        start = []
        for one in where.tolist():
            own = known[warm.row == one]
            more = _additional_score(
                structure, own.view(-1, *event), torch.full((len(own),), one), event
            )
            start.append((own.numpy(), more.numpy()))
    found = solve_plain(flat[where], oracle, limits.turns, limits.tolerance, start)
    for place, one in enumerate(found) if widen and structure.binary else ():
        if one.converged:
            complete_face(one, place, oracle)
    infeasible = torch.zeros(rows, dtype=torch.bool)
    infeasible[where] = torch.tensor([not one.feasible for one in found], dtype=torch.bool)
    raise_infeasible(infeasible, structure)
    vectors = torch.from_numpy(np.concatenate([np.zeros((0, parts)), *[o.atoms for o in found]]))
    weights = torch.from_numpy(np.concatenate([np.zeros(0), *[one.weights for one in found]]))
    row = torch.repeat_interleave(where, torch.tensor([len(o.weights) for o in found]).long())
    marginals = torch.zeros(rows, parts, dtype=torch.float64)
    marginals.index_add_(0, row, weights.unsqueeze(1) * vectors)
    if structure.binary:
        marginals.clamp_(max=1)  # rounding errors
    marginals[~valid] = math.nan

    def each(values: list[Any], fill: Any, dtype: torch.dtype) -> Tensor:
        whole = torch.full((rows,), fill, dtype=dtype)
        whole[where] = torch.tensor(values, dtype=dtype)
        return whole

    return Active(
        structure.codes(vectors.view(-1, *event), event).int() if structure.binary else None,
        None if structure.binary else vectors,
        weights,
        torch.nn.functional.pad(torch.bincount(row, minlength=rows).cumsum(0), (1, 0)),
        marginals,
        each([one.gap for one in found], math.nan, torch.float64),
        each([one.turns for one in found], 0, torch.int64),
        each([one.converged for one in found], False, torch.bool),
    )


def _additional_score(structure: Structure, best: Tensor, row: Tensor, event: torch.Size) -> Tensor:
    if not structure.binary:
        return torch.zeros(len(best), dtype=torch.float64)
    return structure.additional_score(structure.codes(best, event), row, event).detach()


def _vectors(active: Active, parts: int) -> Tensor:
    """Active structures as vectors (m, parts) float64."""
    if active.vectors is not None:
        return active.vectors
    assert active.codes is not None
    whole = torch.zeros(len(active.codes), parts + 1, dtype=torch.float64)
    whole.scatter_(1, torch.where(active.codes < 0, parts, active.codes), 1.0)
    return whole[:, :-1]


class _WeightsJvp(torch.autograd.Function):
    """x -> Q x, where Q is the Jacobian of the weights in the scores of their structures.

    Q is symmetric and constant as long as the active structures do not change.
    """

    @staticmethod
    def forward(values: Tensor, active: Active) -> Tensor:
        columns = (
            values.detach().reshape(len(values), values.shape[1:].numel()).T.contiguous().clone()
        )
        _weights_jvp(active, columns)
        return columns.T.reshape(values.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Active], output: Tensor) -> None:
        ctx.active = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return weights_jvp(grads[0], ctx.active), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return weights_jvp(tangents[0], ctx.active)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], values: Tensor, active: Active
    ) -> tuple[Tensor, int | None]:
        if in_dims[0] is None:
            return weights_jvp(values, active), None
        return weights_jvp(values.movedim(in_dims[0], -1), active), -1


def weights_jvp(values: Tensor, active: Active) -> Tensor:
    """Multiply values (m, ...) by the Jacobian Q of the weights; differentiable to any order."""
    found: Tensor = _WeightsJvp.apply(values, active)
    return found


def marginals_vjp(grad: Tensor, active: Active) -> tuple[Tensor, Tensor]:
    """Pull a gradient of the marginals back to scores (rows, parts) and structure scores (m,)."""
    if active.small is None or not dispatch.enabled():
        by = weights_jvp(active.sum_parts(grad), active)
        return active.sum_structures(by), by
    rows, parts = active.marginals.shape
    grad, back, by = grad.contiguous(), torch.empty_like(active.marginals), active.weights.clone()
    dispatch.kernel("pull")(
        active.small, active.offsets, active.factors, rows, active.small.shape[1], parts, grad, by,
        back, dispatch.threads(),
    )  # fmt: skip
    return back, by


def _weights_jvp(active: Active, columns: Tensor) -> None:
    """Multiply columns (c, m) by Q in place."""
    if active.small is not None and dispatch.enabled():
        codes = active.small
        dispatch.kernel("derive")(
            codes, active.offsets, len(active.marginals), codes.shape[1], columns, len(columns),
            columns.shape[1], dispatch.threads(),
        )  # fmt: skip
        return
    vectors = _vectors(active, active.marginals.shape[1])
    first = 0
    for count in active.offsets.diff().tolist():
        own = slice(first, first + count)
        gram = vectors[own] @ vectors[own].T + 1
        solved = torch.linalg.solve(
            gram, torch.cat([columns[:, own].T, gram.new_ones(count, 1)], 1)
        )
        ones = solved[:, -1:]
        shift = solved[:, :-1].sum(0) / ones.sum()
        columns[:, own] = (solved[:, :-1] - shift * ones).T
        first += count
