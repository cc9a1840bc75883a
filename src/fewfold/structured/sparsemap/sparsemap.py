"""SparseMAP as a function of scores: marginals, weighted structures, or the full solution."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold._check import (
    check_mask,
    check_scores,
    check_temperature,
    positive_number,
    whole_number,
)
from fewfold._native import dispatch
from fewfold._torch import check_values, under_transform
from fewfold.structured.sparsemap.marginals import needs_derivatives, sparsemap_marginals
from fewfold.structured.sparsemap.solver import Active, Limits, solve, weights_jvp
from fewfold.structured.sparsemap.sparsemap_operator import is_registered, opaque_marginals
from fewfold.structured.structures.batch_rows import by_row
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support

__all__ = ["Solution", "sparsemap", "sparsemap_solution", "sparsemap_support"]


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of SparseMAP for a batch of instances.

    Attributes:
        marginals: in the shape of the scores.
        support: the structures, ones at their parts, and their weights.
        objective: (batch,) expected score minus half the squared norm of the marginals.
        gap: (batch,) duality gap, an upper bound on the distance to the optimal objective.
        iterations: (batch,) int64, number of oracle calls.
        converged: (batch,) bool, whether the gap is within the tolerance, or within rounding error
            for scores of this magnitude.
        problem: the solved problem, from which a later call can start.
    """

    marginals: Tensor
    support: Support
    objective: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor
    problem: "SolvedProblem"


@dataclass(frozen=True, eq=False)
class SolvedProblem:
    """A solved problem and its active structures.

    Attributes:
        structure: the flat structure.
        allowed: `(rows, *event)` bool, the available parts.
        active: the active structures.
    """

    structure: Structure
    allowed: Tensor
    active: Active

    def active_for(self, structure: Structure, rows: Tensor) -> Active:
        """Active structures of the rows in which the same structures are feasible as here."""
        if rows.shape != self.allowed.shape or structure.event_dim != self.structure.event_dim:
            raise ValueError(
                f"warm must be a solution for scores of the same shape, {tuple(rows.shape)} with "
                f"the batch flattened, got one for {tuple(self.allowed.shape)}"
            )
        matching = ((rows > -math.inf) == self.allowed) & (rows < math.inf)  # no NaN either
        same = matching.flatten(1).all(1)
        pairs = zip(structure.additional, self.structure.additional, strict=False)
        for ours, its in pairs:
            if ours.shape == its.shape:
                same &= by_row(ours.isneginf() == its.isneginf(), len(same)).all(1)
        if not structure.same_set(self.structure):
            same = torch.zeros_like(same)
        return self.active.select_rows(same)


def sparsemap(
    scores: Tensor,
    structure: Structure,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
) -> Tensor:
    """SparseMAP marginals: the mean of a sparse distribution over structures.

    With scores t of parts,

        mu = argmax over the convex hull of structures of  <t, mu> + <v, nu> - <mu, mu> / 2,

    where <v, nu> are the additional scores of some structures, such as transitions. Over single
    parts this is sparsemax. The gradient with respect to the scores and the additional scores is
    exact.

    Args:
        scores: `(..., *event)`; the structure defines the event, the rest is the batch.
        structure: see `fewfold.structures`.
        mask: True = keep, broadcast to the scores; False is the same as a score of -inf. An
            element without available parts (a position, a word, a row) is left out, so sizes may
            differ within a batch.
        temperature: divisor of the scores and of the additional scores.
        max_iter: maximum number of oracle calls per instance. An instance that needs more gets
            the best feasible marginals so far; `sparsemap_solution` reports which, and the gap.
        tol: tolerance on the duality gap.

    Returns:
        Marginals of the shape and dtype of the scores. NaN or +inf in an instance makes all of its
        marginals NaN.

    Raises:
        ValueError: if an instance has no structure at all.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([[1.0, 0.2], [0.6, 0.5]]), ff.structures.Assignment())
        tensor([[0.6750, 0.3250],
                [0.3250, 0.6750]])

    Reference: Niculae, Martins, Blondel and Cardie, "SparseMAP: differentiable sparse structured
    inference", 2018.
    """
    scores = _masked(scores, mask)
    _check(structure, temperature)
    limits = _limits(max_iter, tol)
    structure.event_of(scores)
    if scores.is_meta:
        return _meta_marginals(scores, structure)
    wide, structure = _scaled(scores, structure, temperature)
    found = structure.differentiable_marginals(wide) if dispatch.ready(wide) else None
    if found is None:
        solve = sparsemap_marginals
        if torch.compiler.is_compiling():
            known = is_registered(structure)
            solve = opaque_marginals if known else torch.compiler.disable(sparsemap_marginals)
        found = solve(wide, structure, limits)
    return found.to(scores.device, scores.dtype)


def sparsemap_support(
    scores: Tensor,
    structure: Structure,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
) -> Support:
    """Structures with positive weight in `sparsemap`, and their differentiable weights.

    Args:
        scores, structure, mask, temperature, max_iter, tol: as in `sparsemap`.

    Returns:
        A `Support` with atoms `(m, *event)` of zeros and ones; its rows are the flattened batch.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[1.0, 0.2], [0.6, 0.5]])
        >>> support = ff.sparsemap_support(scores, ff.structures.Assignment())
        >>> support.weights, support.atoms.argmax(2)
        (tensor([0.6750, 0.3250]), tensor([[0, 1],
                [1, 0]]))
    """
    return sparsemap_solution(
        scores, structure, mask=mask, temperature=temperature, max_iter=max_iter, tol=tol
    ).support


