"""Choose the split of a log for evaluation, given its times and users."""

from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch import Tensor

from fewfold.recommender.evaluation.splits import (
    Split,
    last_out_split,
    random_split,
    temporal_split,
)
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = ["LOG_SPLITS", "SPLITS", "Questions", "among", "hold_out", "kept", "questions"]

SPLITS = ("auto", "temporal", "last", "random")  # for a log to fit on
LOG_SPLITS = ("auto", "all", "last", "random")  # for a log on which a fitted model is evaluated
# Share of tested users without a history above which `auto` avoids the temporal split.
_MAX_COLD_SHARE = 0.5


def hold_out(
    log: Interactions, *, test: float = 0.2, split: str = "auto", seed: int = 0
) -> tuple[Split, str]:
    """Split a log into a training and a test part.

    `auto` uses the temporal split if times are known. If most of its test users would have no
    earlier interaction (as in short click sessions), no model could use their history; then each
    user's last item is held out instead. Without times, or if no user has items at different times,
    a share of each user's items is drawn at random.

    Args:
        log: users x items.
        test: share to hold out; ignored by `last`, which holds out one item per user.
        split: one of `SPLITS`.
        seed: of the random split.

    Returns:
        The split, and a description of how and why it was made.
    """
    _check_choice(split, SPLITS)
    timed = log.times is not None and bool((log.times > log.times.min()).any())
    if split == "random" or (split == "auto" and not timed):
        return _random(log, test, seed)
    if log.times is None:
        raise ValueError(
            f"split={split!r} (--split {split}) needs times, and this log has none; name their "
            "column with time= (--time), or use split='random' (--split random)"
        )
    if split == "last":
        return _last(log)
    try:
        found = temporal_split(log, test=test)
    except ValueError:
        if split == "temporal":
            raise
        return _random(log, test, seed, " (times are too coarse to tell the last)")
    cold_share = _cold_share(found.fold_in.jagged, found.test.jagged)
    share = found.test.pairs / log.pairs
    if split == "auto" and cold_share > _MAX_COLD_SHARE:
        why = (
            f"{cold_share:.1%} of the users with interactions in the last {share:.0%} of the log "
            "have no earlier interaction, so it is"
        )
        if not bool(_has_order(log).any()):
            return _random(log, test, seed, f"; {why} not split by time, nor do times order items")
        held, words = _last(log)
        return held, f"{words}; {why} not split at one moment"
    moment = _moment(found.train.times.max().item())  # type: ignore[union-attr]
    words = f"the last {share:.0%} of all interactions, those after {moment}"
    if cold_share > _MAX_COLD_SHARE:
        words += f"; {cold_share:.1%} of tested users have no earlier interaction"
    return found, words


def _check_choice(split: str, choices: tuple[str, ...]) -> None:
    if split not in choices:
        raise ValueError(f"split must be one of {', '.join(choices)}, got {split!r}")


def _cold_share(known: Jagged, test: Jagged) -> float:
    """Return the share of users with test items that have no history."""
    tested = test.lengths > 0
    return float((known.lengths[tested] == 0).double().mean()) if bool(tested.any()) else 0.0


def _has_order(log: Interactions) -> Tensor:
    """Return (users,) true where a user's items have at least two different times."""
    return last_out_split(log).test.jagged.lengths > 0


def _last(log: Interactions) -> tuple[Split, str]:
    split = last_out_split(log)
    lengths = split.test.jagged.lengths
    if split.test.pairs == 0:
        raise ValueError(
            "split='last' (--split last) leaves nothing to test: no user has items at two "
            "different times; use split='random' (--split random)"
        )
    words = "each user's last item by time"
    tied = int((lengths > 1).sum())
    if tied:
        words += f", or items: {_count_users(tied)} several at their last time, all held out"
    unordered = int(((lengths == 0) & (log.jagged.lengths > 1)).sum())
    if unordered:
        words += f"; {_count_users(unordered)} all items at one time, and no test item"
    return split, words


def _count_users(count: int) -> str:
    return "1 user has" if count == 1 else f"{count:,} users have"


