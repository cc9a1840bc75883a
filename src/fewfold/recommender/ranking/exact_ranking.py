"""Exact top-k items per user, in blocks, without the full (users, items) score matrix."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fewfold._check import check_scores, jagged, whole_number
from fewfold._native import dispatch
from fewfold._progress import phase
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.ranking.row_top_k import Heaps, Sorted, padded

__all__ = ["DotProduct", "Ranking", "Scorer", "positive", "top_k"]

_CACHED = 1 << 19  # scores that stay in a processor's cache until they are ranked
_SUBSET_FACTOR = 8  # if at most one item in 8 is allowed, copy their vectors


class Scorer(Protocol):
    """Protocol of score functions for `top_k`.

    `shape` is (users, items). Called with a slice of users and a slice of items, it returns their
    scores, a new floating-point tensor that `top_k` may overwrite. An item scored ``-inf`` is
    never recommended.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""

    def __call__(self, users: slice, items: slice) -> Tensor:
        """Return the scores of these users for these items."""


@dataclass(frozen=True, eq=False)
class DotProduct:
    """The scorer ``<query_u, vector_i>``, in the dtype of the vectors.

    The summation order may depend on the number of users per call, so items whose scores differ by
    no more than rounding may be ranked differently. The ranking always agrees with the returned
    scores.

    Attributes:
        queries: (users, d).
        vectors: (items, d), or a `Catalogue` of them, which is faster.
    """

    queries: Tensor
    vectors: Tensor | Catalogue

    def __post_init__(self) -> None:
        check_scores(self.queries, "queries")
        check_scores(self.table, "vectors")
        shapes = tuple(self.queries.shape), tuple(self.table.shape)
        if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                "queries and vectors must have shapes (users, d) and (items, d), "
                f"got {shapes[0]} and {shapes[1]}"
            )

    @property
    def table(self) -> Tensor:
        """(items, d)."""
        return self.vectors.vectors if isinstance(self.vectors, Catalogue) else self.vectors

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""
        return self.queries.shape[0], self.table.shape[0]

    def __call__(self, users: slice, items: slice) -> Tensor:
        """Return the scores of a block, (users, items)."""
        return self.queries[users] @ self.table[items].t()


class Ranking(NamedTuple):
    """Top-k items per user.

    Attributes:
        ids: (users, k) int64, best first; -1 where the user has no more items.
        scores: (users, k), ``-inf`` there.
    """

    ids: Tensor
    scores: Tensor


def positive(found: Ranking) -> Ranking:
    """Return a ranking that ends where scores are 0 or less."""
    gone = found.scores <= 0
    return Ranking(found.ids.masked_fill(gone, -1), found.scores.masked_fill(gone, -torch.inf))


def top_k(
    scorer: Scorer,
    k: int,
    *,
    exclude: Interactions | Jagged | None = None,
    allowed: Tensor | None = None,
    users_at_once: int = 256,
    items_at_once: int = 16384,
) -> Ranking:
    """Return the k items with the highest scores for every user, excluding given items.

    Iterates over blocks of users and chunks of items and keeps k candidates per user, so that
    memory is bounded by ``users_at_once * items_at_once`` scores. Ties are broken by the lower item
    id, independently of the block sizes. A NaN score raises, unless the item is excluded.

    Args:
        scorer: a `Scorer`, such as ``DotProduct(user_vectors, item_vectors)``.
        k: number of items; rows of users with fewer candidates end with -1.
        exclude: items to exclude per user, usually their history.
        allowed: (items,) boolean mask of candidates; None for all items. With a
            `DotProduct`, a small subset costs only its own size.

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
        >>> cheap = torch.tensor([True, True, False])
        >>> top_k(DotProduct(torch.ones(2, 2), vectors), 1, exclude=seen, allowed=cheap).ids
        tensor([[0],
                [1]])
    """
    whole_number(k, "k")
    whole_number(users_at_once, "users_at_once")
    whole_number(items_at_once, "items_at_once")
    users, items = scorer.shape
    seen = _check_exclude(exclude, users, items)
    allowed = _check_allowed(allowed, items)
    if allowed is not None and isinstance(scorer, DotProduct):
        among = allowed.nonzero().squeeze(-1)
        if 0 < len(among) <= items // _SUBSET_FACTOR:
            return _rank_subset(scorer, among, k, seen, users_at_once, items_at_once)
    budget = users_at_once * items_at_once
    if isinstance(scorer, DotProduct):  # of which small blocks cost nothing more
        budget = min(budget, _CACHED)
    blocks = _reusing_memory(scorer, min(budget, min(users, users_at_once) * items))
    found = []
    starts = range(0, users, users_at_once)
    with phase("ranking items", total=len(starts)) as progress:
        for start in progress.each(starts):
            block = slice(start, min(start + users_at_once, users))
            mine = seen.rows(block)
            chunk = budget // (block.stop - start)  # fewer users allow larger chunks
            found.append(
                _rank_quantised(scorer, block, min(k, items), mine, allowed)
                or _rank_block(blocks, block, min(k, items), mine, allowed, chunk)
            )
    if not found:
        return Ranking(torch.empty(0, k, dtype=torch.int64), torch.empty(0, k))
    ids, scores = (torch.cat(part) for part in zip(*found, strict=True))
    # There may be fewer than k items in total.
    return Ranking(*padded(ids.masked_fill(scores == -torch.inf, -1), scores, k))


