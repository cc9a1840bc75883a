"""Evaluate a fitted model on held-out items, overall and by slices of users and items."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold import _html
from fewfold._progress import phase
from fewfold.recommender.evaluation.metrics import NDCG, HitRate, Metric, Recall, Report, evaluate
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.model import Fitted

__all__ = ["METRICS", "MINUTE", "Evaluation", "assess", "ranking_work", "sample_users"]

# Work of ranking and training is counted in multiply-adds of a product of matrices, not timed, so
# that it is the same on every machine. Other work, such as reading rows of tables, counts as the
# multiply-adds that take as long, measured on two cores.
MINUTE = 1e12  # multiply-adds that a machine with two cores does in about a minute
_COMPARISON = 16  # to compare the score of an item with the best so far

_DRAWS = 2 * 10**8  # maximum number of draws over all bootstrap resamples of an interval
_PILOT = 1024  # users of the pilot sample that estimates the standard deviation
_MIN_SAMPLE = 10_000  # users
# Half-width of the interval: relative to the mean, then its absolute limits.
_PRECISION, _NARROW, _WIDE = 0.025, 0.001, 0.005
METRICS: tuple[Metric, ...] = (NDCG(10), Recall(10), HitRate(10), NDCG(50), Recall(50))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of a model on held-out items, ranked among all items.

    Attributes:
        split: description of how the items were held out.
        overall: over all users with test items.
        slices: metrics of subsets of the users or test items.
        cold_pairs: test pairs whose item was not in the training data.
        pairs: number of test pairs of the ranked users.
        tested: number of users with test items; more than `overall.users` if a sample of them was
            ranked.
    """

    split: str
    overall: Report
    slices: Mapping[str, Report]
    cold_pairs: int
    pairs: int
    tested: int

    @property
    def sample(self) -> str:
        """Description of the sample of ranked users; empty if all were ranked."""
        if self.overall.users == self.tested:
            return ""
        return f"a sample of {self.overall.users:,} of {self.tested:,} users"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
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

    def _repr_html_(self) -> str:
        """Return tables of the metrics and of the slices, for notebooks."""
        shown = [*self.overall.scores[:2], *self.overall.scores[4:5]]
        slices = [
            [name, report.users, *(report[score.metric].mean for score in shown)]
            for name, report in self.slices.items()
        ]
        heads = ["slice", "users", *(str(score.metric) for score in shown)]
        return "\n".join([
            _html.paragraphs(f"Held out: {self.split}.", self.sample),
            self.overall._repr_html_(),
            *([_html.table(heads, slices)] if slices else []),
        ])  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"Held out: {self.split}.",
            "Every user's test items are ranked among all items, without what the user had before.",
            "",
            str(self.overall),
        ]
        if self.sample:
            lines.append(
                f"{self.sample}, drawn at random, since ranking all would take long; "
                "see the interval for the sampling error"
            )
        if self.cold_pairs:
            lines.append(
                f"{self.cold_pairs:,} of {self.pairs:,} test pairs are of items that were never "
                "seen in training: only attributes can rank them, otherwise they are misses"
            )
        if self.slices:
            # Recall@50, if it was computed, tells most about items that are hard to rank.
            shown = [*self.overall.scores[:2], *self.overall.scores[4:5]]
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
    dislikes: Jagged | None = None,
) -> Evaluation:
    """Rank all items for the users with test items and compute the metrics.

    Args:
        known: history of each user, excluded from the ranking.
        test: test items; numbers beyond the model's items count as misses.
        seen: (items,) true where an item was in the training data.
        split: description of how the test items were held out.
        users: (n,) a sample of the users with test items; None: all of them.
        dislikes: other items of each user that are excluded from the ranking.
    """
    with phase("evaluating"):
        everybody = _tested(test)
        users = everybody if users is None else users
        gone = known.rows(users)
        if dislikes is not None:
            gone = gone.append(dislikes.rows(users)).sets()
        top = fitted.rank(known.rows(users), max(m.k for m in metrics), exclude=gone).ids
        return _evaluate_users(top, known, test, seen, split, metrics, users, len(everybody))


