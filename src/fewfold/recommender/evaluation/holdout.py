"""Choose how test items are held out, so that the log can answer what it is asked."""

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

SPLITS = ("auto", "temporal", "last", "random")  # of a log to learn from
LOG_SPLITS = ("auto", "all", "last", "random")  # of a log to evaluate a fitted model on
_STRANGERS = 0.5  # share of tested users without a history above which `auto` holds out otherwise


def hold_out(
    log: Interactions, *, test: float = 0.2, split: str = "auto", seed: int = 0
) -> tuple[Split, str]:
    """Split a log into a training and a test part.

    `auto` takes the temporal split where times are known. If most of the users it would test have
    no earlier interaction (click sessions, for instance, which live for minutes), no model can
    know anything of them; then each user's last item is held out instead. Without times, or where
    they do not order the items of any user, a share of each user's items is drawn at random.

    Args:
        log: users x items.
        test: the share to hold out; `last` holds out one item per user whatever the share.
        split: one of `SPLITS`.
        seed: of the random split.

    Returns:
        The split, and how and why it was made, in words.
    """
    _choice(split, SPLITS)
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
    strangers = _strangers(found.fold_in.jagged, found.test.jagged)
    share = found.test.pairs / log.pairs
    if split == "auto" and strangers > _STRANGERS:
        why = (
            f"{strangers:.1%} of the users with interactions in the last {share:.0%} of the log "
            "have no earlier interaction, so it is"
        )
        if not bool(_ordered(log).any()):
            return _random(log, test, seed, f"; {why} not split by time, nor do times order items")
        held, words = _last(log)
        return held, f"{words}; {why} not split at one moment"
    moment = _moment(found.train.times.max().item())  # type: ignore[union-attr]
    words = f"the last {share:.0%} of all interactions, those after {moment}"
    if strangers > _STRANGERS:
        words += f"; {strangers:.1%} of tested users have no earlier interaction"
    return found, words


def _choice(split: str, choices: tuple[str, ...]) -> None:
    if split not in choices:
        raise ValueError(f"split must be one of {', '.join(choices)}, got {split!r}")


def _strangers(known: Jagged, test: Jagged) -> float:
    """The share of users with test items of whom nothing is known."""
    tested = test.lengths > 0
    return float((known.lengths[tested] == 0).double().mean()) if bool(tested.any()) else 0.0


def _ordered(log: Interactions) -> Tensor:
    """(users,) true where a user's items have at least two different times."""
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
        words += f", or items: {_people(tied)} several at their last time, all held out"
    unordered = int(((lengths == 0) & (log.jagged.lengths > 1)).sum())
    if unordered:
        words += f"; {_people(unordered)} all items at one time, and no test item"
    return split, words


def _people(count: int) -> str:
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
    """A time; dates are kept as microseconds, and shown as dates."""
    if 10**14 < time < 10**16:
        return str(datetime.fromtimestamp(time / 1e6, UTC).replace(microsecond=0, tzinfo=None))
    return f"time {time}"


@dataclass(frozen=True, eq=False)
class Questions:
    """What a fitted model is asked about the users of another log.

    Attributes:
        known: what is known of each user, by number of the item in the model.
        test: what is to be found; items the model does not know have numbers beyond its own.
        words: how the test items were chosen.
        repeated: interactions of the log that the model has learned from, which do not count.
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
    """Choose which interactions of a log test a fitted model, and what it is told of each user.

    `all` asks for every interaction, from what the model knows of the user. `last` and `random`
    tell it the other interactions of the log too. `auto` takes `all`, unless the model knows
    nothing of most users; then `last` where times order items, else `random`.

    Args:
        log: to evaluate on.
        known: what the model knows of each of these users.
        number: (items of the log,) their numbers in the model; from `items` on: unknown to it.
        items: how many the model has.
        split: one of `LOG_SPLITS`.
    """
    _choice(split, LOG_SPLITS)
    fresh = ~among(Jagged(number[log.ids], log.offsets), known)
    repeated, log = int((~fresh).sum()), log.keep(fresh)
    if log.pairs == 0:  # nothing is left to ask
        return Questions(known, Jagged(number[log.ids], log.offsets), "no interaction", repeated)
    strangers = _strangers(known, log.jagged)
    held: Split | None = None
    words, why = "every interaction", ""
    if split == "auto" and strangers > _STRANGERS:
        why = f"; the model knows nothing of {strangers:.1%} of the users"
        held, words = _parted(log, seed)
    elif split in ("last", "random"):
        held, words = hold_out(log, split=split, seed=seed)
    if held is None:
        return Questions(known, Jagged(number[log.ids], log.offsets), words + why, repeated)
    told = Jagged(number[held.fold_in.ids], held.fold_in.offsets)
    told = kept(told, told.values < items)
    test = Jagged(number[held.test.ids], held.test.offsets)
    return Questions(_together(known, told), test, words + why, repeated)


def _parted(log: Interactions, seed: int) -> tuple[Split | None, str]:
    """Each user's last item, or some at random, or None where users have too few."""
    if log.times is not None and bool(_ordered(log).any()):
        return _last(log)
    try:
        return _random(log, 0.2, seed)
    except ValueError:
        return None, "every interaction"


def _together(first: Jagged, second: Jagged) -> Jagged:
    """The values of both, row by row and sorted; no row has a value in both."""
    most = 1 + max(int(part.max()) if len(part) else 0 for part in (first.values, second.values))
    keys = torch.cat([part.row * most + part.values for part in (first, second)])
    return Jagged(keys.sort().values % most, first.offsets + second.offsets)


def kept(rows: Jagged, mask: Tensor) -> Jagged:
    """The values where the mask is true, in the same rows."""
    before = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
    return Jagged(rows.values[mask], before[rows.offsets])


def among(rows: Jagged, others: Jagged) -> Tensor:
    """(values of rows,) true where the same row of the others has it too."""
    most = 1 + max(int(part.max()) if len(part) else 0 for part in (rows.values, others.values))
    return torch.isin(rows.row * most + rows.values, others.row * most + others.values)
