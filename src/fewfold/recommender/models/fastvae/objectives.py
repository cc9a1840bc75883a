"""Training objectives of the decoder: losses of each user's items, from scores of the items."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fewfold.losses.named import entmax_loss
from fewfold.losses.sampled import sampled_softmax_loss
from fewfold.losses.sampled_scores import Items
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.sampling.proposal import Proposal

__all__ = ["Entmax", "FullSoftmax", "Objective", "SampledSoftmax", "smoothed_log", "training_work"]

_TABLE_ROW = 40_000  # multiply-adds that take as long as reading and updating a row of a table


def smoothed_log(counts: Tensor) -> Tensor:
    """Return log(2 + counts): an item without interactions may be a positive of a new user."""
    return (counts + 1).log1p()


class Objective(Protocol):
    """A reconstruction loss of each user's items, summed over users and items.

    A dataclass with a field `weights` is trained with the weights of the interactions: the field
    is set to those of a batch, (m,) one for each of its items.
    """

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        """Return the summed loss for queries (B, d), items (M, d) and the items of each row."""


@dataclass(frozen=True)
class FullSoftmax:
    """Multinomial likelihood over all items: Mult-VAE. Costs batch x items."""

    weights: Tensor | None = field(default=None, repr=False, compare=False)

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        log_probs = (queries @ items.T).log_softmax(1)
        return _total(-log_probs[history.row, history.values], self.weights)


@dataclass(frozen=True)
class SampledSoftmax:
    """Multinomial likelihood estimated from items sampled from a proposal.

    `train` fits the proposal to the items and refreshes it as they change.

    Attributes:
        proposal: from which items are sampled.
        samples: number for each user.
        shared: sample for all users of a step together.
        weights: of a batch; see `Objective`.
        popularity: function from the numbers of interactions (items,) to the counts to which
            `train` fits the proposal, by default log(2 + count). The FastVAE paper names the count
            itself, ``lambda counts: counts``, its power of 3/4 and log(1 + count), `torch.log1p`,
            which its experiments use. An item with interactions must not be given zero.
    """

    proposal: Proposal
    samples: int = 200
    shared: bool = False
    weights: Tensor | None = field(default=None, repr=False, compare=False)
    popularity: Callable[[Tensor], Tensor] = field(default_factory=lambda: smoothed_log, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.popularity):
            raise TypeError(
                f"popularity must be a function of the counts, got "
                f"{type(self.popularity).__name__}; write popularity=torch.log1p, or "
                "popularity=lambda counts: counts**0.75"
            )

    def __call__(
        self, queries: Tensor, items: Items, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        losses = sampled_softmax_loss(
            queries, items, (history.values, history.offsets), self.proposal, samples=self.samples,
            shared=self.shared, reduction="sum" if self.weights is None else "none",
            generator=generator,
        )  # fmt: skip
        return _total(losses, self.weights)


@dataclass(frozen=True)
class Entmax:
    """Fenchel-Young loss of entmax with a row's items as target. Costs batch x items."""

    alpha: float = 1.5
    weights: Tensor | None = field(default=None, repr=False, compare=False)

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        given = queries.new_ones(len(history.values)) if self.weights is None else self.weights
        given = given.to(queries)
        size = queries.new_zeros(len(queries)).index_add(0, history.row, given)
        target = queries.new_zeros(len(queries), len(items))
        target[history.row, history.values] = given / size[history.row]
        some = history.lengths > 0  # an empty row has no target
        losses = entmax_loss((queries @ items.T)[some], target[some], self.alpha, reduction="none")
        return (losses * size[some]).sum()


def _total(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of the losses, which may be one already, with these weights."""
    return losses.sum() if weights is None else (losses * weights.to(losses)).sum()


def training_work(log: Interactions, steps: int) -> float:
    """Return the multiply-adds of training on a log, with `steps` users in all.

    The step of a user reads the rows of their items in two tables, and those of sampled items.
    """
    users = max(int((log.jagged.lengths > 0).sum()), 1)
    rows = 2 * log.pairs / users + SampledSoftmax.samples
    return float(steps) * rows * _TABLE_ROW
