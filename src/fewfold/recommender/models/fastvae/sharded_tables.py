"""Tables of a FastVAE of which each process has some rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from fewfold._native import dispatch
from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import distinct_rows, look_up
from fewfold.losses.sampled import softmax_losses
from fewfold.losses.sampled_scores import log_sum
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.batch_samples import OwnSamples, SharedSample
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.models.fastvae.tables import Tables, bags
from fewfold.sampling.item_rows import ItemRows

__all__ = ["ShardedTables"]

_ROWS = 4096  # drawn at once; a multiple of 16, the numbers that torch draws together


class ShardedTables(Tables):
    """The two matrices of `DenseTables`, with row i on rank i % world, as its row i // world.

    All processes of the group call the same methods in the same order, each with its own part of
    a batch. Vectors stay where they are: owners sum the inputs of each row of the batch, and score
    the sampled items for the queries of all rows, so that ids, sums, queries and scores are sent
    instead. Gradients of rows arise at their owners in the order of the ranks, where the optimiser
    moves them. The initial weights are those of `DenseTables` with the same seed.

    In a training step with B users who have L items each, n samples per user, W processes and P
    parameters of layers, each process sends

        (W - 1) / W  ( B (8 hidden + 8 (latent + 1) + 12 n + 8 L) + 8 P )  bytes,

    counted by `group.traffic`, in five exchanges (six of more than two processes). Fetching the
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
        if items < self.group.world:
            raise ValueError(
                f"tables of {items} items cannot be divided among {self.group.world} processes; "
                "start fewer"
            )

    def reset_inputs(self, generator: torch.Generator) -> None:
        """Draw the inputs as `DenseTables` does, and keep those of this process."""
        table = dispatch.table(self.group.owned(self.count), self.hidden)
        for drawn, owned in self._blocks():
            block = torch.empty(drawn.stop - drawn.start, self.hidden)
            block.normal_(0, self.hidden**-0.5, generator=generator)
            table[owned] = self._own_of(block, drawn)
        self.inputs = nn.Parameter(table)

    def reset_outputs(self, generator: torch.Generator) -> None:
        """Draw the outputs as `DenseTables` does, and keep those of this process."""
        table = dispatch.table(self.group.owned(self.count), self.latent + 1)
        for drawn, owned in self._blocks():
            block = torch.zeros(drawn.stop - drawn.start, self.latent + 1)
            block[:, : self.latent].normal_(0, 0.5 * self.latent**-0.5, generator=generator)
            table[owned] = self._own_of(block, drawn)
        self.items = nn.Parameter(table)

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield slices of all rows, and of those of this process.

        Torch draws the same numbers in blocks as at once if no block is very short.
        """
        start, owned = 0, 0
        while start < self.count:
            stop = self.count if self.count - start < 2 * _ROWS else start + _ROWS
            before, owned = owned, len(range(self.group.rank, stop, self.group.world))
            yield slice(start, stop), slice(before, owned)
            start = stop

    def _own_of(self, block: Tensor, rows: slice) -> Tensor:
        """Return the rows of this process, of a block of consecutive ones."""
        return block[(self.group.rank - rows.start) % self.group.world :: self.group.world]

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
        mine = history.select(history.values % self.group.world == self.group.rank)
        mine = Jagged(mine.values // self.group.world, mine.offsets)
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
        """Return the objective of a batch: every process scores its items for all rows.

        The value is the share of one process; gradients are those of the rows of this one.
        """
        if self.group.world == 1:
            return objective(queries, self.items, history, generator)
        if not isinstance(objective, SampledSoftmax):
            raise ValueError(
                f"{type(objective).__name__} needs the scores of all items, which no process has; "
                "in several processes use SampledSoftmax"
            )
        sample = SharedSample if objective.shared else OwnSamples
        batch = sample.of(self.group, queries, objective, history, generator)
        scores, positive_scores = batch.scores(self.items, history)
        rest = log_sum(scores, batch.log_q)
        losses = softmax_losses(
            rest, positive_scores, batch.positive_q, history.row, objective.samples
        )
        total = losses.sum() if objective.weights is None else losses @ objective.weights.to(losses)
        return total - total.detach() * (1 - 1 / self.group.world)

    def sum_gradients(
        self, numbers: Tensor, shared: Sequence[nn.Parameter], meanwhile: Callable[[], None]
    ) -> Tensor:
        """Sum the gradients of shared parameters and numbers, and complete those of the inputs."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in shared]
        flat = torch.cat([*(grad.flatten() for grad in grads), numbers])
        partial, sums = self._pending or (flat.new_empty(0, 1), flat.new_empty(0, 1))
        counts = self.group.shares(len(partial))
        own = sums if sums.grad is None else sums.grad
        every, flat = self.group.gather_and_sum(
            own, counts, flat, "layers and input gradients", meanwhile
        )
        if self._pending is not None:
            partial.backward(every)
            self._pending = None
        *parts, numbers = flat.split([*(p.numel() for p in shared), len(numbers)])
        for param, grad in zip(shared, parts, strict=True):
            param.grad = grad.view(param.shape)
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
        return _ShardedRows(self.items.detach(), self.group, self.count)

    @property
    def row_parameters(self) -> list[nn.Parameter]:
        """The rows of this process of both matrices."""
        return [self.inputs, self.items]

    def saved(self) -> dict[str, Tensor]:
        """Return both matrices, as a saved model names them, on rank 0; nothing on the others."""
        named = {"vae.inputs": self.inputs, "vae.items": self.items}
        found = {n: self.group.collect(value.detach(), self.count) for n, value in named.items()}
        return {name: value for name, value in found.items() if value is not None}

    def with_new_items(self, near: Tensor, weights: Tensor) -> "ShardedTables":
        """Raise: items are added to a saved model, by one process."""
        raise ValueError("items are added by one process; save the model, and load it in one")


class _ShardedRows(ItemRows):
    """Item vectors of which this process has some."""

    def __init__(self, local: Tensor, group: Group, count: int) -> None:
        super().__init__(local)
        self._group, self._count = group, count

    @property
    def count(self) -> int:
        """Number of all items."""
        return self._count

    def with_rows(self, local: Tensor) -> Self:
        """Return other vectors of the same items."""
        return type(self)(local, self._group, self._count)

    def take(self, ids: Tensor) -> Tensor:
        """Return the vectors of these items, fetched from their owners."""
        return look_up(self._group, self.local, ids, "proposal")

    def gather(self, values: Tensor) -> Tensor:
        """Return what every process computed of its vectors, for all items."""
        return self._group.merge(values, self._count, "proposal")