def _tested(test: Jagged) -> Tensor:
    """Return (n,) the users with test items."""
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
    """Draw a sample of the users with test items, if ranking all of them would take long.

    That is, if it is more work than training, and than about a minute. Work is counted rather than
    timed, so that the sample is determined by the seed and the data. The sample size gives the mean
    of the metric a 95 % interval of about +-2.5 % of the mean, with a half-width between 0.001 and
    0.005; the standard deviation is estimated on a pilot sample.

    Args:
        known, test: as in `assess`.
        training: work of the training, from `training_work`.

    Returns:
        Sorted user numbers, or None for all users.
    """
    users = _tested(test)
    work = ranking_work(fitted, known, len(users))
    if len(users) <= _MIN_SAMPLE or work <= max(training, MINUTE):
        return None
    order = users[torch.randperm(len(users), generator=torch.Generator().manual_seed(seed))]
    some = order[:_PILOT].sort().values
    with phase("finding how many users to rank"):
        history = known.rows(some)
        top = fitted.rank(history, metric.k, exclude=history).ids
        found = evaluate(top, test.rows(some), (metric,), resamples=0)[metric]
    wanted = min(max(_PRECISION * found.mean, _NARROW), _WIDE)
    count = max(_MIN_SAMPLE, math.ceil((1.96 * float(found.per_user.std()) / wanted) ** 2))
    return None if count >= len(users) else order[:count].sort().values


def _evaluate_users(
    top: Tensor, known: Jagged, test: Jagged, seen: Tensor, split: str,
    metrics: Sequence[Metric], users: Tensor, tested: int,
) -> Evaluation:  # fmt: skip
    """Evaluate the rankings of these users."""
    history, wanted = known.rows(users), test.rows(users)
    inside = wanted.values < len(seen)
    warm = inside.clone()
    warm[inside] = seen[wanted.values[inside]]
    had = history.lengths > 0
    slices = {}
    if not bool(had.all()):
        slices["users with a history (warm)"] = _slice(top, wanted, had, metrics)
        slices["users without one (cold)"] = _slice(top, wanted, ~had, metrics)
    for name, low, high in (
        ("1 to 4 items before", 1, 4),
        ("5 to 19", 5, 19),
        ("20 and more", 20, None),
    ):
        mine = (history.lengths >= low) & (history.lengths <= (high or history.lengths.max()))
        slices[name] = _slice(top, wanted, mine, metrics)
    if int((~warm).sum()) > 0.01 * len(warm):
        everybody = torch.ones_like(had)
        slices["items seen in training (warm) alone"] = _slice(
            top, wanted.select(warm), everybody, metrics
        )
    if not bool(warm.all()):
        slices["items without interactions in training (cold)"] = _slice(
            top, wanted.select(~warm), torch.ones_like(had), metrics
        )
    return Evaluation(
        split,
        _report(top, wanted, metrics),
        {name: report for name, report in slices.items() if report is not None},
        int((~warm).sum()),
        len(wanted.values),
        tested,
    )


def _slice(top: Tensor, wanted: Jagged, mine: Tensor, metrics: Sequence[Metric]) -> Report | None:
    rows = (mine & (wanted.lengths > 0)).nonzero().squeeze(1)
    return _report(top[rows], wanted.rows(rows), metrics) if len(rows) else None


def _report(top: Tensor, wanted: Jagged, metrics: Sequence[Metric]) -> Report:
    # Means over very many users vary little, so a few hundred resamples suffice.
    resamples = max(100, min(1000, _DRAWS // len(top)))
    return evaluate(top, wanted, metrics, resamples=resamples)


def ranking_work(fitted: Fitted, known: Jagged, users: int) -> float:
    """Return the multiply-adds to rank all items for this many users with such histories."""
    return float(users) * fitted.items * (fitted.score_cost(known) + _COMPARISON)