def sparsemap_solution(
    scores: Tensor,
    structure: Structure,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    warm: Solution | None = None,
) -> Solution:
    """Solve `sparsemap`, and return marginals, support, objective and diagnostics.

    Args:
        scores, structure, mask, temperature, max_iter, tol: as in `sparsemap`.
        warm: solution of an earlier call of the same shape, whose structures are the starting
            point; instances with other feasible structures start from scratch.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[1.0, 0.2], [0.6, 0.5]])
        >>> solution = ff.structured.sparsemap_solution(scores, ff.structures.Assignment())
        >>> solution.objective, solution.converged
        (tensor(0.7113), tensor(True))
    """
    scores = _masked(scores, mask)
    _check(structure, temperature)
    limits = _limits(max_iter, tol)
    event = structure.event_of(scores)
    batch = scores.shape[: scores.dim() - structure.event_dim]
    check_values(
        scores,
        "the number of structures depends on the values of the scores",
        "use sparsemap, whose marginals have the shape of the scores",
    )
    if under_transform():
        raise RuntimeError(
            "the number of structures depends on the values of the scores, which torch.func hides; "
            "inside its transforms use sparsemap"
        )
    wide, structure = _scaled(scores, structure, temperature)
    rows, flat, _ = structure.solver_inputs(wide, None)
    if warm is not None and not isinstance(warm, Solution):
        raise TypeError(f"warm must be a Solution, got {type(warm).__name__}")
    start = None if warm is None else warm.problem.active_for(flat, rows)
    widen = needs_derivatives(scores, *structure.additional)
    active = solve(rows, flat, event, limits, start, widen=widen)
    live = wide.to("cpu", torch.float64).reshape(batch.numel(), event.numel())
    own = active.sum_parts(live)
    if active.codes is not None:
        given = [value.to("cpu", torch.float64) for value in structure.additional]
        more = structure.with_additional(given).flat(batch, event)
        own = own + more.additional_score(active.codes, active.row, event)
    weights: Tensor = _Weights.apply(own, active)
    marginals = active.sum_structures(weights)
    marginals = marginals.masked_fill(active.marginals.isnan(), math.nan)
    total = own.new_zeros(batch.numel()).index_add(0, active.row, own * weights)
    objective = (
        structure.decode_objective(total - marginals.square().sum(1) / 2, event) * temperature
    )
    used = (active.weights > 0).nonzero()[:, 0]  # those of weight zero serve the derivative only
    atoms = _atoms(active, structure, event)[used].to(scores)
    row = active.row[used].to(scores.device)
    support = Support(weights[used].to(scores), atoms, row, batch.numel())
    return Solution(
        marginals.view(scores.shape).to(scores),
        support,
        objective.view(batch).to(scores),
        (structure.scale * temperature * active.gap).view(batch).to(scores),
        active.turns.view(batch).to(scores.device),
        active.converged.view(batch).to(scores.device),
        SolvedProblem(flat, rows > -math.inf, active),
    )


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    check_scores(scores)
    if mask is None:
        return scores
    check_mask(mask, scores)
    return scores.masked_fill(~mask, -math.inf)


def _scaled(scores: Tensor, structure: Structure, temperature: float) -> tuple[Tensor, Structure]:
    """Encoded scores, and structure, divided by the temperature in float64 to avoid overflow."""
    if temperature == 1 and structure.scale == 1:
        return scores, structure
    wide, *more = (
        v.to("cpu", torch.float64) / temperature for v in (scores, *structure.additional)
    )
    return structure.encode_scores(wide), structure.with_additional(more)


def _meta_marginals(scores: Tensor, structure: Structure) -> Tensor:
    """Marginals on device "meta": their shape and dtype, connected to all differentiable inputs."""
    marginals = scores.clone()
    for more in structure.additional:
        marginals = marginals + more.sum().to(marginals)
    return marginals


def _check(structure: Structure, temperature: float) -> None:
    if not isinstance(structure, Structure):
        raise TypeError(
            f"structure must be a value such as ff.structures.KSubset(5), got {structure!r}"
        )
    check_temperature(temperature)


def _limits(max_iter: int, tol: float) -> Limits:
    return Limits(whole_number(max_iter, "max_iter"), positive_number(tol, "tol"))


def _atoms(active: Active, structure: Structure, event: torch.Size) -> Tensor:
    if active.codes is not None:
        return structure.dense(active.codes, event)
    assert active.vectors is not None
    return active.vectors.view(-1, *event)


class _Weights(torch.autograd.Function):
    """Weights as a differentiable function of the scores of their structures."""

    @staticmethod
    def forward(scores: Tensor, active: Active) -> Tensor:
        return active.weights.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Active], output: Tensor) -> None:
        ctx.active = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return weights_jvp(grads[0], ctx.active), None
