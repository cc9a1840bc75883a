"""How good a fitted model is on what it has not seen: one ranking, several slices of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.evaluation.holdout import kept
from fewfold.recommender.evaluation.metrics import NDCG, HitRate, Metric, Recall, Report, evaluate
from fewfold.recommender.evaluation.ranking_cost import MINUTE, ranking_work
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.model import Fitted

__all__ = ["METRICS", "Evaluation", "assess", "sample_users"]

_DRAWS = 2 * 10**8  # of users, in all the resamples of an interval
_PILOT, _LEAST = 1024, 10_000  # users to estimate a deviation by, and of a sample
_PRECISION, _NARROW, _WIDE = 0.025, 0.001, 0.005  # half an interval: part of the mean, limits
METRICS: tuple[Metric, ...] = (NDCG(10), Recall(10), HitRate(10), NDCG(50), Recall(50))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model finds of the items that were held out, ranked among all items.

    Attributes:
        split: how they were held out, in words.
        overall: over all users with test items.
        slices: the same for some of the users, or some of the test items.
        cold_pairs: test pairs whose item was never seen in training, which cannot be found.
        pairs: all test pairs, of the users that were ranked.
        tested: how many users have test items; more than `overall.users` where a sample of them
            was ranked.
    """

    split: str
    overall: Report
    slices: Mapping[str, Report]
    cold_pairs: int
    pairs: int
    tested: int

    @property
    def sample(self) -> str:
        """Which part of the users was ranked, in words; empty if all were."""
        if self.overall.users == self.tested:
            return ""
        return f"a sample of {self.overall.users:,} of {self.tested:,} users"

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "split": self.split,
            "users with test items": self.tested,
            "users ranked": self.sample or "all",
            "test pairs": self.pairs,
            "test pairs with an item not seen in training": self.cold_pairs,
            "overall": _numbers(self.overall),
            "slices": {name: _numbers(report) for name, report in self.slices.items()},
            "formulas": {str(s.metric): s.metric.formula for s in self.overall.scores},
        }

    def __str__(self) -> str:
        lines = [
            f"Held out: {self.split}.",
            "Every user's test items are ranked among all items, without what the user had before.",
            "",
            str(self.overall),
        ]
        if self.sample:
            lines.append(
                f"{self.sample}, drawn at random, as ranking all would take long; "
                "the interval says how far they may differ"
            )
        if self.cold_pairs:
            lines.append(
                f"{self.cold_pairs:,} of {self.pairs:,} test pairs are of items that were never "
                "seen in training: nobody can find them, and they count as missed"
            )
        if self.slices:
            shown = self.overall.scores[:2]
            wide = max(len(name) for name in self.slices)
            heading = "".join(f"{score.metric!s:>12}" for score in shown)
            lines += ["", f"{'slice':{wide}}  {'users':>9}{heading}"]
            for name, report in self.slices.items():
                cells = "".join(f"{report[score.metric].mean:12.4f}" for score in shown)
                lines.append(f"{name:{wide}}  {report.users:9,}{cells}")
        return "\n".join(lines)


def _numbers(report: Report) -> dict[str, Any]:
    scores = {str(s.metric): {"mean": s.mean, "low": s.low, "high": s.high} for s in report.scores}
    return {"users": report.users, "level": report.level, "scores": scores}


def assess(
    fitted: Fitted,
    known: Jagged,
    test: Jagged,
    seen: Tensor,
    *,
    split: str,
    metrics: Sequence[Metric] = METRICS,
    users: Tensor | None = None,
) -> Evaluation:
    """Rank all items for the users that have test items, and compare.

    Args:
        known: what is known of each user, and not recommended again.
        test: what is to be found; may hold numbers beyond the items of the model.
        seen: (items,) true where an item was in the training data.
        split: how the test items were held out, in words.
        users: (n,) a sample of the users with test items; None: all of them.
    """
    with phase("evaluating"):
        everybody = _tested(test)
        users = everybody if users is None else users
        return _assessed(fitted, known, test, seen, split, metrics, users, len(everybody))


