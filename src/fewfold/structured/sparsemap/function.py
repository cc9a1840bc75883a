"""SparseMAP: a few weighted structures, or their marginals, as a function of scores."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold import _native
from fewfold._check import (
    check_mask,
    check_scores,
    check_temperature,
    positive_number,
    whole_number,
)
from fewfold._torch import check_values
from fewfold.structured.sparsemap.marginals import needs_derivatives, sparsemap_marginals
from fewfold.structured.sparsemap.operator import is_registered, opaque_marginals
from fewfold.structured.sparsemap.solver import Active, Limits, solve, weights_jvp
from fewfold.structured.structures.batch_rows import by_row
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support

__all__ = ["Solution", "sparsemap", "sparsemap_solution", "sparsemap_support"]


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver knows of a batch of instances.

    Attributes:
        marginals: of the shape of the scores.
        support: the structures, ones at their parts, and their weights.
        objective: (batch,) the score of the mix less half the squared norm of its marginals.
        gap: (batch,) at most so much is missing to the best objective there is.
        iterations: (batch,) int64, calls of the oracle.
        converged: (batch,) bool, whether the gap is within the tolerance, or within what rounding
            leaves of scores of this size.
        problem: what was solved, so that a later call can start from it.
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
    """A problem and its active structures.

    Attributes:
        structure: with additional scores for every instance.
        allowed: `(rows, *event)` the parts that could be used.
        active: the structures that were found.
    """

    structure: Structure
    allowed: Tensor
    active: Active

    def active_for(self, structure: Structure, rows: Tensor) -> Active:
        """The structures of those instances in which the same ones are possible as here."""
        if rows.shape != self.allowed.shape or structure.event_dim != self.structure.event_dim:
            raise ValueError(
                f"warm must be a solution for scores of the same shape, {tuple(rows.shape)} with "
                f"the batch flattened, got one for {tuple(self.allowed.shape)}"
            )
        usual = ((rows > -math.inf) == self.allowed) & (rows < math.inf)  # no NaN either
        same = usual.flatten(1).all(1)
        pairs = zip(structure.additional, self.structure.additional, strict=False)
        for mine, its in pairs:
            if mine.shape == its.shape:
                same &= by_row(mine.isneginf() == its.isneginf(), len(same)).all(1)
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
    """Marginals of a few structures: which parts the best mix of structures has, and how much.

    With a structure's parts as a 0/1 vector a and the scores t of parts,

        mu = argmax over mixes of structures of  <t, mu> + <v, nu> - <mu, mu> / 2,

    where <v, nu> are additional scores that some structures have, such as transitions. For one
    part of many this is sparsemax. The gradient is exact, to the scores and the additional ones.

    Args:
        scores: `(..., *event)`; the event is what the structure says, the rest is the batch.
        structure: see `fewfold.structures`.
        mask: True = keep, broadcast to the scores; the same as scores of -inf. What has no part
            left (a position, a word, a row) is left out: so sizes may differ within a batch.
        temperature: what scores, additional ones too, are divided by.
        max_iter: calls of the oracle for an instance, at most. An instance that needs more gets
            the best mix found so far; `sparsemap_solution` says which, and how far it may be off.
        tol: of the duality gap.

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
    found = structure.differentiable_marginals(wide) if _native.ready(wide) else None
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
    """The structures that `sparsemap` mixes, and their weights, which carry the gradient.

    Args:
        scores, structure, mask, temperature, max_iter, tol: as in `sparsemap`.

    Returns:
        Atoms `(m, *event)` of zeros and ones; rows are the instances of the batch, flattened.

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
    """All that the solver of `sparsemap` knows.

    Args:
        scores, structure, mask, temperature, max_iter, tol: as in `sparsemap`.
        warm: the solution of an earlier call of the same shape, whose structures to start from;
            an instance in which others are possible than there starts anew.

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
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "how many structures there are depends on the scores, which torch.func does not show; "
            "inside its transforms use sparsemap"
        )
    wide, structure = _scaled(scores, structure, temperature)
    rows, made, _ = structure.solver_inputs(wide, None)
    if warm is not None and not isinstance(warm, Solution):
        raise TypeError(f"warm must be a Solution, got {type(warm).__name__}")
    start = None if warm is None else warm.problem.active_for(made, rows)
    widen = needs_derivatives(scores, *structure.additional)
    active = solve(rows, made, event, limits, start, widen=widen)
    live = wide.to("cpu", torch.float64).reshape(batch.numel(), event.numel())
    own = active.sum_parts(live)
    if active.codes is not None:
        given = [value.to("cpu", torch.float64) for value in structure.additional]
        more = structure.with_additional(given).flat(batch, event)
        own = own + more.additional_score(active.codes, active.row, event)
    weights: Tensor = _Weights.apply(own, active)
    marginals = active.sum_structures(weights)
    odd = active.marginals.isnan()
    marginals = marginals.masked_fill(odd, math.nan)
    total = own.new_zeros(batch.numel()).index_add(0, active.row, own * weights)
    objective = (
        structure.decode_objective(total - marginals.square().sum(1) / 2, event) * temperature
    )
    used = (active.weights > 0).nonzero()[:, 0]  # others are there for the derivative alone
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
        SolvedProblem(made, rows > -math.inf, active),
    )


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    check_scores(scores)
    if mask is None:
        return scores
    check_mask(mask, scores)
    return scores.masked_fill(~mask, -math.inf)


def _scaled(scores: Tensor, structure: Structure, temperature: float) -> tuple[Tensor, Structure]:
    """Scores, additional ones too, at this temperature; no narrow type overflows on the way."""
    if temperature == 1 and structure.scale == 1:
        return scores, structure
    wide, *more = (
        v.to("cpu", torch.float64) / temperature for v in (scores, *structure.additional)
    )
    return structure.encode_scores(wide), structure.with_additional(more)


def _meta_marginals(scores: Tensor, structure: Structure) -> Tensor:
    """Marginals on device "meta": shape and dtype, and the inputs that a gradient goes to."""
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
    """The weights as a function of the scores of their structures."""

    @staticmethod
    def forward(scores: Tensor, active: Active) -> Tensor:
        return active.weights.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Active], output: Tensor) -> None:
        ctx.active = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return weights_jvp(grads[0], ctx.active), None
