"""Interface of the item tables of a FastVAE: input vectors, output vectors, their training."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import Objective

__all__ = ["Tables"]


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
    """

    sparse = True

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

    @abstractmethod
    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of queries (rows, latent + 1) and the output vectors.

        A training step calls `bag` first.
        """

    @abstractmethod
    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), without gradient."""

    @abstractmethod
    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return the output vectors, bias last, of all items or those given, without gradient."""

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
    def saved(self) -> dict[str, Tensor]:
        """Return the tensors of the tables as a saved model names them."""

    @abstractmethod
    def with_new_items(self, near: Tensor, weights: Tensor) -> "Tables":
        """Return tables with more items, weighted means of items that exist.

        Args:
            near: (new, n) ids of the items that a new one is the mean of.
            weights: (new, n) of the mean.
        """
