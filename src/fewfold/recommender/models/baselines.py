"""What a new model has to beat: popularity, neighbours of items, and the linear model EASE.

All three learn from `Interactions`, answer for users they have never seen, and rank through the
same `top_k` without what the user has already, so that a difference is one of the scores alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import positive_number, whole_number
from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import tagged
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.ranking.top_k import Scorer, top_k

__all__ = ["BM25", "EASE", "Baseline", "Cosine", "ItemKNN", "MostPopular"]


class Baseline:
    """A model that scores all items from a user's items; what the baselines share.

    A subclass learns in `fit`, which sets `items` and `counts`, how many users touched each, and
    returns the model itself; it scores in `scores`. Somebody without items gets the most popular.
    """

    items: int = 0
    counts: Tensor

    def fit(self, train: Interactions) -> Self:
        """Learn from the interactions; returns the model itself."""
        raise NotImplementedError(f"{type(self).__name__} must define fit(train)")

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice), a new tensor: scores from the items of each row."""
        raise NotImplementedError(f"{type(self).__name__} must define scores(history, items)")

    def recommend(self, history: Interactions | Jagged, k: int) -> Tensor:
        """The best k items for every row of `history`, without those in it.

        Returns:
            (rows, k) int64, best first; -1 where no item is left.
        """
        known = history.jagged if isinstance(history, Interactions) else history
        return top_k(self.scorer(known), k, exclude=known).ids

    def scorer(self, history: Jagged) -> Scorer:
        """The scores of all items for every row of `history`, to rank by."""
        if self.items == 0:
            raise ValueError(
                f"{type(self).__name__} has learned nothing yet; call fit(train) first"
            )
        return _Rows(self, history)

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """What has been learned, as a file holds it: a name and what the tensor must be.

        Args:
            found: what the file has.
            items: how many items there are.
        """
        yield "counts", Spec((items,), least=0)

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """What no score can exceed, from the smallest and the largest number of each tensor."""
        return items * max(max(abs(low), abs(high)) for low, high in ranges.values())


@dataclass(eq=False)
class MostPopular(Baseline):
    """The same for everybody: ``score_i = how many users touched i``.

    Example:
        >>> from fewfold.recommender import Interactions, MostPopular
        >>> train = Interactions.from_pairs([0, 0, 1, 2], [1, 2, 2, 0])
        >>> MostPopular().fit(train).recommend(train, 2)
        tensor([[ 0, -1],
                [ 0,  1],
                [ 2,  1]])
    """

    counts: Tensor = field(init=False, repr=False)

    def fit(self, train: Interactions) -> Self:
        """Count the users of every item."""
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice), the same in every row."""
        return self.counts[items].repeat(len(history.offsets) - 1, 1)


class Weighting(Protocol):
    """Weights W (users, items) of a binary matrix; item similarity is ``W^T W``."""

    def __call__(self, matrix: Any) -> Any:
        """A scipy sparse matrix with the same pattern."""


@dataclass(frozen=True)
class Cosine:
    """Similarity ``both / sqrt(n_i n_j)``: users of both items over the mean of their numbers."""

    def __call__(self, matrix: Any) -> Any:
        """Scale each item to length one."""
        counts = np.asarray(matrix.sum(0)).ravel()
        matrix.data /= np.sqrt(counts)[matrix.indices]
        return matrix


@dataclass(frozen=True)
class BM25:
    """Users who touched little say more, and items that everybody touched count less.

    ``W_ui = log(M / (1 + n_u)) (k1 + 1) / (k1 (1 - b + b n_i / mean n) + 1)`` for M items.
    """

    k1: float = 1.2
    b: float = 0.75

    def __call__(self, matrix: Any) -> Any:
        """Weigh every pair."""
        per_user, per_item = np.diff(matrix.indptr), np.asarray(matrix.sum(0)).ravel()
        rarity = np.log(matrix.shape[1]) - np.log1p(per_user)
        length = 1 - self.b + self.b * per_item / per_item.mean()
        weight = (self.k1 + 1) / (self.k1 * length + 1)
        matrix.data = (np.repeat(rarity, per_user) * weight[matrix.indices]).astype(np.float32)
        return matrix


_WEIGHTINGS: dict[str, type[Any]] = {"cosine": Cosine, "bm25": BM25}


@dataclass(eq=False)
class ItemKNN(Baseline):
    """Items like those the user has: ``score_j = sum over the user's i of S_ij``.

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

    neighbours: int = 100
    weighting: Weighting = field(default=Cosine(), metadata=tagged(_WEIGHTINGS))
    counts: Tensor = field(init=False, repr=False)
    ids: Tensor = field(init=False, repr=False)
    similarity: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole_number(self.neighbours, "neighbours")

    def fit(self, train: Interactions) -> Self:
        """Find the neighbours of every item."""
        weights = self.weighting(train.to_csr())
        itself = Jagged(torch.arange(train.items), torch.arange(train.items + 1))
        found = top_k(_Products(weights, weights.T.tocsr()), self.neighbours, exclude=itself)
        # A neighbour in name only, with similarity 0 or none at all, adds nothing to item 0.
        near = found.scores > 0
        self.ids, self.similarity = found.ids.where(near, 0), found.scores.where(near, 0.0)
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice)."""
        rows = len(history.offsets) - 1
        start = history.row.unsqueeze(1) * self.items
        total = torch.zeros(rows * self.items)
        where = (start + self.ids[history.values]).view(-1)
        total.index_add_(0, where, self.similarity[history.values].view(-1))
        return total.view(rows, self.items)[:, items]

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Counts, and of each item the neighbours and how similar they are."""
        yield from super().layout(found, items)
        yield "ids", Spec((items, self.neighbours), torch.int64, least=0, below=items)
        yield "similarity", Spec((items, self.neighbours), least=0)


