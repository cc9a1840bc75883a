"""A trained next-item network: queries, item vectors, tensors, ONNX."""

from functools import cached_property

import torch
from torch import Tensor, nn

from fewfold._progress import phase
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fitted_vectors import FittedVectors
from fewfold.recommender.models.model import Model
from fewfold.recommender.models.next_item.next_item_network import NextItemNetwork

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

    def to_onnx(self) -> nn.Module:
        """Module from padded histories, oldest first, to scores."""
        return _PaddedScores(self.network, self.vectors)


class _PaddedScores(nn.Module):
    """Network from (rows, length) item numbers, padded with -1, to (rows, items) scores."""

    def __init__(self, network: NextItemNetwork, vectors: Tensor) -> None:
        super().__init__()
        self.network, self.vectors = network, nn.Buffer(vectors)

    def forward(self, history: Tensor) -> Tensor:
        count = (history >= 0).sum(1, keepdim=True)
        window = self.network.length
        # Windows of one length, since that of the history is known only when the graph runs.
        at = (count - window).clamp(min=0) + torch.arange(window)
        ids = history.gather(1, at.minimum(torch.full_like(at, history.shape[1] - 1)))
        queries = self.network(ids.clamp(min=0))
        last = (count.clamp(max=window) - 1).clamp(min=0).unsqueeze(2)
        query = queries.gather(1, last.expand(-1, -1, queries.shape[2])).squeeze(1)
        query = torch.where(count > 0, query, self.network.start)
        return query @ self.vectors.T