def _random(log: Interactions, test: float, seed: int, why: str = "") -> tuple[Split, str]:
    split = random_split(log, test=test, seed=seed)
    if split.test.pairs == 0:
        raise ValueError(
            f"holding out {test:g} of each user's items leaves nothing to test: users have "
            "too few items; pass test=0 (--test 0) to fit on everything without an evaluation"
        )
    return split, f"{test:.0%} of each user's items, at random{why} (seed {seed})"


def _moment(time: float) -> str:
    """Format a time; dates are stored as microseconds and shown as dates."""
    if 10**14 < time < 10**16:
        return str(datetime.fromtimestamp(time / 1e6, UTC).replace(microsecond=0, tzinfo=None))
    return f"time {time}"


@dataclass(frozen=True, eq=False)
class Questions:
    """Input histories and test items for evaluating a fitted model on another log.

    Attributes:
        known: history of each user, as item numbers of the model.
        test: test items; numbers beyond the model's items are unknown to it.
        words: description of how the test items were chosen.
        repeated: interactions of the log that the model was trained on, which are ignored.
    """

    known: Jagged
    test: Jagged
    words: str
    repeated: int


def questions(
    log: Interactions,
    known: Jagged,
    number: Tensor,
    items: int,
    *,
    split: str = "auto",
    seed: int = 0,
) -> Questions:
    """Choose the test interactions of a log and the history given to a fitted model.

    `all` tests every interaction, given the history stored in the model. `last` and `random` add
    the other interactions of the log to the history. `auto` uses `all`, unless most users have no
    history in the model; then `last` if times order items, else `random`.

    Args:
        log: the log to evaluate on.
        known: history of each of these users in the model.
        number: (items of the log,) their numbers in the model; `items` or above if unknown.
        items: number of items of the model.
        split: one of `LOG_SPLITS`.
    """
    _check_choice(split, LOG_SPLITS)
    fresh = ~among(Jagged(number[log.ids], log.offsets), known)
    repeated, log = int((~fresh).sum()), log.keep(fresh)
    if log.pairs == 0:  # nothing is left to test
        return Questions(known, Jagged(number[log.ids], log.offsets), "no interaction", repeated)
    cold_share = _cold_share(known, log.jagged)
    held: Split | None = None
    words, why = "every interaction", ""
    if split == "auto" and cold_share > _MAX_COLD_SHARE:
        why = f"; the model knows nothing of {cold_share:.1%} of the users"
        held, words = _hold_out_some(log, seed)
    elif split in ("last", "random"):
        held, words = hold_out(log, split=split, seed=seed)
    if held is None:
        return Questions(known, Jagged(number[log.ids], log.offsets), words + why, repeated)
    fold_in = Jagged(number[held.fold_in.ids], held.fold_in.offsets)
    fold_in = kept(fold_in, fold_in.values < items)
    test = Jagged(number[held.test.ids], held.test.offsets)
    return Questions(_merge_rows(known, fold_in), test, words + why, repeated)


def _hold_out_some(log: Interactions, seed: int) -> tuple[Split | None, str]:
    """Hold out each user's last item or some at random; None if users have too few items."""
    if log.times is not None and bool(_has_order(log).any()):
        return _last(log)
    try:
        return _random(log, 0.2, seed)
    except ValueError:
        return None, "every interaction"


def _merge_rows(first: Jagged, second: Jagged) -> Jagged:
    """Merge two disjoint sets of rows, with sorted values."""
    most = 1 + max(int(part.max()) if len(part) else 0 for part in (first.values, second.values))
    keys = torch.cat([part.row * most + part.values for part in (first, second)])
    return Jagged(keys.sort().values % most, first.offsets + second.offsets)


def kept(rows: Jagged, mask: Tensor) -> Jagged:
    """Return the values where the mask is true, in the same rows."""
    before = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
    return Jagged(rows.values[mask], before[rows.offsets])


def among(rows: Jagged, others: Jagged) -> Tensor:
    """Return (values of rows,) true where the same row of `others` has the value too."""
    most = 1 + max(int(part.max()) if len(part) else 0 for part in (rows.values, others.values))
    return torch.isin(rows.row * most + rows.values, others.row * most + others.values)
