"""How good a fitted model is on what it has not seen: one ranking, several slices of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold.recommender.fitted import Fitted
from fewfold.recommender.holdout import kept
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.metrics import NDCG, HitRate, Metric, Recall, Report, evaluate

__all__ = ["METRICS", "Evaluation", "assess"]

_DRAWS = 2 * 10**8  # of users, in all the resamples of an interval
METRICS: tuple[Metric, ...] = (NDCG(10), Recall(10), HitRate(10), NDCG(50), Recall(50))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model finds of the items that were held out, ranked among all items.

    Attributes:
        split: how they were held out, in words.
        overall: over all users with test items.
        slices: the same for some of the users, or some of the test items.
        cold_pairs: test pairs whose item was never seen in training, which cannot be found.
        pairs: all test pairs.
    """

    split: str
    overall: Report
    slices: Mapping[str, Report]
    cold_pairs: int
    pairs: int

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "split": self.split,
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
) -> Evaluation:
    """Rank all items for the users that have test items, and compare.

    Args:
        known: what is known of each user, and not recommended again.
        test: what is to be found; may hold numbers beyond the items of the model.
        seen: (items,) true where an item was in the training data.
        split: how the test items were held out, in words.
    """
    users = (test.lengths > 0).nonzero().squeeze(1)
    if len(users) == 0:
        raise ValueError("there is nothing to evaluate: no user has test items")
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
    )


def _slice(top: Tensor, wanted: Jagged, mine: Tensor, metrics: Sequence[Metric]) -> Report | None:
    rows = (mine & (wanted.lengths > 0)).nonzero().squeeze(1)
    return _evaluated(top[rows], wanted.rows(rows), metrics) if len(rows) else None


def _evaluated(top: Tensor, wanted: Jagged, metrics: Sequence[Metric]) -> Report:
    # A mean over very many users hardly varies, and a few hundred draws tell how little.
    resamples = max(100, min(1000, _DRAWS // len(top)))
    return evaluate(top, wanted, metrics, resamples=resamples)
