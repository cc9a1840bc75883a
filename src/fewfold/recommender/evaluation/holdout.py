"""Choose the split of a log for evaluation, given its times and users."""

from dataclasses import dataclass
from datetime import UTC, datetime

from torch import Tensor

from fewfold._check import fraction
from fewfold.recommender.evaluation.splits import (
    Split,
    last_out_split,
    random_split,
    temporal_split,
)
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = [
    "MAX_COLD_SHARE",
    "SPLITS",
    "HoldOut",
    "check_choice",
    "cold_share_of",
    "hold_out",
    "hold_out_some",
]

SPLITS = ("auto", "temporal", "last", "random")
# Share of tested users without a history above which `auto` avoids the temporal split.
MAX_COLD_SHARE = 0.5


@dataclass(frozen=True)
class HoldOut:
    """The part of a log that is held out from training to evaluate on.

    Attributes:
        test: share of the interactions; 0 for none.
        split: which of them: `"temporal"`, those after one moment; `"last"`, each user's last item;
            `"random"`, a share of each user's items; or `"auto"`: temporal if there are times and
            most of the tested users have earlier interactions, last if they have not, random
            without times.
        all_users: evaluate on all users. Otherwise a sample of them is ranked where all would take
            long; the report says so.

    Example:
        >>> import fewfold as ff
        >>> log = {"user": [1, 1, 2, 2], "item": ["a", "b", "a", "c"], "time": [1, 2, 3, 4]}
        >>> last = ff.recommender.HoldOut(0.2, split="last")
        >>> rec = ff.Recommender(ff.recommender.EASE(1.0)).fit(log, test=last, progress=False)
        >>> rec.evaluation.split
        "each user's last item by time"
    """

    test: float = 0.2
    split: str = "auto"
    all_users: bool = False

    def __post_init__(self) -> None:
        fraction(self.test, "test")
        check_choice(self.split, SPLITS)

    @classmethod
    def of(cls, test: "float | HoldOut") -> "HoldOut":
        """Return a `HoldOut` of this share; one that is given stays as it is."""
        return test if isinstance(test, HoldOut) else cls(test)

    def apply(self, log: Interactions, seed: int) -> tuple[Split, str]:
        """Split the log; see `hold_out`."""
        return hold_out(log, test=self.test, split=self.split, seed=seed)


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
    check_choice(split, SPLITS)
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
        return _random(log, test, seed, " (times are too coarse for a split by time)")
    cold_share = cold_share_of(found.fold_in.jagged, found.test.jagged)
    share = found.test.pairs / log.pairs
    if split == "auto" and cold_share > MAX_COLD_SHARE:
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
    if cold_share > MAX_COLD_SHARE:
        words += f"; {cold_share:.1%} of tested users have no earlier interaction"
    return found, words


def check_choice(split: str, choices: tuple[str, ...]) -> None:
    if split not in choices:
        raise ValueError(f"split must be one of {', '.join(choices)}, got {split!r}")


def cold_share_of(known: Jagged, test: Jagged) -> float:
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
        words += f"; {_count_users(tied)} several at their last time, and all are held out"
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


def hold_out_some(log: Interactions, seed: int) -> tuple[Split | None, str]:
    """Hold out each user's last item or some at random; None if users have too few items."""
    if log.times is not None and bool(_has_order(log).any()):
        return _last(log)
    try:
        return _random(log, 0.2, seed)
    except ValueError:
        return None, "every interaction"