def _tested(test: Jagged) -> Tensor:
    """(n,) the users with test items."""
    users = (test.lengths > 0).nonzero().squeeze(1)
    if len(users) == 0:
        raise ValueError("there is nothing to evaluate: no user has test items")
    return users


def sample_users(
    fitted: Fitted,
    known: Jagged,
    test: Jagged,
    *,
    training: float = 0.0,
    metric: Metric = METRICS[0],
    seed: int = 0,
) -> Tensor | None:
    """Draw a sample of the users with test items, where ranking all of them would take long.

    That is where it is more work than training was, and than about a minute's. Work is counted, not
    timed, so that the sample follows from the seed and the data alone. As many users are drawn as
    give the mean of the metric an interval of 95 % of about 2.5 % of itself to either side, but not
    wider than 0.005 nor narrower than 0.001; a few are ranked first to see how much they differ.

    Args:
        known, test: as in `assess`.
        training: the work of the training, as `training_work` counts it.

    Returns:
        Their numbers, sorted, or None for all users.
    """
    users = _tested(test)
    work = ranking_work(fitted, known, len(users))
    if len(users) <= _LEAST or work <= max(training, MINUTE):
        return None
    order = users[torch.randperm(len(users), generator=torch.Generator().manual_seed(seed))]
    some = order[:_PILOT].sort().values
    with phase("finding how many users to rank"):
        told = known.rows(some)
        top = fitted.rank(told, metric.k, exclude=told).ids
        found = evaluate(top, test.rows(some), (metric,), resamples=0)[metric]
    wanted = min(max(_PRECISION * found.mean, _NARROW), _WIDE)
    count = max(_LEAST, math.ceil((1.96 * float(found.per_user.std()) / wanted) ** 2))
    return None if count >= len(users) else order[:count].sort().values


def _assessed(
    fitted: Fitted, known: Jagged, test: Jagged, seen: Tensor, split: str,
    metrics: Sequence[Metric], users: Tensor, tested: int,
) -> Evaluation:  # fmt: skip
    """The evaluation of these users."""
    told, wanted = known.rows(users), test.rows(users)
    top = fitted.rank(told, max(metric.k for metric in metrics), exclude=told).ids
    inside = wanted.values < len(seen)
    warm = inside.clone()
    warm[inside] = seen[wanted.values[inside]]
    had = told.lengths > 0
    slices = {}
    if not bool(had.all()):
        slices["users with a history (warm)"] = _slice(top, wanted, had, metrics)
        slices["users without one (cold)"] = _slice(top, wanted, ~had, metrics)
    for name, low, high in (
        ("1 to 4 items before", 1, 4),
        ("5 to 19", 5, 19),
        ("20 and more", 20, None),
    ):
        mine = (told.lengths >= low) & (told.lengths <= (high or told.lengths.max()))
        slices[name] = _slice(top, wanted, mine, metrics)
    if int((~warm).sum()) > 0.01 * len(warm):
        everybody = torch.ones_like(had)
        slices["items seen in training (warm) alone"] = _slice(
            top, kept(wanted, warm), everybody, metrics
        )
    return Evaluation(
        split,
        _evaluated(top, wanted, metrics),
        {name: report for name, report in slices.items() if report is not None},
        int((~warm).sum()),
        len(wanted.values),
        tested,
    )


def _slice(top: Tensor, wanted: Jagged, mine: Tensor, metrics: Sequence[Metric]) -> Report | None:
    rows = (mine & (wanted.lengths > 0)).nonzero().squeeze(1)
    return _evaluated(top[rows], wanted.rows(rows), metrics) if len(rows) else None


def _evaluated(top: Tensor, wanted: Jagged, metrics: Sequence[Metric]) -> Report:
    # A mean over very many users hardly varies, and a few hundred draws tell how little.
    resamples = max(100, min(1000, _DRAWS // len(top)))
    return evaluate(top, wanted, metrics, resamples=resamples)
