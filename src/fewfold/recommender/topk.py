"""The best k items of every user, exactly, without ever holding users x items scores."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fewfold._check import check_scores, whole_number
from fewfold._progress import over
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = ["DotProduct", "Ranking", "Scorer", "top_k"]


class Scorer(Protocol):
    """Scores in blocks: what `top_k` asks for.

    `shape` is (users, items). Called with a slice of users and a slice of items it returns their
    scores, a new floating-point tensor that `top_k` may overwrite. An item scored ``-inf`` is
    never recommended.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""

    def __call__(self, users: slice, items: slice) -> Tensor:
        """Scores of these users for these items."""


@dataclass(frozen=True, eq=False)
class DotProduct:
    """The scorer ``<query_u, vector_i>``.

    Attributes:
        queries: (users, d).
        vectors: (items, d).
    """

    queries: Tensor
    vectors: Tensor

    def __post_init__(self) -> None:
        check_scores(self.queries, "queries")
        check_scores(self.vectors, "vectors")
        shapes = tuple(self.queries.shape), tuple(self.vectors.shape)
        if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                "queries and vectors must have shapes (users, d) and (items, d), "
                f"got {shapes[0]} and {shapes[1]}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""
        return self.queries.shape[0], self.vectors.shape[0]

    def __call__(self, users: slice, items: slice) -> Tensor:
        """(users in the slice, items in the slice)."""
        return self.queries[users] @ self.vectors[items].t()


class Ranking(NamedTuple):
    """The best items of every user.

    Attributes:
        ids: (users, k) int64, best first; -1 where the user has no more items.
        scores: (users, k), ``-inf`` there.
    """

    ids: Tensor
    scores: Tensor


def top_k(
    scorer: Scorer,
    k: int,
    *,
    exclude: Interactions | Jagged | None = None,
    users_at_once: int = 256,
    items_at_once: int = 16384,
) -> Ranking:
    """The k items with the highest scores for every user, without those excluded.

    Goes through blocks of users and chunks of items and keeps k candidates per user, so memory is
    ``users_at_once * items_at_once`` scores whatever the catalogue. Equal scores are ordered by
    the lower item id, in whatever blocks they were met.

    Args:
        scorer: a `Scorer`, such as ``DotProduct(user_vectors, item_vectors)``.
        k: how many; a user with fewer items left gets -1 at the end.
        exclude: the items not to recommend to each user, usually what they have already.

    Returns:
        A `Ranking` of ids and scores, both (users, k).

    Example:
        >>> import torch
        >>> from fewfold.recommender import DotProduct, Interactions, top_k
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> seen = Interactions.from_pairs([1, 1], [0, 2], shape=(2, 3))
        >>> top_k(DotProduct(torch.ones(2, 2), vectors), 2, exclude=seen).ids
        tensor([[ 2,  0],
                [ 1, -1]])
    """
    whole_number(k, "k")
    whole_number(users_at_once, "users_at_once")
    whole_number(items_at_once, "items_at_once")
    users, items = scorer.shape
    seen = _check_exclude(exclude, users, items)
    found = [
        _block(scorer, slice(start, min(start + users_at_once, users)), k, seen, items_at_once)
        for start in over("ranking items", range(0, users, users_at_once))
    ]
    if not found:
        return Ranking(torch.empty(0, k, dtype=torch.int64), torch.empty(0, k))
    ids = torch.cat([block.ids for block in found])
    scores = torch.cat([block.scores for block in found])
    missing = k - ids.shape[1]  # the catalogue itself may be shorter than k
    ids = torch.nn.functional.pad(ids, (0, missing), value=-1)
    scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    return Ranking(ids.masked_fill(scores == -torch.inf, -1), scores)


def _check_exclude(exclude: Interactions | Jagged | None, users: int, items: int) -> Jagged | None:
    if exclude is None:
        return None
    seen = exclude.jagged if isinstance(exclude, Interactions) else exclude
    rows = len(seen.offsets) - 1
    if rows != users:
        raise ValueError(f"exclude must have one row for each of {users} users, got {rows}")
    if len(seen.values) and not 0 <= int(seen.values.min()) <= int(seen.values.max()) < items:
        raise ValueError(
            f"exclude must hold item ids between 0 and {items - 1}, got "
            f"{int(seen.values.min())} to {int(seen.values.max())}"
        )
    return seen


def _block(scorer: Scorer, users: slice, k: int, seen: Jagged | None, step: int) -> Ranking:
    """The ranking of one block of users, merged over chunks of items."""
    items = scorer.shape[1]
    mine = None if seen is None else seen.rows(users)
    row = None if mine is None else mine.row
    ids = scores = None
    for start in range(0, items, step):
        chunk = slice(start, min(start + step, items))
        block = scorer(users, chunk)
        if mine is not None and row is not None:
            inside = (mine.values >= chunk.start) & (mine.values < chunk.stop)
            block[row[inside], mine.values[inside] - start] = -torch.inf
        best, where = _best(block, min(k, block.shape[1]))
        where = where + start
        if ids is not None and scores is not None:
            # Earlier candidates have lower ids and come first: a stable sort keeps ties in order.
            best, order = torch.cat([scores, best], 1).sort(dim=1, descending=True, stable=True)
            where = torch.cat([ids, where], 1).gather(1, order)
        scores, ids = best[:, :k], where[:, :k]
    if ids is None or scores is None:
        count = users.stop - users.start
        return Ranking(torch.empty(count, 0, dtype=torch.int64), torch.empty(count, 0))
    return Ranking(ids, scores)


def _best(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of each row and where, equal ones from the left."""
    more = min(k + 1, block.shape[1])
    values, where = block.topk(more, dim=1)
    if bool(values[:, 0].isnan().any()):  # NaN sorts first
        raise ValueError("scores must be numbers, got nan; look at the vectors of the model")
    if more > k:
        # topk takes any of the scores equal to the k-th. Where the next is as good, take the
        # leftmost instead; rows that ran out of items do not care.
        last = values[:, k - 1]
        tied = ((values[:, k] == last) & (last > -torch.inf)).nonzero().squeeze(-1)
        values, where = values[:, :k], where[:, :k]
        if len(tied):
            where = where.clone()
            where[tied] = _leftmost(block[tied], last[tied], k)
    where = where.sort(1).values
    values, order = block.gather(1, where).sort(dim=1, descending=True, stable=True)
    return values, where.gather(1, order)


def _leftmost(block: Tensor, last: Tensor, k: int) -> Tensor:
    """(rows, k), increasing: what is above `last`, filled up with the first equal to it."""
    above = block > last.unsqueeze(1)
    equal = block == last.unsqueeze(1)
    room = k - above.sum(1, keepdim=True)
    taken = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= room))
    return taken.nonzero()[:, 1].view(-1, k)