@dataclass(eq=False)
class EASE(Baseline):
    """The best linear model from items to items that may not use an item to explain itself.

    ``min |X - X B|^2 + l2 |B|^2`` with a zero diagonal: ``B = -P / diag(P)`` off the diagonal,
    ``P = (X^T X + l2 I)^-1``, and ``score = x B``. Hard to beat, but B has items^2 numbers; above
    `most_items` it refuses. Memory while learning is about 20 items^2 bytes, time grows with
    items^3.

    Example:
        >>> from fewfold.recommender import EASE, Interactions
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> EASE(l2=1.0).fit(train).recommend(Interactions.from_pairs([0], [3]).jagged, 2)
        tensor([[2, 0]])

    Reference:
        Steck (2019). Embarrassingly shallow autoencoders for sparse data. WWW.
    """

    l2: float = 250.0
    most_items: int = 20_000
    counts: Tensor = field(init=False, repr=False)
    weights: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive_number(self.l2, "l2")
        whole_number(self.most_items, "most_items")

    def fit(self, train: Interactions) -> Self:
        """Solve for the item-to-item matrix."""
        if train.items > self.most_items:
            raise ValueError(
                f"EASE holds items x items matrices: {train.items} items need about "
                f"{20e-9 * train.items**2:.1f} GB, and the limit is most_items={self.most_items}; "
                "drop rare items with k_core, raise most_items, or use ItemKNN"
            )
        matrix = train.to_csr()
        gram = torch.from_numpy((matrix.T @ matrix).toarray())
        gram.diagonal().add_(self.l2)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        # LAPACK answers column by column; scoring reads whole rows.
        self.weights = inverse.div_(-inverse.diagonal().clone()).contiguous()
        self.weights.fill_diagonal_(0.0)
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice)."""
        table = self.weights[:, items]
        # A sum over the few rows of B that the user has, not a product with all of B.
        return F.embedding_bag(
            history.values, table, history.offsets, mode="sum", include_last_offset=True
        )

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Counts, and the matrix from items to items."""
        yield from super().layout(found, items)
        yield "weights", Spec((items, items))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The scorer of a fitted model for the users whose items are known."""

    model: Baseline
    history: Jagged

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.history.offsets) - 1, self.model.items

    def __call__(self, users: slice, items: slice) -> Tensor:
        mine = self.history.rows(users)
        scores = self.model.scores(mine, items)
        scores[mine.lengths == 0] = self.model.counts[items]
        return scores


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
