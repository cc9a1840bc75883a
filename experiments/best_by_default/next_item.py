"""Next-item tasks, and their metrics: the place of one item in a ranking of all items."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender import Jagged, Ranking

__all__ = ["Task", "drop_last", "evaluate_next_item", "prefixes_of", "sampled"]

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Task:
    """Sequences to learn from, and next items to find.

    Attributes:
        train: items of each training sequence, from oldest to newest, with repetitions.
        prefixes: what is known of each test case, from oldest to newest.
        targets: (cases,) the item that came next.
        items: number of items.
        exclude: whether the items of the prefix are left out of the ranking.
    """

    train: Jagged
    prefixes: Jagged
    targets: Tensor
    items: int
    exclude: bool


def evaluate_next_item(
    fitted_rank: Callable[..., Ranking],
    prefixes: Jagged,
    targets: Tensor,
    *,
    exclude: bool = False,
    ks: tuple[int, ...] = (5, 10, 20),
) -> dict[str, float]:
    """Rank all items after each prefix and return Recall@k, MRR@k and NDCG@k of the target.

    With one target in place p (from 1): Recall is 1 if p <= k, MRR is 1 / p and NDCG is
    1 / log2(1 + p) if p <= k, and 0 otherwise; means over all cases.

    Args:
        fitted_rank: `Fitted.rank`, called as ``fitted_rank(history, k, exclude=...)``.
        prefixes: histories from oldest to newest.
        targets: (cases,) items; one that the model does not know is a miss.
        exclude: leave the items of the prefix out of the ranking.
        ks: lengths of the list.
    """
    cases, most = len(targets), max(ks)
    places = []
    with phase("ranking next items", total=-(-cases // _ROWS_AT_ONCE)) as progress:
        for start in progress.each(range(0, cases, _ROWS_AT_ONCE)):
            block = slice(start, start + _ROWS_AT_ONCE)
            known = prefixes.rows(block)
            top = fitted_rank(known, most, exclude=known if exclude else None).ids
            hit = top == targets[block].unsqueeze(1)
            places.append(torch.where(hit.any(1), hit.int().argmax(1) + 1, most + 1))
    place = torch.cat(places).double()
    found = {}
    for k in ks:
        near = (place <= k).double()
        found[f"recall@{k}"] = near.mean().item()
        found[f"mrr@{k}"] = (near / place).mean().item()
        found[f"ndcg@{k}"] = (near / (1 + place).log2()).mean().item()
    return found


def sampled(task: Task, cases: int, *, seed: int = 0) -> Task:
    """The task with so many of its cases, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(task.targets), generator=generator)[:cases].sort().values
    return replace(task, prefixes=task.prefixes.rows(some), targets=task.targets[some])


def prefixes_of(sessions: Jagged) -> tuple[Jagged, Tensor]:
    """Every prefix of every session, and the items that came next."""
    row, offsets = sessions.row, sessions.offsets
    at = torch.arange(len(row)) - offsets[row]
    later = at > 0
    length, start = at[later], offsets[row[later]]
    ends = torch.cat([length.new_zeros(1), length.cumsum(0)])
    position = torch.arange(int(ends[-1])) + torch.repeat_interleave(start - ends[:-1], length)
    return Jagged(sessions.values[position], ends), sessions.values[later]


def drop_last(sequences: Jagged, count: int) -> Jagged:
    """The sequences without their last `count` items; shorter ones become empty."""
    lengths = (sequences.lengths - count).clamp(min=0)
    at = torch.arange(len(sequences.values)) - sequences.offsets[sequences.row]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Jagged(sequences.values[at < lengths[sequences.row]], offsets)
