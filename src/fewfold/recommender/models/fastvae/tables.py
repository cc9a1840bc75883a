"""Item tables of a FastVAE: the interface, dense tables, and sums of their rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold._check import jagged, whole_number
from fewfold._native import dispatch
from fewfold._random import rand
from fewfold.distributed.group import Group
from fewfold.distributed.row_shards import RowShards
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.sampling.item_rows import ItemRows
from fewfold.sampling.proposal import fresh_seed

__all__ = ["DenseTables", "Tables", "append_means", "bags", "drop_items"]


class Tables(nn.Module, ABC):
    """Item vectors of the encoder (hidden wide) and of the decoder (latent + 1 wide, bias last).

    A `FastVAE` reaches its items through these methods alone, in terms of ids, sums and losses, so
    that an implementation decides how rows are represented and where they are. The constructor
    takes sizes only; the weights come from `reset_inputs` and `reset_outputs`, which the model
    calls with its own generator, or from a classmethod that builds trained tables.

    Attributes:
        count: number of items.
        hidden: width of the input vectors.
        latent: width of the output vectors without the bias.
        sparse: whether gradients of tables with a row per item are sparse; set False for an
            optimiser that needs dense ones.
        group: processes that have parts of the tables and train together; by default this one.
    """

    sparse = True
    group = Group()

    def __init__(self, items: int, hidden: int, latent: int) -> None:
        super().__init__()
        for name, value in (("items", items), ("hidden", hidden), ("latent", latent)):
            whole_number(value, name)
        self.count, self.hidden, self.latent = items, hidden, latent

    @property
    def initialized(self) -> bool:
        """Whether the weights exist."""
        return next(self.parameters(), None) is not None

    @abstractmethod
    def reset_inputs(self, generator: torch.Generator) -> None:
        """Draw the encoder's weights; before those of the encoder's layers."""

    @abstractmethod
    def reset_outputs(self, generator: torch.Generator) -> None:
        """Draw the decoder's weights; after those of the encoder's layers."""

    @abstractmethod
    def bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sum of the input vectors of each row's items times `scale`, (rows, hidden)."""

    def batch_bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return `bag` of the rows of a batch that this process has; by default of all of them.

        A training step calls this first, then `loss`, and `sum_gradients` after the backward pass.
        """
        return self.bag(history, scale)

    @abstractmethod
    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of a batch.

        Args:
            queries: (rows, latent + 1) of the rows that this process has.
            objective: of the training.
            history: items of all rows of the batch.
            generator: of samples.
        """

    def sum_gradients(
        self, numbers: Tensor, shared: Sequence[nn.Parameter], meanwhile: Callable[[], None]
    ) -> Tensor:
        """Complete the gradients of a batch with those of other processes.

        Args:
            numbers: (n,) to be summed over processes, such as the loss.
            shared: parameters that are the same in all processes.
            meanwhile: may be called, once, while others are waited for; it may use the gradients
                of rows.

        Returns:
            The sums, (n,).
        """
        meanwhile()
        return numbers

    @abstractmethod
    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), without gradient."""

    @abstractmethod
    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return the output vectors, bias last, of all items or those given, without gradient."""

    def output_rows(self) -> Tensor | ItemRows:
        """Return the output vectors for a proposal, perhaps those of this process alone."""
        return self.output_vectors()

    @property
    @abstractmethod
    def row_parameters(self) -> list[nn.Parameter]:
        """Parameters with a row per item, whose gradients are sparse."""

    @property
    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters on which the vectors of all items depend; none by default."""
        return []

    def row_optimizer(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """Return the optimiser of `row_parameters` for a training; by default the one given.

        Args:
            optimizer: of the rows.
            steps: number of steps of the training.
            counts: (items,) number of interactions.
        """
        return optimizer

    def growth(self) -> AnchorGrowth | None:
        """Return what adapts the size of the tables in training; None by default."""
        return None

    def finalize(self) -> None:
        """Bring trained tables into the form in which they are saved; by default they are."""

    @abstractmethod
    def saved(self) -> Mapping[str, Tensor | RowShards]:
        """Return the tensors of the tables as a saved model names them."""

    @abstractmethod
    def with_new_items(self, near: Tensor, weights: Tensor) -> "Tables":
        """Return tables with more items, weighted means of items that exist.

        Args:
            near: (new, n) ids of the items that a new one is the mean of.
            weights: (new, n) of the mean.
        """


class DenseTables(Tables):
    """Two matrices: inputs (items, hidden) and items (items, latent + 1), with the bias last.

    Args:
        items: number of items.
        hidden: width of the input vectors.
        latent: width of the latent; one less than a multiple of sixteen is fastest.

    Example:
        >>> from fewfold.recommender import DenseTables, FastVAE
        >>> model = FastVAE(DenseTables(items=1000, hidden=32, latent=15), seed=1)
        >>> model.outputs().shape
        torch.Size([1000, 16])
    """

    inputs: nn.Parameter
    items: nn.Parameter

    def __init__(self, items: int, hidden: int = 200, latent: int = 63) -> None:
        super().__init__(items, hidden, latent)

    @classmethod
    def of(cls, inputs: Tensor, items: Tensor) -> Self:
        """Return the tables with these weights, which are not copied."""
        tables = cls(len(items), inputs.shape[1], items.shape[1] - 1)
        tables.inputs, tables.items = nn.Parameter(inputs), nn.Parameter(items)
        return tables

    def reset_inputs(self, generator: torch.Generator) -> None:
        """Draw the inputs, with a variance of 1 / hidden."""
        table = dispatch.table(self.count, self.hidden)
        self.inputs = nn.Parameter(table.normal_(0, self.hidden**-0.5, generator=generator))

    @torch.no_grad()
    def reset_outputs(self, generator: torch.Generator) -> None:
        """Draw the outputs, with a variance of 1 / (4 latent) and no bias."""
        # The last column is the bias: the last entry of every query is one.
        self.items = nn.Parameter(dispatch.table(self.count, self.latent + 1).zero_())
        self.items[:, : self.latent].normal_(0, 0.5 * self.latent**-0.5, generator=generator)

    def bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sum of the input vectors of each row's items times `scale`, (rows, hidden)."""
        return bags(self.inputs, history, scale, sparse=self.sparse)

    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of queries (rows, latent + 1) and the output vectors."""
        return objective(queries, self.items, history, generator)

    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), without gradient."""
        return self.inputs.detach()

    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return the output vectors, bias last, of all items or those given, without gradient."""
        vectors = self.items.detach()
        return vectors if ids is None else vectors[ids]

    @property
    def row_parameters(self) -> list[nn.Parameter]:
        """Both matrices."""
        return [self.inputs, self.items]

    def saved(self) -> dict[str, Tensor]:
        """Return both matrices, as a saved model names them."""
        return {"vae.inputs": self.inputs.detach(), "vae.items": self.items.detach()}

    def with_new_items(self, near: Tensor, weights: Tensor) -> "DenseTables":
        """Return tables with more items, weighted means of the rows of items that exist."""
        inputs, items = self.inputs.detach(), self.items.detach()
        return DenseTables.of(
            append_means(inputs, near, weights), append_means(items, near, weights)
        )


def append_means(table: Tensor, near: Tensor, weights: Tensor) -> Tensor:
    """Append to a table (rows, d) the weighted means of its rows `near`, (new, n)."""
    return torch.cat([table, (table[near] * weights.unsqueeze(2)).sum(1)])


def bags(table: Tensor, ids: Jagged, by: Tensor, *, sparse: bool = True) -> Tensor:
    """Return the sum of the table rows of each list of ids, times a factor per list: (rows, d)."""
    if (
        sparse and dispatch.ready(table, by) and table.is_contiguous() and table.dtype == by.dtype
        and ids.values.is_cpu
    ):  # fmt: skip
        values, offsets = jagged(*ids, rows=len(by))
        total: Tensor = _Bags.apply(table, values, offsets, by.contiguous())
        return total
    total = F.embedding_bag(
        ids.values, table, ids.offsets, mode="sum", include_last_offset=True, sparse=sparse
    )
    return total * by.unsqueeze(1)


class _Bags(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, offsets: Tensor, by: Tensor) -> Tensor:
        size, d = table.shape
        out = table.new_empty(len(by), d)
        dispatch.kernel("bags", table.dtype)(
            table, size, d, ids, offsets, len(by), by, out, dispatch.threads()
        )
        ctx.save_for_backward(ids, offsets, by)
        ctx.shape = table.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ids, offsets, by = ctx.saved_tensors
        grad = grad.contiguous()
        values = dispatch.table(len(ids), ctx.shape[1], dtype=grad.dtype)
        dispatch.kernel("unbags", grad.dtype)(
            grad, ctx.shape[1], offsets, len(by), by, values, dispatch.threads()
        )
        ids = ids.unsqueeze(0)
        sparse = torch.sparse_coo_tensor(ids, values, ctx.shape, check_invariants=False)
        return sparse, None, None, None


def drop_items(ids: Jagged, share: float, generator: torch.Generator | None) -> Jagged:
    """Drop each entry of the lists with probability `share`."""
    values, offsets = ids.values, ids.offsets
    if share == 0:
        return ids
    if not (dispatch.ready() and values.is_cpu):
        return ids.select(rand((len(values),), values.device, generator=generator) >= share)
    values, offsets = jagged(values, offsets)
    out, out_offsets = torch.empty(len(values) + 1, dtype=torch.int64), torch.empty_like(offsets)
    count = dispatch.kernel("thin")(
        values, offsets, len(offsets) - 1, 1 - share, fresh_seed(generator), out, out_offsets
    )
    return Jagged(out[:count], out_offsets)
