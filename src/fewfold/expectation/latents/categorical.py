"""Categorical distribution of a latent."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fewfold._random import multinomial
from fewfold._torch import has_values
from fewfold.expectation.latents.latent import LatentDistribution, zero_where_masked
from fewfold.expectation.latents.noise import exponential, gumbel

__all__ = ["CategoricalLatent"]


@dataclass(frozen=True, eq=False)
class CategoricalLatent(LatentDistribution):
    """One of n categories, with probabilities softmax(scores); atoms are ids."""

    @property
    def event(self) -> torch.Size:
        return self.scores.shape[-1:]

    @cached_property
    def log_probs(self) -> Tensor:
        """(rows, n) log-probabilities, at least float32; -inf in rows masked entirely."""
        return self.compute_log_probs()

    def compute_log_probs(self) -> Tensor:
        """`log_probs` with a new graph, independent of one that was already back-propagated."""
        wide = self.flat.to(self.wide_type)
        empty = (wide.detach() == -math.inf).all(-1, keepdim=True)
        return wide.masked_fill(empty, 0.0).log_softmax(-1).masked_fill(empty, -math.inf)

    @property
    def checked_log_probs(self) -> Tensor:
        """`log_probs`; ValueError for rows masked entirely and rows with NaN or +inf."""
        if not has_values(self.scores):  # rows cannot be checked
            return self.log_probs
        if bool(self.invalid_rows.any()):
            raise ValueError(
                f"row {int(self.invalid_rows.nonzero()[0])} has a score that is NaN or +inf, so "
                "it cannot be sampled; in expect SparseMarginal and Dense return NaN for it"
            )
        empty = (self.log_probs.detach() == -math.inf).all(-1)
        if bool(empty.any()):
            raise ValueError(
                f"row {int(empty.nonzero()[0])} has no unmasked category to sample; leave "
                "such rows out; in expect SparseMarginal and Dense give them nothing"
            )
        return self.log_probs

    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        return _sample(self.checked_log_probs.detach(), draws, generator)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        return self.log_probs[row, atoms]

    def mean(self) -> Tensor:
        return self.checked_log_probs.exp().to(self.scores)

    def mode(self) -> Tensor:
        return self.harden(self.checked_log_probs.detach()).to(self.scores)

    def entropy(self) -> Tensor:
        log_probs = self.compute_log_probs()
        return -(log_probs.exp() * zero_where_masked(log_probs)).sum(-1).to(self.scores)

    def kl(self, prior: Self) -> Tensor:
        log_probs = self.compute_log_probs()
        probs = log_probs.exp()
        used = probs.detach() > 0
        own, others = (torch.where(used, x, 0.0) for x in (log_probs, prior.compute_log_probs()))
        return (probs * (own - others)).sum(-1).to(self.scores)

    def enumerate_atoms(self) -> tuple[Tensor, Tensor]:
        return torch.arange(self.event[0], device=self.scores.device), self.log_probs

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        values, found = self.flat.detach().topk(min(k, self.event[0]), -1)
        return found, values > -math.inf

    def sample_excluding(
        self, chosen: Tensor, valid: Tensor, draws: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        others = self.checked_log_probs.scatter(1, chosen, -math.inf)
        mass = others.exp().sum(-1)
        none = mass.detach().unsqueeze(-1) == 0  # samples of these rows are unused
        log_probs = torch.where(none, 0.0, others.detach()).log_softmax(-1)
        return _sample(log_probs, draws, generator), mass.to(self.scores)

    def sample_distinct(
        self, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample by Gumbel-top-k: the categories with the largest perturbed log-probabilities."""
        log_probs = self.checked_log_probs.detach().double().log_softmax(-1)
        noisy = log_probs + gumbel(log_probs.shape, log_probs, generator)
        found = noisy.topk(min(count, self.event[0]), -1).indices
        valid = log_probs.gather(-1, found) > -math.inf
        return found, valid, log_probs.scatter(-1, found, -math.inf).logsumexp(-1)

    def sample_relaxed(
        self, temperature: float, draws: int, generator: torch.Generator | None
    ) -> Tensor:
        scores = self.checked_log_probs.unsqueeze(1)
        noise = gumbel((self.rows, draws, *self.event), scores, generator)
        return self.relax(scores + noise, temperature).to(self.scores)

    def relax(self, perturbed: Tensor, temperature: float) -> Tensor:
        return _tempered_softmax(perturbed, temperature)

    def harden(self, relaxed: Tensor) -> Tensor:
        categories = torch.arange(relaxed.shape[-1], device=relaxed.device)
        return relaxed.argmax(-1, keepdim=True) == categories

    def atoms_of_vectors(self, vectors: Tensor) -> Tensor:
        return vectors.argmax(-1)

    def vectors_of_atoms(self, atoms: Tensor) -> Tensor:
        categories = torch.arange(self.event[0], device=atoms.device)
        return (atoms.unsqueeze(-1) == categories).to(self.scores)

    def sample_coupled(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        log_probs = self.checked_log_probs
        noisy = log_probs + gumbel(log_probs.shape, log_probs, generator)
        draw = self.harden(noisy.detach())
        # Given the argmax, its value is Gumbel and the others are truncated Gumbel below it.
        waits = exponential(log_probs.shape, log_probs, generator).log()
        first = torch.where(draw, waits, 0.0).sum(-1, keepdim=True)
        later = torch.logaddexp(waits - zero_where_masked(log_probs), first)
        again = -torch.where(draw, waits, later)
        again = again.masked_fill(log_probs.detach() == -math.inf, -math.inf)
        return tuple(values.to(self.scores) for values in (draw, noisy, again))  # type: ignore[return-value]


def _tempered_softmax(values: Tensor, temperature: float) -> Tensor:
    """softmax(values / temperature), stable for arbitrarily low temperatures."""
    below = values - values.detach().amax(-1, keepdim=True)
    return (below / temperature).softmax(-1)


def _sample(log_probs: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    return multinomial(log_probs.exp(), draws, replacement=True, generator=generator)
