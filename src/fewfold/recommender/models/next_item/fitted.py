"""A trained next-item network: queries, item vectors, tensors."""

from functools import cached_property

from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fitted_vectors import FittedVectors
from fewfold.recommender.models.model import Model
from fewfold.recommender.models.next_item.network import NextItemNetwork

__all__ = ["FittedTransformer"]


class FittedTransformer(FittedVectors):
    """A trained `NextItemNetwork`: scores are cosines of a query and the vectors of the items."""

    def __init__(self, recipe: Model, network: NextItemNetwork) -> None:
        self._recipe, self.network = recipe, network.eval().requires_grad_(False)
        self.items = network.count

    @property
    def recipe(self) -> Model:
        """The `Transformer` this was fitted by."""
        return self._recipe

    @cached_property
    def vectors(self) -> Tensor:
        """(items, width) item vectors of length one."""
        with phase("preparing the ranking"):
            return self.network.vectors

    @property
    def directions(self) -> Tensor:
        """The vectors themselves, whose length is one."""
        return self.vectors

    def queries(self, history: Jagged) -> Tensor:
        """(rows, width) query vectors of users with these items, oldest first."""
        return self.network.queries(history)

    def state(self) -> dict[str, Tensor]:
        """All tensors of the network."""
        return dict(self.network.state_dict())
