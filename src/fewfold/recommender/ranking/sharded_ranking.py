"""Exact top-k items where each process has the vectors of some items."""

from collections.abc import Callable

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.ranking.exact_ranking import DotProduct, Ranking, top_k

__all__ = ["own_items", "sharded_top_k"]

_USERS = 4096  # ranked at once, so that not all queries are in memory


def sharded_top_k(
    group: Group,
    encode: Callable[[Jagged], Tensor],
    vectors: Tensor,
    history: Jagged,
    k: int,
    *,
    exclude: Jagged | None = None,
    allowed: Tensor | None = None,
) -> Ranking:
    """Return the k items with the highest scores for every row, as `top_k` of one process.

    Each process encodes some of the rows, ranks its own items for all of them, and merges the
    rankings of some of them: by score, and equal scores by the lower item id.

    Args:
        group: the processes; all call this with the same rows.
        encode: from histories to queries, (rows, d).
        vectors: (items of this process, d).
        history: items of each row.
        k: number of items.
        exclude: items of each row that are not ranked.
        allowed: (items,) boolean mask of the items that are ranked.
    """
    rows, found = len(history.offsets) - 1, []
    mask = None if allowed is None else allowed[group.rank :: group.world].contiguous()
    blocks = [slice(start, min(start + _USERS, rows)) for start in range(0, max(rows, 1), _USERS)]
    with phase("ranking items", total=len(blocks)) as progress:
        for block in progress.each(blocks):
            mine, counts = history.rows(block), group.shares(block.stop - block.start)
            own = encode(mine.rows(group.share(block.stop - block.start)))
            queries = group.gather(own, counts, "queries")
            gone = None if exclude is None else own_items(group, exclude.rows(block))
            best = top_k(DotProduct(queries, vectors), k, exclude=gone, allowed=mask)
            found.append(_merged(group, best, counts))
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def own_items(group: Group, lists: Jagged) -> Jagged:
    """Return the items of each list that this process has, numbered as its rows."""
    own = lists.select(lists.values % group.world == group.rank)
    return Jagged(own.values // group.world, own.offsets)


def _merged(group: Group, best: Ranking, counts: list[int]) -> Ranking:
    """Merge the rankings of all processes, each for its share of the rows; return all rows."""
    k = best.ids.shape[1]
    ids = torch.where(best.ids < 0, -1, best.ids * group.world + group.rank)
    own = [counts[group.rank]] * group.world
    there = group.exchange(ids, counts, own, "ranking").view(group.world, -1, k)
    scores = group.exchange(best.scores, counts, own, "ranking").view(group.world, -1, k)
    wide, high = (part.transpose(0, 1).flatten(1) for part in (there, scores))
    by_id = wide.argsort(dim=1, stable=True)
    wide, high = wide.gather(1, by_id), high.gather(1, by_id)
    order = high.argsort(dim=1, descending=True, stable=True)[:, :k]
    chosen = (part.gather(1, order).contiguous() for part in (wide, high))
    return Ranking(*(group.gather(part, counts, "ranking") for part in chosen))
