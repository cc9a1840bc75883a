"""Item-based nearest neighbours, with cosine or BM25 weights."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import whole_number
from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import tagged
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.baseline import more_counts
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.models.model_options import ITEM_KNN as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import register
from fewfold.recommender.models.sparse_item_rows import SparseRows, SparseRowsBaseline
from fewfold.recommender.ranking.exact_ranking import Ranking, positive, top_k

__all__ = ["BM25", "Cosine", "ItemKNN"]

_MAX_ITEMS = 200_000


class Weighting(Protocol):
    """Weights W (users, items) of a matrix of confidences; item similarity is ``W^T W``."""

    def __call__(self, matrix: Any) -> Any:
        """A scipy sparse matrix with the same pattern."""


@dataclass(frozen=True)
class Cosine:
    """Cosine similarity ``both / sqrt(n_i n_j)``: users of both items over the geometric mean.

    With confidences c it is that of their roots: ``both = sum_u sqrt(c_ui c_uj)``, ``n_i = sum_u
    c_ui``.
    """

    def __call__(self, matrix: Any) -> Any:
        """Scale the column of each item to length one."""
        counts = np.asarray(matrix.sum(0)).ravel()
        matrix.data = np.sqrt(matrix.data) / np.sqrt(counts)[matrix.indices]
        return matrix


@dataclass(frozen=True)
class BM25:
    """Okapi BM25: pairs of users with few items weigh more, pairs of popular items less.

    ``W_ui = log(M / (1 + n_u)) c (k1 + 1) / (k1 (1 - b + b n_i / mean n) + c)`` for M items and
    the confidence c of the pair.
    """

    k1: float = 1.2
    b: float = 0.75

    def __call__(self, matrix: Any) -> Any:
        """Weigh every pair."""
        per_user, per_item = np.diff(matrix.indptr), np.asarray(matrix.sum(0)).ravel()
        rarity = np.log(matrix.shape[1]) - np.log1p(per_user)
        length = 1 - self.b + self.b * per_item / per_item.mean()
        damped = (self.k1 * length)[matrix.indices] + matrix.data
        weight = matrix.data * (self.k1 + 1) / damped
        matrix.data = (np.repeat(rarity, per_user) * weight).astype(np.float32)
        return matrix


_WEIGHTINGS: dict[str, type[Any]] = {"cosine": Cosine, "bm25": BM25}


@register
@dataclass(eq=False)
class ItemKNN(SparseRowsBaseline):
    """Nearest neighbours of the user's items: ``score_j = sum over the user's i of S_ij``.

    S holds, for each item, its `neighbours` most similar others; similarity is ``W^T W`` with the
    weights that `weighting` gives, `Cosine()` or `BM25()`.

    Example:
        >>> from fewfold.recommender import Interactions, ItemKNN
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> ItemKNN(neighbours=2).fit(train).recommend(Interactions.from_pairs([0], [3]).jagged, 2)
        tensor([[2, 0]])

    Reference:
        Deshpande, Karypis (2004). Item-based top-N recommendation algorithms. TOIS.
    """

    name: ClassVar[str] = "item-knn"
    colour: ClassVar[str] = "#35b779"
    weighted: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new items are compared with all, others keep their similarities"
    neighbours: int = field(default=100, metadata=setting(OPTIONS["neighbours"], "{} neighbours"))
    weighting: Weighting = field(
        default=Cosine(), metadata=setting(OPTIONS["weighting"], "{!r}") | tagged(_WEIGHTINGS)
    )
    counts: Tensor = field(init=False, repr=False)
    ids: Tensor = field(init=False, repr=False)
    similarity: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole_number(self.neighbours, "neighbours")

    @classmethod
    def grid(cls, items: int) -> "Sequence[ItemKNN]":
        """Few and many neighbours with both weightings."""
        return [cls(n, weighting) for n in (20, 100) for weighting in (Cosine(), BM25())]

    @classmethod
    def too_large(cls, items: int) -> str:
        """Why comparing all pairs of items would take too long; empty if it would not."""
        if items > _MAX_ITEMS:
            return (
                f"it compares every item with every other, which takes too long for {items:,} items"
            )
        return ""

    def work(self, log: Interactions) -> float:
        """Multiply-adds of the products of sparse item vectors, and of scanning the results."""
        products = float((log.jagged.lengths.double() ** 2).sum())
        return 300.0 * products + 30.0 * float(log.items) ** 2

    def fit(self, train: Interactions) -> Self:
        """Find the neighbours of every item."""
        weights = self.weighting(train.to_csr(train.weights))
        itself = Jagged(torch.arange(train.items), torch.arange(train.items + 1))
        found = top_k(_Products(weights, weights.T.tocsr()), self.neighbours, exclude=itself)
        # Empty places and neighbours of similarity 0 become item 0 with weight 0.
        near = found.scores > 0
        self.ids, self.similarity = found.ids.where(near, 0), found.scores.where(near, 0.0)
        self.counts, self.items = train.popularity(), train.items
        return self

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """A copy with the neighbours of new items, also where they are nearest to known ones."""
        again, old = copy(fitted), fitted.items
        assert isinstance(again, ItemKNN)
        again.counts, again.items = more_counts(again.counts, added), log.items
        if log.items == old:
            return again
        weights = self.weighting(log.to_csr())
        products = (weights[:, old:].T @ weights).tocsr()
        products.sort_indices()
        products = products.tocoo()
        new, other, score = products.row + old, products.col, products.data
        apart = (new != other) & (score > 0)
        new, other, score = new[apart], other[apart], score[apart]
        known = other < old  # such a pair counts for both of its items
        item, near = np.concatenate([new, other[known]]), np.concatenate([other, new[known]])
        scores = np.concatenate([score, score[known]]).astype(np.float32)
        return again._with_neighbours(item, near, scores)

    def _with_neighbours(self, item: np.ndarray, near: np.ndarray, score: np.ndarray) -> Self:
        """Add candidates for the neighbours of items, some of which may be new; the best stay."""
        size, old = self.neighbours, len(self.ids)
        missing = (0, 0, 0, self.items - old)
        ids, similarity = F.pad(self.ids, missing).numpy(), F.pad(self.similarity, missing).numpy()
        better = score > similarity[item, -1]  # than the last neighbour
        item, near, score = item[better], near[better], score[better]
        touched = np.unique(item)
        row = np.concatenate([np.repeat(touched, size), item])
        near = np.concatenate([ids[touched].ravel(), near])
        score = np.concatenate([similarity[touched].ravel(), score])
        order = np.lexsort((-score, row))  # stable: by number where scores are equal, as `top_k`
        row, near, score = row[order], near[order], score[order]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        best = place < size
        ids[row[best], place[best]], similarity[row[best], place[best]] = near[best], score[best]
        self.ids, self.similarity = torch.from_numpy(ids), torch.from_numpy(similarity)
        return self

    @property
    def rows(self) -> SparseRows:
        """The neighbours of each item."""
        offsets = torch.arange(self.items + 1) * self.neighbours
        return SparseRows(offsets, self.ids.view(-1), self.similarity.view(-1))

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank the nearest neighbours of each item; -1 where there are fewer than k."""
        return positive(super().similar(items, k, allowed=allowed))

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of the counts, and of ids and similarity of the neighbours."""
        yield from super().layout(found, items)
        yield "ids", Spec((items, self.neighbours), torch.int64, least=0, below=items)
        yield "similarity", Spec((items, self.neighbours), least=0)


@dataclass(frozen=True, eq=False)
class _Products:
    """The scorer of items against items: ``W^T W`` in blocks."""

    weights: Any
    transposed: Any

    @property
    def shape(self) -> tuple[int, int]:
        return self.weights.shape[1], self.weights.shape[1]

    def __call__(self, users: slice, items: slice) -> Tensor:
        columns = self.weights if items == slice(0, self.shape[1]) else self.weights[:, items]
        product = self.transposed[users] @ columns
        return torch.from_numpy(product.toarray())
