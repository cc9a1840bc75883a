"""The law of one of n categories."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fewfold._torch import has_values
from fewfold.expectation.latents.latent import Law, zeroed
from fewfold.expectation.latents.noise import exponential, gumbel

__all__ = ["CategoryLaw", "cooled"]


@dataclass(frozen=True, eq=False)
class CategoryLaw(Law):
    """One of n categories, by softmax; atoms are ids."""

    @property
    def event(self) -> torch.Size:
        return self.scores.shape[-1:]

    @cached_property
    def log_probs(self) -> Tensor:
        """(rows, n), at least float32; -inf in a row with nothing kept."""
        return self.fresh()

    def fresh(self) -> Tensor:
        """The same with a graph of its own, whatever became of that of the draws."""
        wide = self.flat.to(self.wide_type)
        empty = (wide.detach() == -math.inf).all(-1, keepdim=True)
        return wide.masked_fill(empty, 0.0).log_softmax(-1).masked_fill(empty, -math.inf)

    @property
    def drawable(self) -> Tensor:
        """The same; rows with nothing kept are refused, and those with a NaN."""
        if not has_values(self.scores):  # no row can be refused
            return self.log_probs
        if bool(self.odd.any()):
            raise ValueError(
                f"row {int(self.odd.nonzero()[0])} has a score that is NaN or +inf, so nothing can "
                "be drawn; in expect SparseMarginal and Dense answer such rows with NaN"
            )
        empty = (self.log_probs.detach() == -math.inf).all(-1)
        if bool(empty.any()):
            raise ValueError(
                f"row {int(empty.nonzero()[0])} has no category left, so none can be drawn; leave "
                "such rows out; in expect SparseMarginal and Dense give them nothing"
            )
        return self.log_probs

    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        return _drawn(self.drawable.detach(), draws, generator)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        return self.log_probs[row, atoms]

    def entropy(self) -> Tensor:
        log_probs = self.fresh()
        return -(log_probs.exp() * zeroed(log_probs)).sum(-1).to(self.scores)

    def kl(self, prior: Self) -> Tensor:
        log_probs = self.fresh()
        probs = log_probs.exp()
        used = probs.detach() > 0
        own, others = (torch.where(used, x, 0.0) for x in (log_probs, prior.fresh()))
        return (probs * (own - others)).sum(-1).to(self.scores)

    def every(self) -> tuple[Tensor, Tensor]:
        return torch.arange(self.event[0], device=self.scores.device), self.log_probs

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        values, found = self.flat.detach().topk(min(k, self.event[0]), -1)
        return found, values > -math.inf

    def outside(
        self, chosen: Tensor, valid: Tensor, draws: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        others = self.drawable.scatter(1, chosen, -math.inf)
        mass = others.exp().sum(-1)
        none = mass.detach().unsqueeze(-1) == 0  # what is drawn there has no meaning
        law = torch.where(none, 0.0, others.detach()).log_softmax(-1)
        return _drawn(law, draws, generator), mass.to(self.scores)

    def relaxed(self, temperature: float, draws: int, generator: torch.Generator | None) -> Tensor:
        scores = self.drawable.unsqueeze(1)
        noise = gumbel((self.rows, draws, *self.event), scores, generator)
        return cooled(scores + noise, temperature).to(self.scores)

    def coupled(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        log_probs = self.drawable
        noisy = log_probs + gumbel(log_probs.shape, log_probs, generator)
        every = torch.arange(self.event[0], device=noisy.device)
        draw = noisy.detach().argmax(-1, keepdim=True) == every
        # the largest is Gumbel itself, the others are Gumbel below it
        waits = exponential(log_probs.shape, log_probs, generator).log()
        first = torch.where(draw, waits, 0.0).sum(-1, keepdim=True)
        later = torch.logaddexp(waits - zeroed(log_probs), first)
        again = -torch.where(draw, waits, later)
        again = again.masked_fill(log_probs.detach() == -math.inf, -math.inf)
        return tuple(values.to(self.scores) for values in (draw, noisy, again))  # type: ignore[return-value]


def cooled(values: Tensor, temperature: float) -> Tensor:
    """softmax(values / temperature), which no temperature is too low for."""
    below = values - values.detach().amax(-1, keepdim=True)
    return (below / temperature).softmax(-1)


def _drawn(log_probs: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    return torch.multinomial(log_probs.exp(), draws, replacement=True, generator=generator)
