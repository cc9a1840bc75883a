"""A linear, low-rank item-item model: a regression like EASE for any number of items."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import positive_number, whole_number
from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import distinct_rows, look_up
from fewfold.distributed.row_shards import RowShards
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.subspace import (
    Powers,
    item_scale,
    subspace_of_blocks,
    subspace_of_log,
)

__all__ = ["BLOCK", "L2_PER_USER", "Directions", "Shortcut"]

BLOCK = 1 << 14  # users whose products are in memory at once
_EXTRA = 32  # directions beyond the rank, with which subspace iteration converges faster


@dataclass(frozen=True, eq=False)
class Shortcut:
    """Scores of items from the items a user has, through the leading directions of the log.

    With X the users x items matrix, n_u and c_i its row and column sums over their means,
    Y = diag(n)^-p X diag(c)^-q and V, w the leading eigenvectors and -values of Y'Y,

        score_ui = strength / sqrt(size of u)  sum_{j in u} G_ij,
        G = diag(c)^q  V diag(w / (w + l2)) V'  diag(c)^-q,

    the ridge regression of every item on all items (as EASE has it) in the space of V. The diagonal
    of G concerns items a user already has, which are never recommended. Entries of X are 1, or the
    roots of `Interactions.weights`.

    Attributes:
        table: (items, rank), V times the root of its filter; in a group the rows i of this process,
            i % world = rank.
        scale: (items,), c^q of all items.
        strength: weight of these scores relative to those of another model.
        group: processes that have the table.
    """

    table: Tensor
    scale: Tensor
    strength: float
    group: Group = field(default_factory=Group)

    @classmethod
    def fit(
        cls,
        train: Interactions,
        rank: int = 192,
        *,
        l2: float | None = None,
        powers: tuple[float, float] = (0.3, 0.35),
        strength: float = 130.0,
        seed: int = 0,
    ) -> "Shortcut":
        """Fit the leading directions of the log and the regression in their space.

        Args:
            train: users x items.
            rank: number of directions, at most that of the items.
            l2: penalty of the regression; by default proportional to the number of users.
            powers: p for users and q for items; 0 does not damp active users or popular items.
            strength: see the class.
            seed: of the initial subspace.
        """
        found = Directions.find(train, rank, powers=powers, seed=seed)
        return found.shortcut(train.users * L2_PER_USER if l2 is None else l2, strength)

    def to(self, device: torch.device) -> "Shortcut":
        """Return the same on a device."""
        return replace(self, table=self.table.to(device), scale=self.scale.to(device))

    def queries(self, history: Jagged) -> Tensor:
        """Return user vectors, (rows, rank), whose inner products with `vectors` are the scores."""
        table, ids = self.table, history.values
        if self.group.world > 1:
            table, ids = distinct_rows(self.group, table, ids, "shortcut")
        found = F.embedding_bag(
            ids, table, history.offsets, mode="sum", include_last_offset=True,
            per_sample_weights=1 / self.scale[history.values],
        )  # fmt: skip
        return found * (self.strength / history.lengths.clamp(min=1).sqrt()).unsqueeze(1)

    @property
    def vectors(self) -> Tensor:
        """Item vectors, (items, rank), gathered in every process."""
        return self.group.merge(self.own_vectors, len(self.scale), "shortcut")

    @property
    def own_vectors(self) -> Tensor:
        """Item vectors of the items that this process has."""
        return self.table * self.scale[self.group.rank :: self.group.world].unsqueeze(1)

    def gathered(self) -> "Shortcut":
        """Return the same with the whole table in every process."""
        table = self.group.merge(self.table, len(self.scale), "shortcut")
        return Shortcut(table, self.scale, self.strength)

    def stored(self) -> Tensor | RowShards:
        """Return the table as a model is saved: sharded if it is."""
        if self.group.world == 1:
            return self.table
        return RowShards(self.table, len(self.scale), self.group)


L2_PER_USER = 0.025


@dataclass(frozen=True, eq=False)
class Directions:
    """Leading directions of a log, which give a `Shortcut` for any l2 and strength.

    Attributes:
        vectors: (items, rank), V; in a group the rows i of this process, i % world = rank.
        values: (rank,), w, in descending order.
        scale: (items,), c^q of all items.
        group: processes that have the vectors.
    """

    vectors: Tensor
    values: Tensor
    scale: Tensor
    group: Group = field(default_factory=Group)

    @classmethod
    def find(
        cls,
        train: Interactions,
        rank: int,
        *,
        powers: Powers = (0.3, 0.35),
        seed: int = 0,
    ) -> "Directions":
        """Compute the directions of a log in memory, by subspace iteration in one process."""
        rank, width = _sizes(rank, train.items, train.users)
        scale = item_scale(train.counts(), powers)
        found = subspace_of_log(train, width, scale, powers, seed)
        return cls._within(*found, scale, rank, Group())

    @classmethod
    def of_blocks(
        cls,
        blocks: Callable[[], Iterator[Interactions]],
        counts: Tensor,
        users: int,
        rank: int,
        *,
        powers: Powers = (0.3, 0.35),
        seed: int = 0,
        group: Group | None = None,
    ) -> "Directions":
        """Compute the directions of a log that is given block by block, once in every round.

        Args:
            blocks: returns all users of the log, some at a time, the same in all processes.
            counts: (items,) number of users of each item.
            users: number of all users.
            rank, powers, seed: as in `Shortcut.fit`.
            group: processes that call this together and get a part each; this one by default.
        """
        rank, width = _sizes(rank, len(counts), users)
        scale, mean = item_scale(counts, powers), float(counts.sum()) / max(users, 1)
        group = group or Group()
        found = subspace_of_blocks(blocks, width, scale, powers, seed, mean=mean, group=group)
        return cls._within(*found, scale, rank, group)

    @classmethod
    def _within(
        cls, basis: Tensor, gram: Tensor, scale: Tensor, rank: int, group: Group
    ) -> "Directions":
        """Return the leading directions within a subspace, from the Gram matrix of its products."""
        values, turn = torch.linalg.eigh(gram)
        values, turn = values.flip(0)[:rank].clamp(min=0), turn.flip(1)[:, :rank].float()
        return cls(basis @ turn, values, scale, group)

    def shortcut(self, l2: float, strength: float) -> Shortcut:
        """Return the shortcut with this penalty and strength."""
        positive_number(strength, "strength")
        by = (self.values / (self.values + l2)).sqrt().float()
        return Shortcut(self.vectors * by, self.scale, strength, self.group)

    def of_items(self, ids: Tensor) -> "Directions":
        """Return the directions of these items alone, numbered in their order, in one process."""
        vectors = look_up(self.group, self.vectors, ids, "shortcut")
        return Directions(vectors, self.values, self.scale[ids])


def _sizes(rank: int, items: int, users: int) -> tuple[int, int]:
    """Return the rank that a log of this size has, and the width of the subspace."""
    whole_number(rank, "rank")
    rank = min(rank, items, max(users, 1))
    return rank, min(rank + _EXTRA, items)