@dataclass(frozen=True, eq=False)
class _Overwriting:
    """A dot product whose blocks are all written to the same memory."""

    scorer: DotProduct
    memory: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.scorer.shape

    def __call__(self, users: slice, items: slice) -> Tensor:
        shape = users.stop - users.start, items.stop - items.start
        out = self.memory[: shape[0] * shape[1]].view(shape)
        return torch.mm(self.scorer.queries[users], self.scorer.table[items].t(), out=out)


def _reusing_memory(scorer: Scorer, size: int) -> Scorer:
    """Return the scorer, with one piece of memory for all blocks of at most `size` scores.

    Blocks that are allocated one after the other leave the cache, and fragment the heap.
    """
    if not isinstance(scorer, DotProduct):
        return scorer
    if scorer.queries.requires_grad or scorer.table.requires_grad:
        return scorer  # gradients need every block
    return _Overwriting(scorer, scorer.table.new_empty(size))


def _check_exclude(exclude: Interactions | Jagged | None, users: int, items: int) -> Jagged:
    if exclude is None:
        nothing = torch.zeros(users + 1, dtype=torch.int64)
        return Jagged(nothing[:0], nothing)
    seen = exclude.jagged if isinstance(exclude, Interactions) else exclude
    rows = len(seen.offsets) - 1
    if rows != users:
        raise ValueError(f"exclude must have one row for each of {users} users, got {rows}")
    seen = Jagged(*jagged(*seen, rows=users))
    if len(seen.values):
        least, most = (int(end) for end in seen.values.aminmax())
        if least < 0 or most >= items:
            raise ValueError(
                f"exclude must hold item ids between 0 and {items - 1}, got {least} to {most}"
            )
    return seen


def _check_allowed(allowed: Tensor | None, items: int) -> Tensor | None:
    if allowed is None:
        return None
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        came = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise TypeError(
            f"allowed must be a boolean tensor (True = may be recommended), got {came}; for ids "
            "write allowed = torch.zeros(items, dtype=torch.bool); allowed[ids] = True"
        )
    if allowed.shape != (items,):
        raise ValueError(f"allowed must have shape ({items},), got {tuple(allowed.shape)}")
    return None if bool(allowed.all()) else allowed.contiguous()


def _rank_subset(scorer: DotProduct, items: Tensor, k: int, seen: Jagged, *at_once: int) -> Ranking:
    """Rank a small subset of the items (ascending ids) by copying their vectors."""
    seen, items = seen.to(scorer.table.device), items.to(scorer.table.device)
    place = torch.full((scorer.shape[1],), -1, device=items.device)
    place[items] = torch.arange(len(items), device=items.device)
    values = place[seen.values]
    before = torch.cat([values.new_zeros(1), (values >= 0).cumsum(0)])
    found = top_k(
        DotProduct(scorer.queries, scorer.table[items]), k,
        exclude=Jagged(values[values >= 0], before[seen.offsets]),
        users_at_once=at_once[0], items_at_once=at_once[1],
    )  # fmt: skip
    return found._replace(ids=items[found.ids.clamp(min=0)].masked_fill(found.ids < 0, -1))


def _rank_quantised(
    scorer: Scorer, users: slice, k: int, seen: Jagged, allowed: Tensor | None
) -> Ranking | None:
    """Rank users with the quantised catalogue; None if unavailable or inconclusive."""
    if not isinstance(scorer, DotProduct) or not isinstance(scorer.vectors, Catalogue):
        return None
    best = scorer.vectors.best(scorer.queries[users].detach(), k, seen, allowed)
    return None if best is None else Ranking(*best)


def _rank_block(
    scorer: Scorer, users: slice, k: int, seen: Jagged, allowed: Tensor | None, step: int
) -> Ranking:
    """Rank one block of users, merging chunks of items."""
    items = scorer.shape[1]
    best: Heaps | Sorted | None = None
    for start in range(0, items, step):
        chunk = slice(start, min(start + step, items))
        if best is not None and allowed is not None and not bool(allowed[chunk].any()):
            continue
        block = scorer(users, chunk)
        size = users.stop - users.start, chunk.stop - start
        if block.shape != size:
            raise ValueError(
                f"the scorer must return scores of shape {size} for {users} and {chunk}, "
                f"got {tuple(block.shape)}"
            )
        if best is None:
            native = dispatch.ready(block) and not block.requires_grad
            best = (Heaps if native else Sorted)(block, k, seen, allowed)
        best.add(block, start)
    if best is None:
        count = users.stop - users.start
        return Ranking(torch.empty(count, 0, dtype=torch.int64), torch.empty(count, 0))
    return Ranking(*best.ranked())
