"""Base class of fitted models whose scores are inner products of queries and item vectors."""

from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._progress import phase
from fewfold._torch import transferred
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.model import Fitted, cosines, single_item_rows
from fewfold.recommender.models.shared_ranking import share_directions, share_ranking
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.exact_ranking import DotProduct, Ranking, top_k
from fewfold.recommender.shared_tensors import SharedTensors

__all__ = ["FittedVectors"]

_USERS = 8192  # ranked at once


class FittedVectors(Fitted):
    """A fitted model that ranks items by inner products.

    A subclass defines `recipe`, `items`, `vectors`, a property that is computed once, `queries`
    and `state`.
    """

    _table: Catalogue | None = None
    _shared: SharedTensors | None = None
    _placed: Tensor | None = None  # the vectors on the device that ranks, if it is not the CPU

    @property
    def vectors(self) -> Tensor:
        """(items, d) item vectors, contiguous."""
        raise NotImplementedError(f"{type(self).__name__} must define vectors")

    def prepare(self, shared: SharedTensors | None = None) -> None:
        """Build a compact copy of the vectors, which speeds up rankings of single users."""
        self._shared = shared
        if shared is not None:
            self._table = share_ranking(self, shared)
        self._table = self._table or Catalogue(self.vectors)

    def to(self, device: torch.device) -> None:
        """Score and rank on a device; the vectors are copied there."""
        self._placed = None if device.type == "cpu" else self.vectors.to(device)

    def queries_on_device(self, history: Jagged) -> Tensor:
        """(rows, d) query vectors on the device that ranks."""
        queries = self.queries(history)
        return queries if self._placed is None else transferred(queries, self._placed.device)

    @cached_property
    def directions(self) -> Tensor:
        """(items, d) item vectors of length one, by which items are similar."""
        return share_directions(self, self._shared)

    def normalised(self) -> Tensor:
        """Compute the directions."""
        return F.normalize(self.vectors)

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row by inner products."""
        parts, found = _blocks(len(history.offsets) - 1, _USERS), []
        with phase("ranking items", total=len(parts)) as progress:
            table = (self._table or self.vectors) if self._placed is None else self._placed
            for block in progress.each(parts):  # so that not all queries are in memory
                scorer = DotProduct(self.queries_on_device(history.rows(block)), table)
                mine = None if exclude is None else exclude.rows(block)
                best = top_k(scorer, k, exclude=mine, allowed=allowed)
                found.append(Ranking(best.ids.cpu(), best.scores.cpu()))
        return _concatenated(found)

    def score(self, history: Jagged, items: Tensor) -> Tensor:
        """(rows, len(items)) inner products."""
        return self.queries(history) @ self.vectors[items].T

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the k items with the largest cosine similarity of vectors."""
        scorer = DotProduct(self.directions[items], self.directions)
        return top_k(scorer, k, exclude=single_item_rows(items), allowed=allowed)

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to cosines with the vectors of `others`."""
        return cosines(self.directions, others)

    def score_cost(self, known: Jagged) -> float:
        """Multiply-adds to score one item for one user: the width of the vectors."""
        return self.vectors.shape[1]


def _blocks(rows: int, size: int) -> list[slice]:
    """Slices of at most `size` rows; one empty slice where there are no rows."""
    starts = range(0, max(rows, 1), size)
    return [slice(start, min(start + size, rows)) for start in starts]


def _concatenated(found: list[Ranking]) -> Ranking:
    """One ranking of the rows of all."""
    if len(found) == 1:
        return found[0]
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))
