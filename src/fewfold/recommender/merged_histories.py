"""Histories of users continued by the interactions of a later log."""

from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.recommender.interactions import Interactions

__all__ = ["Additions", "merged_history"]


class Additions(NamedTuple):
    """The interactions of a later log, with numbers of its users and items among all of them.

    Attributes:
        log: the interactions.
        users: (users of the log,) their numbers, -1 for those to leave out.
        items: (items of the log,) likewise.
    """

    log: Interactions
    users: Tensor
    items: Tensor

    def pairs(self, log: Interactions) -> tuple[Tensor, Tensor, Tensor]:
        """Return users and items of pairs of the log by their numbers, and a mask of these pairs.

        Args:
            log: the interactions themselves, or their dislikes.
        """
        row, ids = self.users[log.row], self.items[log.ids]
        known = (row >= 0) & (ids >= 0)
        return row[known], ids[known], known


def merged_history(
    history: Interactions | None, later: Additions, shape: tuple[int, int]
) -> tuple[Interactions, Interactions]:
    """Continue histories by a later log; returns them, and the pairs that are new.

    Where both have times, those of the result are ranks within each user, and what is in the log
    comes after what is not. The new pairs have the times of the log.

    Args:
        history: items of each user, whose numbers stay the same; None for no histories.
        later: the log.
        shape: (users, items), of which there may be more than before.
    """
    row, ids, known = later.pairs(later.log)
    times = None if later.log.times is None else later.log.times[known]
    log = Interactions.from_pairs(row, ids, times, shape=shape)
    if history is None:
        return _with_dislikes(log, None, later), log
    added = log.keep(~log.jagged.isin(_widened(history, shape).jagged))
    when = None
    if history.times is not None:
        ranks = history.time_ranks()
        when = torch.cat([ranks, _ranks_after(history, ranks, log)])
    merged = Interactions.from_pairs(
        torch.cat([history.row, log.row]), torch.cat([history.ids, log.ids]), when, shape=shape
    )
    return _with_dislikes(merged, history, later), added


def _widened(history: Interactions, shape: tuple[int, int]) -> Interactions:
    """Return the pairs of more users and items, which have none."""
    more = history.offsets[-1:].expand(shape[0] - history.users)
    return Interactions(torch.cat([history.offsets, more]), history.ids, shape[1])


def _ranks_after(history: Interactions, ranks: Tensor, log: Interactions) -> Tensor:
    """Return (pairs of the log,) ranks of their times, above those of the history of their user."""
    last = torch.zeros(log.users, dtype=torch.int64)
    last.scatter_reduce_(0, history.row, ranks + 1, "amax")
    own = torch.zeros_like(log.ids) if log.times is None else log.time_ranks()
    return last[log.row] + own


def _with_dislikes(
    merged: Interactions, history: Interactions | None, later: Additions
) -> Interactions:
    """Add the dislikes of both, unless a pair is liked by now."""
    rows, items = [], []
    if history is not None and history.dislikes is not None:
        rows.append(history.dislikes.row)
        items.append(history.dislikes.ids)
    if later.log.dislikes is not None:
        row, ids, _ = later.pairs(later.log.dislikes)
        rows.append(row)
        items.append(ids)
    if not rows:
        return merged
    shape = (merged.users, merged.items)
    both = Interactions.from_pairs(torch.cat(rows), torch.cat(items), shape=shape)
    return merged.with_values(dislikes=both.keep(~both.jagged.isin(merged.jagged)))
