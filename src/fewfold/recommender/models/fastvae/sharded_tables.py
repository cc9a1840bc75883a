"""Tables of a FastVAE of which each process has some rows."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fewfold._native import dispatch
from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import distinct_rows, look_up
from fewfold.distributed.row_shards import RowShards
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.batch_samples import batch_loss
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.models.fastvae.own_scores import DenseScores
from fewfold.recommender.models.fastvae.sharded_rows import (
    ShardedRows,
    check_shares,
    drawn_rows,
    sum_shared,
)
from fewfold.recommender.models.fastvae.tables import Tables, bags
from fewfold.recommender.ranking.sharded_ranking import own_items
from fewfold.sampling.item_rows import ItemRows

__all__ = ["ShardedTables"]


class ShardedTables(Tables):
    """The two matrices of `DenseTables`, with row i on rank i % world, as its row i // world.

    All processes of the group call the same methods in the same order, each with its own part of
    a batch. Vectors stay where they are: owners sum the inputs of each row of the batch, and score
    the sampled items for the queries of all rows, so that ids, sums, queries and scores are sent
    instead, and gradients of scores back. Gradients of rows arise at their owners in the order of
    the ranks, where the optimiser moves them. The initial weights are those of `DenseTables` with
    the same seed.

    In a training step with B users who have L items each, n samples per user, W processes and P
    parameters of layers, each process sends

        (W - 1) / W  ( B (8 hidden + 8 (latent + 1) + 4 + 12 (n + L) / W) + 8 P )  bytes,

    counted by `group.traffic`, in seven exchanges (eight of more than two processes). Fetching the
    rows would be B (n + L) 8 (latent + 1) bytes for the scores alone, less what users share.

    Args:
        items: number of items, in all processes.
        hidden: width of the input vectors.
        latent: width of the latent.
        group: the processes; by default the initialised process group, or this process alone.

    Example:
        >>> from fewfold.recommender import FastVAE, ShardedTables
        >>> model = FastVAE(ShardedTables(1000, hidden=32, latent=15))  # in each process
        >>> len(model.tables.items), model.tables.group.world
        (1000, 1)
    """

    inputs: nn.Parameter
    items: nn.Parameter

    def __init__(
        self, items: int, hidden: int = 200, latent: int = 63, group: Group | None = None
    ) -> None:
        super().__init__(items, hidden, latent)
        self._pending: tuple[Tensor, Tensor] | None = None
        self.group = Group.current() if group is None else group
        check_shares(self.group, items)

    def reset_inputs(self, generator: torch.Generator) -> None:
        """Draw the inputs as `DenseTables` does, and keep those of this process."""
        hidden, table = self.hidden, dispatch.table(self.group.owned(self.count), self.hidden)

        def draw(rows: int) -> Tensor:
            return torch.empty(rows, hidden).normal_(0, hidden**-0.5, generator=generator)

        drawn_rows(self.group, table, self.count, draw)
        self.inputs = nn.Parameter(table)

    def reset_outputs(self, generator: torch.Generator) -> None:
        """Draw the outputs as `DenseTables` does, and keep those of this process."""
        latent, table = self.latent, dispatch.table(self.group.owned(self.count), self.latent + 1)

        def draw(rows: int) -> Tensor:
            block = torch.zeros(rows, latent + 1)
            block[:, :latent].normal_(0, 0.5 * latent**-0.5, generator=generator)
            return block

        drawn_rows(self.group, table, self.count, draw)
        self.items = nn.Parameter(table)

    def bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sum of the input vectors of each row's items times `scale`, (rows, hidden).

        The vectors are fetched, and summed as one process sums them, so that rankings are the same.
        Processes may have different rows.
        """
        if self.group.world == 1:
            return bags(self.inputs, history, scale, sparse=self.sparse)
        rows, place = distinct_rows(self.group, self.inputs, history.values, "inputs")
        return bags(rows, Jagged(place, history.offsets), scale, sparse=self.sparse)

    def batch_bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sums of the rows of a batch that this process has.

        Every process sums its own items of all rows, and the sums are added in the order of the
        ranks; if rows have fewer items than there are processes, their vectors are less to send.
        """
        rows, self._pending = len(scale), None
        if self.group.world == 1:
            return self.bag(history, scale)
        own = self.group.share(rows)
        if len(history.values) <= rows * self.group.world:
            return self.bag(history.rows(own), scale[own])
        mine = own_items(self.group, history)
        partial = bags(self.inputs, mine, scale, sparse=self.sparse)
        counts = self.group.shares(rows)
        sums = self.group.scatter_sums(partial.detach(), counts, "inputs, sums")
        if torch.is_grad_enabled():  # their gradients are exchanged together with others
            self._pending = partial, sums.requires_grad_()
        return sums

    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of a batch; see `batch_loss`."""
        if self.group.world == 1:
            return objective(queries, self.items, history, generator)

        def scorer(own: Tensor, every: Tensor) -> DenseScores:
            return DenseScores(self.items, own, every)

        return batch_loss(self.group, queries, objective, history, generator, scorer)

    def sum_gradients(
        self, numbers: Tensor, shared: Sequence[nn.Parameter], meanwhile: Callable[[], None]
    ) -> Tensor:
        """Sum the gradients of shared parameters and numbers, and complete those of the inputs."""
        partial, sums = self._pending or (numbers.new_empty(0, 1), numbers.new_empty(0, 1))
        own = sums if sums.grad is None else sums.grad
        counts = self.group.shares(len(partial))
        every, numbers = sum_shared(self.group, numbers, shared, own, counts, meanwhile)
        if self._pending is not None:
            partial.backward(every)
            self._pending = None
        return numbers

    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), gathered in every process."""
        return self.group.merge(self.inputs.detach(), self.count, "tables")

    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return output vectors: of all items, gathered in every process, or of those given."""
        vectors = self.items.detach()
        if ids is None:
            return self.group.merge(vectors, self.count, "tables")
        return look_up(self.group, vectors, ids, "outputs")

    def output_rows(self) -> ItemRows:
        """Return the output vectors of this process, for a proposal."""
        return ShardedRows(self.items.detach(), self.group, self.count)

    @property
    def row_parameters(self) -> list[nn.Parameter]:
        """The rows of this process of both matrices."""
        return [self.inputs, self.items]

    def saved(self) -> Mapping[str, Tensor | RowShards]:
        """Return both matrices, as a saved model names them, where they are."""
        named = {"vae.inputs": self.inputs, "vae.items": self.items}
        return {n: RowShards(rows.detach(), self.count, self.group) for n, rows in named.items()}

    def with_new_items(self, near: Tensor, weights: Tensor) -> "ShardedTables":
        """Raise: items are added to a saved model, by one process."""
        raise ValueError("items are added by one process; save the model, and load it in one")
