"""Tables of anchors of which each process has the weights of some items."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import distinct_rows, look_up
from fewfold.distributed.shared_batch import own_sums
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.embeddings.table.sparse_rows import draw_slots
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.batch_samples import batch_loss
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.models.fastvae.own_scores import MappedScores
from fewfold.recommender.models.fastvae.sharded_rows import (
    ShardedRows,
    check_shares,
    drawn_rows,
    sum_shared,
)
from fewfold.recommender.ranking.sharded_ranking import own_items
from fewfold.sampling.item_rows import ItemRows

__all__ = ["ShardedAnchoredTables"]

_BLOCK = 1 << 16  # rows of each process that are merged at once


class ShardedAnchoredTables(AnchoredTables):
    """`AnchoredTables` in several processes: all have the anchors, each the rows of its items.

    Row i of the transform is row i // world of rank i % world. Owners sum the inputs of each row of
    a batch and score the sampled items, as in `ShardedTables`; the gradients of the anchors are
    summed with those of the layers, in the order of the ranks, so that all processes keep the same.
    The initial weights are those of `AnchoredTables` with the same seed.

    `finalize` gives all rows to every process, rounded as they are saved: from then on nothing is
    exchanged for the vectors, and each process ranks its own items.

    In a training step each process sends what it sends with `ShardedTables`, with the numbers of
    the anchors among those of the layers.

    Args:
        items: number of items, in all processes.
        anchors: how many, or `Anchors`; their number must be given.
        hidden: width of the input vectors.
        latent: width of the latent.
        group: the processes; by default the initialised process group, or this process alone.

    Example:
        >>> from fewfold.recommender import Anchors, FastVAE, ShardedAnchoredTables
        >>> tables = ShardedAnchoredTables(1000, Anchors(count=16, width=4))
        >>> model = FastVAE(tables)  # in each process
        >>> len(model.table.transform), tables.group.world
        (1000, 1)
    """

    def __init__(
        self,
        items: int,
        anchors: int | str | Anchors,
        hidden: int = 200,
        latent: int = 63,
        group: Group | None = None,
    ) -> None:
        super().__init__(items, anchors, hidden, latent)
        self.group = Group.current() if group is None else group
        check_shares(self.group, items)
        if self.group.world > 1:
            self._own_rows = slice(self.group.rank, None, self.group.world)
            if self.options.count is None:
                raise ValueError(
                    f"the number of anchors is found by one process, got {self.group.world}; "
                    "say how many: Anchors(255)"
                )

    @property
    def _has_all_rows(self) -> bool:
        """Whether the table has the rows of all items: in one process, and if finalized."""
        return self.table.num_embeddings == self.count

    def _drawn_rows(self, width: int | None, generator: torch.Generator) -> AnchorEmbedding:
        """Draw all rows as `AnchoredTables` does, and keep those of this process."""
        if self.group.world == 1:
            return super()._drawn_rows(width, generator)
        table = self._new_table(self.group.owned(self.count), width, torch.Generator())
        wide, anchors = table.transform.shape[1], self.options.most

        def normal(rows: int) -> Tensor:
            block = torch.empty(rows, wide)
            return block.normal_(0, self._deviation(width), generator=generator)

        def slots(rows: int, first: int, anchors: int) -> Tensor:
            block = torch.zeros(rows, wide, dtype=torch.int32)
            draw_slots(block[:, first:], anchors, generator)
            return block + first

        # The constructor of the table draws numbers that are replaced.
        torch.empty_like(table.anchors).normal_(generator=generator)
        drawn_rows(self.group, table.transform, self.count, normal)
        if table.slots is not None:
            every = table.slots
            drawn_rows(self.group, every, self.count, lambda rows: slots(rows, 0, anchors + 1))
        drawn_rows(self.group, table.transform, self.count, normal)
        if table.slots is not None:
            drawn_rows(self.group, every, self.count, lambda rows: slots(rows, 1, anchors))
        return table

    @torch.no_grad()
    def _fetched(self, ids: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return rows of the transform and their slots, of other processes, and the place of ids.

        Processes may have different ids.
        """
        table = self.table
        rows, place = distinct_rows(self.group, table.transform.detach(), ids, "inputs")
        if table.slots is None:
            return rows, None, place
        slots, _ = distinct_rows(self.group, table.slots.view(torch.uint8), ids, "inputs")
        return rows, slots.view(table.slots.dtype), place

    def bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sum of the input vectors of each row's items times `scale`, (rows, hidden).

        Rows are fetched, without a gradient, and summed as one process sums them. Processes may
        have different rows.
        """
        if self._has_all_rows:
            return super().bag(history, scale)
        rows, slots, place = self._fetched(history.values)
        return self._sums(rows, slots, Jagged(place, history.offsets), scale)

    def batch_bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sums of the rows of a batch that this process has.

        Every process sums its own items of all rows; the sums are added in the order of the ranks.
        """
        if self.group.world == 1:
            return super().bag(history, scale)
        terms = super().bag(own_items(self.group, history), scale)
        return own_sums(self.group, terms, "inputs, sums")

    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of a batch; see `batch_loss`."""
        if self.group.world == 1:
            return super().loss(queries, objective, history, generator)
        return batch_loss(self.group, queries, objective, history, generator, self._scores)

    def _scores(self, own: Tensor, queries: Tensor) -> MappedScores:
        """Return the scores of the items of this process for the queries of all."""
        if self.table.slots is not None:
            return MappedScores(self.group, self._decoder_vectors(), own, queries)
        anchors = self._output_anchors

        def project(queries: Tensor) -> Tensor:
            return queries @ anchors.T

        return MappedScores(self.group, self.table.transform, own, queries, project)

    def sum_gradients(
        self, numbers: Tensor, shared: Sequence[nn.Parameter], meanwhile: Callable[[], None]
    ) -> Tensor:
        """Sum the gradients of shared parameters, anchors included, and numbers.

        `meanwhile` is not called: the optimiser of the rows counts its steps, and makes one later.
        """
        none = numbers.new_empty(0, 1)
        return sum_shared(self.group, numbers, shared, none, [0] * self.group.world)[1]

    def row_optimizer(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """Return an optimiser of the rows of this process, that also drops small entries."""
        if self.group.world > 1 and self._has_all_rows:
            raise ValueError(
                "finalized tables are trained further by one process; save the model, and load it"
            )
        return super().row_optimizer(optimizer, steps, counts)

    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), gathered in every process."""
        return self._merged(super().input_vectors())

    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return output vectors: of all items, gathered in every process, or of those given."""
        if ids is None or self._has_all_rows:
            return self._merged(super().output_vectors(ids))
        return look_up(self.group, super().output_vectors(), ids, "outputs")

    def output_rows(self) -> Tensor | ItemRows:
        """Return the output vectors of the items of this process, for a proposal."""
        if self.group.world == 1:
            return super().output_rows()
        own = torch.arange(self.count)[self._own_rows] if self._has_all_rows else None
        return ShardedRows(super().output_vectors(own), self.group, self.count)

    def _merged(self, rows: Tensor) -> Tensor:
        """Return the rows of all items; in blocks, so that few are in memory twice."""
        if self._has_all_rows:
            return rows
        whole, step = rows.new_empty(self.count, rows.shape[1]), _BLOCK * self.group.world
        for number, block in enumerate(whole.split(step)):
            own = rows[number * _BLOCK : (number + 1) * _BLOCK]
            block.copy_(self.group.merge(own, len(block), "tables"))
        return whole

    @torch.no_grad()
    def _whole_table(self) -> AnchorEmbedding:
        """Return the table with the rows of all items, merged in every process."""
        if self._has_all_rows:
            return self.table
        own = self.table
        table = self._new_table(1, own.width, torch.Generator())
        table.anchors.copy_(own.anchors)
        table.transform = nn.Parameter(self._merged(own.transform.detach()))
        if own.slots is not None:
            table.slots = self._merged(own.slots.view(torch.uint8)).view(own.slots.dtype)
        table.num_embeddings = self.count
        return table

    def with_new_items(self, near: Tensor, weights: Tensor) -> AnchoredTables:
        """Add items in one process; several raise: items are added to a saved model."""
        if self.group.world == 1:
            return super().with_new_items(near, weights)
        raise ValueError("items are added by one process; save the model, and load it in one")
