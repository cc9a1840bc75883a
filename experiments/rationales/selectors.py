"""Ways to select sentences by scores: attention, SparseMAP, and sampled masks.

A cost is a function `cost(weights, row) -> (m,)`: the loss of review `row` (m,) if its sentences
have these weights (m, longest).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import fewfold as ff

Cost = Callable[[Tensor, Tensor], Tensor]
SHARE = 0.2  # of the sentences that are selected, where it can be set
PENALTY = 5.0  # of the distance from that share, where it can not be set
BONUS = 1.0  # of two selected sentences that are neighbours


def counts(mask: Tensor) -> Tensor:
    """Return how many sentences of each review are selected (n,): the share, rounded up."""
    return (SHARE * mask.sum(1)).ceil().long()


def top(scores: Tensor, mask: Tensor) -> Tensor:
    """Return ones (n, longest) at the best sentences of each review."""
    rank = scores.masked_fill(~mask, -math.inf).argsort(1, descending=True).argsort(1)
    return (rank < counts(mask).unsqueeze(1)).to(scores)


class Selector(ABC):
    """Base class: a loss for training, and weights for evaluation."""

    @abstractmethod
    def loss(self, scores: Tensor, mask: Tensor, cost: Cost) -> Tensor:
        """Return the loss of each review (n,), from scores and mask (n, longest)."""

    @abstractmethod
    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return weights (n, longest) for evaluation; what has weight is selected."""


class Relaxed(Selector):
    """Deterministic, differentiable weights, with which the cost is evaluated once."""

    @abstractmethod
    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return weights (n, longest) for training."""

    def loss(self, scores: Tensor, mask: Tensor, cost: Cost) -> Tensor:
        return cost(self.soft(scores, mask), torch.arange(len(scores)))

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return self.soft(scores, mask)


class Everything(Relaxed):
    """All sentences."""

    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        return mask.to(scores)


class Random(Relaxed):
    """Sentences at random."""

    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        return top(torch.rand_like(scores), mask)


@dataclass(frozen=True)
class Attention(Relaxed):
    """Attention with a map; if it is dense, the sentences with most weight are selected."""

    omega: ff.Omega

    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        return self.omega.argmax(scores, mask=mask)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        found = self.soft(scores, mask)
        return found * top(scores, mask) if self.omega.dense else found


class Budget(Relaxed):
    """SparseMAP over subsets of a number of sentences."""

    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        return ff.ksubset(scores, counts(mask).unsqueeze(1).to(scores), mask=mask)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return top(scores, mask)


class SequentialBudget(Relaxed):
    """SparseMAP over such subsets, with a bonus for neighbours that are both selected."""

    def soft(self, scores: Tensor, mask: Tensor) -> Tensor:
        return self._each(ff.sparsemap, scores, mask)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        def best(own: Tensor, structure: ff.structures.Structure) -> Tensor:
            return structure.argmax(own)

        return self._each(best, scores, mask)

    def _each(
        self, find: Callable[[Tensor, ff.structures.Structure], Tensor], scores: Tensor,
        mask: Tensor,
    ) -> Tensor:  # fmt: skip
        sizes, wanted = mask.sum(1).tolist(), counts(mask).tolist()
        found = [
            find(own[:size], ff.structures.SequentialSubset(k, BONUS))
            for own, size, k in zip(scores, sizes, wanted, strict=True)
        ]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


def _distance(share: Tensor) -> Tensor:
    return PENALTY * (share - SHARE).abs()


@dataclass(frozen=True)
class Bernoulli(Selector):
    """Independent bits, with the score function; the probable ones in evaluation.

    Reference: Lei, Barzilay and Jaakkola, "Rationalizing neural predictions", 2016.
    """

    samples: int = 2

    def loss(self, scores: Tensor, mask: Tensor, cost: Cost) -> Tensor:
        estimator = ff.ScoreFunction(self.samples, ff.expectation.LeaveOneOut())

        def penalised(atoms: Tensor, row: Tensor) -> Tensor:
            return cost(atoms, row) + _distance(atoms.sum(1) / mask[row].sum(1))

        found = ff.expect(penalised, scores, estimator, ff.structures.Bits(), mask=mask)
        return found.surrogate

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return ((scores > 0) & mask).to(scores)


@dataclass(frozen=True)
class Concrete(Selector):
    """Hard concrete gates, reparameterised; without noise in evaluation.

    Reference: Bastings, Aziz and Titov, "Interpretable neural predictions with differentiable
    binary variables", 2019.
    """

    temperature: float = 2 / 3
    stretch: float = 1.2

    def loss(self, scores: Tensor, mask: Tensor, cost: Cost) -> Tensor:
        gates = ff.distributions.BinaryHardConcrete(scores, self.temperature, self.stretch)
        share = (gates.nonzero * mask).sum(1) / mask.sum(1)
        return cost(gates.rsample() * mask, torch.arange(len(scores))) + _distance(share)

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        open_gates = self.stretch * scores.sigmoid() - (self.stretch - 1) / 2
        return open_gates.clamp(0, 1) * mask


SELECTORS: dict[str, Selector] = {
    "all sentences": Everything(),
    "random": Random(),
    "softmax, top k": Attention(ff.Shannon()),
    "1.5-entmax": Attention(ff.Tsallis(1.5)),
    "sparsemax": Attention(ff.Gini()),
    "fusedmax": Attention(ff.maps.Fused(0.1)),
    "Bernoulli": Bernoulli(),
    "hard concrete": Concrete(),
    "SparseMAP, budget": Budget(),
    "SparseMAP, sequence": SequentialBudget(),
}
