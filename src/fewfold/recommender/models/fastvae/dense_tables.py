"""Item tables of a FastVAE held in full: one row per item in each of two matrices."""

from typing import Self

import torch
from torch import Tensor, nn

from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.encoder_bag import bags
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.models.fastvae.tables import Tables

__all__ = ["DenseTables", "append_means"]


class DenseTables(Tables):
    """Two matrices: inputs (items, hidden) and items (items, latent + 1), with the bias last.

    Args:
        items: number of items.
        hidden: width of the input vectors.
        latent: width of the latent; one less than a multiple of sixteen is fastest.

    Example:
        >>> from fewfold.recommender import DenseTables, FastVAE
        >>> model = FastVAE(tables=DenseTables(items=1000, hidden=32, latent=15), seed=1)
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
