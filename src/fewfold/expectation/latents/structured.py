"""Gibbs distribution over structures: probabilities proportional to exp(score)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold._torch import check_values, has_values, under_vmap
from fewfold.expectation.latents.latent import (
    LatentDistribution,
    can_enumerate,
    enumerate_structures,
    flatten_pairs,
    zero_where_masked,
)
from fewfold.structured.gibbs import gibbs_marginals
from fewfold.structured.structures.batch_rows import clone_if_inference
from fewfold.structured.structures.score_errors import raise_infeasible
from fewfold.structured.structures.structure import Structure

__all__ = ["StructuredLatent"]


@dataclass(frozen=True, eq=False)
class StructuredLatent(LatentDistribution):
    """One of the structures of a set; atoms are 0/1 tensors of the shape of its scores.

    Attributes:
        over: the set of structures, with its additional scores.
        uniform_scores: whether all scores are 0 or -inf.
    """

    over: Structure
    uniform_scores: bool = False
    propagates_nan: ClassVar[bool] = False

    @property
    def structure(self) -> Structure:
        return self.over

    @property
    def event(self) -> torch.Size:
        return self.over.event_of(self.scores)

    @property
    def possible(self) -> Tensor:
        """Mask of the parts whose score is not -inf."""
        return self.flat.detach() > -math.inf

    @property
    def wide(self) -> Tensor:
        """Scores with -inf replaced by 0; double, because sums of many scores are compared."""
        return zero_where_masked(self.flat).double()

    @property
    def flat_structure(self) -> Structure:
        """The structure with additional scores for the flattened batch."""
        return self.over.flat(self.batch, self.event)

    def totals(self, atoms: Tensor, row: Tensor) -> Tensor:
        """(m,) score of each structure, double."""
        found = torch.where(atoms > 0.5, self.flat.double()[row], 0.0).flatten(1).sum(1)
        if not self.over.additional:
            return found
        check_values(
            atoms,
            f"the additional scores of {self.kind} are picked by the values of structures",
            "leave them out, or use another device",
        )
        codes = self.over.codes((atoms > 0.5).cpu(), self.event)
        own = self.flat_structure.with_additional(
            [value.cpu() for value in self.flat_structure.additional]
        )
        return found + own.additional_score(codes, row.cpu(), self.event).to(found)

    def log_partition(self) -> Tensor:
        """(rows,) log of the sum of exp(score) over all structures, double."""
        try:
            found = self.flat_structure.log_partition(self.wide, mask=self.possible)
        except NotImplementedError:
            if self.uniform_scores and self._all_possible():
                count = math.log(self.over.count(self.event))
                return self.wide.new_full((self.rows,), count)
            if not can_enumerate(self.over, self.event):
                raise
            return self._enumerate_scored()[1].logsumexp(-1)
        raise_infeasible(found.detach() == -math.inf, self.over)
        return found

    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        if under_vmap():
            raise RuntimeError(
                f"{self.kind} cannot be sampled inside torch.func.vmap; give expect the whole "
                "batch, whose rows are independent, or use Dense()"
            )
        found = self.flat_structure.sample(
            self.wide.detach(), draws, mask=self.possible, generator=generator
        )
        return found.transpose(0, 1).to(self.scores)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        return (self.totals(atoms, row) - self.log_partition()[row]).to(self.wide_type)

    def mean(self) -> Tensor:
        try:
            found = gibbs_marginals(self.wide, self.flat_structure, mask=self.possible)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{error}, so that the probabilities of its parts are unknown; write "
                "SparseMarginal(), or StraightThrough(argmax=True, identity=True)"
            ) from None
        return found.to(self.scores)

    def mode(self) -> Tensor:
        if under_vmap():
            raise RuntimeError(
                f"the best {self.kind} cannot be found inside torch.func.vmap; give expect the "
                "whole batch, whose rows are independent, or use Dense()"
            )
        return self.flat_structure.argmax(self.wide.detach(), mask=self.possible).to(self.scores)

    def entropy(self) -> Tensor:
        """Entropy as log Z - d log Z(t scores) / dt at t = 1."""
        given = (self.scores, *self.over.additional)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
        with torch.inference_mode(False), torch.enable_grad():
            factor = torch.ones(self.rows, dtype=self.wide.dtype, device=self.wide.device)
            factor.requires_grad_()
            grown = [
                _scale_rows(clone_if_inference(value), factor)
                for value in self.flat_structure.additional
            ]
            scores = _scale_rows(clone_if_inference(self.wide), factor)
            total = self.flat_structure.with_additional(grown).log_partition(
                scores, mask=clone_if_inference(self.possible)
            )
            (slope,) = torch.autograd.grad(total.sum(), factor, create_graph=tracked)
            found = (total - slope).clamp(min=0).to(self.scores)
        return found if tracked else found.detach()

    def kl(self, prior: Self) -> Tensor:
        """KL divergence: difference of log-partitions plus the mean difference of scores.

        The marginal of each score is the gradient of the log-partition with respect to it.
        """
        if prior.uniform_scores:
            return prior.log_partition().to(self.scores) - self.entropy()
        own, its = _align_additional_scores(self.flat_structure, prior.flat_structure)
        given = (self.scores, *own.additional)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [_as_differentiable(value) for value in (self.wide, *own.additional)]
            total = own.with_additional(leaves[1:]).log_partition(
                leaves[0], mask=clone_if_inference(self.possible)
            )
            marginals = torch.autograd.grad(total.sum(), leaves, create_graph=tracked)
        if not tracked:
            total, leaves = total.detach(), [value.detach() for value in leaves]
        found = prior.log_partition() - total
        prior_values = (prior.flat, *its.additional)
        for marginal, here, there in zip(marginals, leaves, prior_values, strict=True):
            others = torch.where(marginal.detach() > 0, there.double(), 0.0)
            found = found + (marginal * (zero_where_masked(here) - others)).flatten(1).sum(1)
        return found.to(self.scores)

    def enumerate_atoms(self) -> tuple[Tensor, Tensor]:
        atoms, totals = self._enumerate_scored()
        return atoms, totals.log_softmax(-1).to(self.wide_type)

    def _enumerate_scored(self) -> tuple[Tensor, Tensor]:
        """All structures `(structures, *event)`, and their scores (rows, structures), double."""
        every = enumerate_structures(self.over, self.event).to(self.scores)
        atoms, row = flatten_pairs(every.expand(self.rows, *every.shape))
        totals = self.totals(atoms, row).view(self.rows, len(every))
        never = (totals.detach() == -math.inf).all(1)
        blocked = never & self.possible.flatten(1).any(1)
        if under_vmap():  # rows cannot be checked; one without any structure becomes NaN
            never = never & ~blocked
        elif not has_values(never) or not bool(never.any()):
            return every, totals
        elif bool(blocked.any()):
            raise ValueError(
                f"row {int(never.nonzero()[0])} has no {self.kind} of {tuple(self.event)} that its "
                "mask allows, and Dense does not enumerate smaller ones; use SparseMarginal or "
                "ScoreFunction"
            )
        # Rows whose parts are all masked get the empty structure.
        empty = totals.new_full((self.rows, 1), -math.inf).masked_fill(never.unsqueeze(1), 0.0)
        every = torch.cat([every, torch.zeros_like(every[:1])])
        return every, torch.cat([totals, empty], 1)

    def uniform(self) -> Self:
        over = self.over.with_additional([_uniform_scores(value) for value in self.over.additional])
        return replace(self, scores=_uniform_scores(self.scores), over=over, uniform_scores=True)

    def with_scores(self, scores: Tensor, over: Structure | None = None) -> Self:
        if over is None and self.over.additional:
            raise ValueError(
                f"{self.kind} has additional scores, and those of the prior are unknown; write "
                "prior_over=, a structure with those of the prior or the one of the latent"
            )
        found = super().with_scores(scores)
        if over is None:
            return found
        if not self.over.same_set(over):
            raise ValueError(
                f"prior_over must equal {self.over!r} except for its additional scores, got "
                f"{over!r}"
            )
        return replace(found, over=over)

    def _all_possible(self) -> bool:
        """Whether no score is -inf."""
        given = (self.scores, *self.over.additional)
        return all(bool((value > -math.inf).all()) for value in given)


def _scale_rows(value: Tensor, factor: Tensor) -> Tensor:
    """Multiply each row by its factor, preserving -inf."""
    scaled = zero_where_masked(value) * factor.view(-1, *[1] * (value.dim() - 1))
    return torch.where(value.detach() == -math.inf, -math.inf, scaled)


def _as_differentiable(value: Tensor) -> Tensor:
    """The tensor itself if it requires a gradient, otherwise a leaf copy that does."""
    return value if value.requires_grad else clone_if_inference(value).detach().requires_grad_()


def _align_additional_scores(one: Structure, other: Structure) -> tuple[Structure, Structure]:
    """Give both structures the same additional scores and shapes, filling in zeros."""
    both = [one, other]
    for name in one.additional_names:
        values = [getattr(each, name) for each in both]
        if not any(isinstance(value, Tensor) for value in values):
            continue
        like = next(value for value in values if isinstance(value, Tensor))
        filled = [v if isinstance(v, Tensor) else torch.zeros_like(like) for v in values]
        # One structure may share a table across positions that the other has per position.
        for i, value in enumerate(torch.broadcast_tensors(*filled)):
            both[i] = replace(both[i], **{name: value.double()})  # type: ignore[type-var]
    return both[0], both[1]


def _uniform_scores(scores: Tensor) -> Tensor:
    """Zero scores, with -inf preserved."""
    return torch.zeros_like(scores).masked_fill(scores == -math.inf, -math.inf)
