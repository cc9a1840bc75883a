"""Ranking metrics with formulas and bootstrap intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fewfold import _html
from fewfold._check import whole_number
from fewfold._progress import phase
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = [
    "MAP",
    "MRR",
    "NDCG",
    "HitRate",
    "Metric",
    "Precision",
    "Recall",
    "Report",
    "Score",
    "evaluate",
]


@dataclass(frozen=True)
class Metric:
    """A per-user metric between 0 and 1, computed from the hits among the first k items.

    A metric is called with `hits` (users, k), float64, 1 where the item at that rank is a test
    item, and `sizes` (users,), the number of test items, at least 1. It returns (users,). To add a
    metric, subclass this, set `formula` and define `__call__`.

    Example:
        >>> import torch
        >>> from fewfold.recommender import Recall
        >>> Recall(3), Recall(3).formula
        (Recall@3, 'hits in the first k / |test|')
        >>> Recall(3)(torch.tensor([[1.0, 0.0, 1.0]]).double(), torch.tensor([4.0]))
        tensor([0.5000], dtype=torch.float64)
    """

    k: int
    formula: ClassVar[str] = ""

    def __post_init__(self) -> None:
        whole_number(self.k, "k")

    def __repr__(self) -> str:
        return f"{type(self).__name__}@{self.k}"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(hits, sizes)")


@dataclass(frozen=True, repr=False)
class NDCG(Metric):
    """Discounted cumulative gain of the hits, relative to the ideal order."""

    formula: ClassVar[str] = (
        "sum over hits of 1/log2(rank + 1) / the same for min(k, |test|) hits at the top"
    )

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        # Ranks start at 1 in the formula and at 0 here.
        discount = 1 / torch.arange(2, self.k + 2, dtype=torch.float64).log2()
        best = discount.cumsum(0)[sizes.clamp(max=self.k).long() - 1]
        return hits @ discount[: hits.shape[1]] / best


@dataclass(frozen=True, repr=False)
class Recall(Metric):
    """Share of the test items that are recommended; below 1 for users with more than k of them."""

    formula: ClassVar[str] = "hits in the first k / |test|"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        return hits.sum(1) / sizes


@dataclass(frozen=True, repr=False)
class Precision(Metric):
    """Share of the k recommendations that are hits; missing recommendations count as misses."""

    formula: ClassVar[str] = "hits in the first k / k"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        return hits.sum(1) / self.k


@dataclass(frozen=True, repr=False)
class MAP(Metric):
    """Mean over the test items of the precision at the rank of each hit."""

    formula: ClassVar[str] = "sum over hits in the first k of precision at their rank / |test|"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        rank = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64)
        return (hits * hits.cumsum(1) / rank).sum(1) / sizes


@dataclass(frozen=True, repr=False)
class MRR(Metric):
    """Reciprocal rank of the first hit."""

    formula: ClassVar[str] = "1 / rank of the first hit in the first k, 0 without one"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        rank = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64)
        return (hits / rank).amax(1)  # 1/rank decreases, so the first hit has the maximum


@dataclass(frozen=True, repr=False)
class HitRate(Metric):
    """Whether there is any hit."""

    formula: ClassVar[str] = "1 with a hit in the first k, otherwise 0"

    def __call__(self, hits: Tensor, sizes: Tensor) -> Tensor:
        """Return one value per user, (users,)."""
        return hits.amax(1)


@dataclass(frozen=True, eq=False)
class Score:
    """A metric aggregated over all users.

    Attributes:
        metric: the metric.
        mean: mean over the users with test items.
        low, high: bootstrap interval of the mean.
        per_user: (users,) float64; NaN for users without test items.
    """

    metric: Metric
    mean: float
    low: float
    high: float
    per_user: Tensor


@dataclass(frozen=True, eq=False)
class Report:
    """Result of `evaluate`; prints as a table with the formulas.

    Attributes:
        scores: one `Score` per metric; ``report[NDCG(50)]`` finds one.
        users: number of users with test items.
        dropped: number of users without test items, who are ignored.
        level: confidence level of the intervals.
    """

    scores: tuple[Score, ...]
    users: int
    dropped: int
    level: float

    def __getitem__(self, metric: Metric) -> Score:
        for score in self.scores:
            if score.metric == metric:
                return score
        known = ", ".join(str(score.metric) for score in self.scores)
        raise KeyError(f"{metric} was not evaluated, only {known}")

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [
            [
                str(one.metric), _html.Bar(one.mean, f"{one.mean:.4f}"),
                f"{one.low:.4f} to {one.high:.4f}", one.metric.formula,
            ]
            for one in self.scores
        ]  # fmt: skip
        heads = ["metric", "mean", f"{self.level:.0%} interval", "formula"]
        return _html.table(heads, rows, caption=f"{self.users:,} users")

    def __str__(self) -> str:
        names = [str(score.metric) for score in self.scores]
        wide = max(len("metric"), *(len(name) for name in names))
        interval = f"{self.level:.0%} interval"
        lines = [f"{'metric':<{wide}}  mean    {interval:<16}  formula"]
        for name, score in zip(names, self.scores, strict=True):
            spread = f"{score.low:.4f} to {score.high:.4f}"
            lines.append(f"{name:<{wide}}  {score.mean:.4f}  {spread:<16}  {score.metric.formula}")
        left_out = f", {self.dropped:,} without test items left out" if self.dropped else ""
        lines.append(f"{self.users:,} users{left_out}")
        return "\n".join(lines)


def evaluate(
    top: Tensor,
    targets: Interactions | Jagged,
    metrics: Sequence[Metric] = (NDCG(50), Recall(50)),
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Report:
    """Compute ranking metrics against held-out items.

    Each metric is the mean over users with test items, with a percentile bootstrap interval: users
    are drawn with replacement `resamples` times, with the same draws for all metrics.

    Args:
        top: (users, K) recommended items, best first; -1 for none.
        targets: the test items of the same users.
        metrics: the metrics; with k > K, missing recommendations count as misses.
        level: confidence level of the interval, between 0 and 1.
        resamples: number of bootstrap resamples; 0 for no interval (NaN).

    Returns:
        A `Report`.

    Example:
        >>> import torch
        >>> from fewfold.recommender import NDCG, Interactions, Recall, evaluate
        >>> test = Interactions.from_pairs([0, 0, 1], [3, 5, 2], shape=(3, 6))
        >>> top = torch.tensor([[3, 1], [0, 2], [4, 5]])
        >>> report = evaluate(top, test, (NDCG(2), Recall(2)))
        >>> print(report)
        metric    mean    95% interval      formula
        NDCG@2    0.6220  0.6131 to 0.6309  sum over hits of 1/log2(rank + 1) / the same for min(k, |test|) hits at the top
        Recall@2  0.7500  0.5000 to 1.0000  hits in the first k / |test|
        2 users, 1 without test items left out
        >>> report[Recall(2)].per_user
        tensor([0.5000, 1.0000,    nan], dtype=torch.float64)

    Reference:
        Järvelin, Kekäläinen (2002). Cumulated gain-based evaluation of IR techniques. TOIS.
    """  # noqa: E501
    wanted = targets.jagged if isinstance(targets, Interactions) else targets
    _check_top(top, len(wanted.offsets) - 1)
    if not metrics:
        raise ValueError("metrics must name at least one metric, as (NDCG(50),); got none")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    whole_number(resamples, "resamples", 0)
    sizes = wanted.lengths
    counted = sizes > 0
    users = int(counted.sum())
    if users == 0:
        raise ValueError("no user has test items, so there is nothing to evaluate")
    right = _hits(top, wanted)[counted].double()
    size = sizes[counted].double()
    values = torch.stack([metric(right[:, : metric.k], size) for metric in metrics])
    low, high = _bootstrap(values, level, resamples, seed)
    scores = []
    for number, metric in enumerate(metrics):
        per_user = torch.full((len(sizes),), math.nan, dtype=torch.float64)
        per_user[counted] = values[number]
        mean = float(values[number].mean())
        scores.append(Score(metric, mean, float(low[number]), float(high[number]), per_user))
    return Report(tuple(scores), users, len(sizes) - users, level)


def _check_top(top: Tensor, users: int) -> None:
    if not isinstance(top, Tensor) or top.dtype != torch.int64:
        came = top.dtype if isinstance(top, Tensor) else type(top).__name__
        raise TypeError(f"top must be an int64 tensor of item ids, got {came}")
    if top.dim() != 2 or len(top) != users or top.shape[1] == 0:
        raise ValueError(
            f"top must have shape ({users}, K), one list for every user of the targets; "
            f"got {tuple(top.shape)}"
        )
    ordered = top.sort(1).values
    twice = ((ordered.diff(dim=1) == 0) & (ordered[:, 1:] >= 0)).any(1)
    if bool(twice.any()):
        raise ValueError(
            f"top must list an item once, got one twice for user {int(twice.nonzero()[0])}"
        )


def _hits(top: Tensor, wanted: Jagged) -> Tensor:
    """Return (users, K), true where the recommended item is a test item of the user."""
    # Encode (user, item) as one key, so that one sorted search serves all users.
    largest = max(int(top.max()), int(wanted.values.max()))
    right = (wanted.row * (largest + 1) + wanted.values).sort().values
    queries = torch.arange(len(top)).unsqueeze(1) * (largest + 1) + top
    place = torch.searchsorted(right, queries).clamp(max=len(right) - 1)
    return (right[place] == queries) & (top >= 0)


def _bootstrap(values: Tensor, level: float, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return both ends of the interval of each row mean of `values`, (metrics, users)."""
    metrics, users = values.shape
    if resamples == 0:
        return values.new_full((metrics,), math.nan), values.new_full((metrics,), math.nan)
    generator = np.random.default_rng(seed)
    table = values.numpy()
    means = np.empty((resamples, metrics))
    with phase("resampling users", total=resamples) as progress:
        for number in progress.each(range(resamples)):
            # A product with the counts is faster than gathering the draws.
            drawn = np.bincount(generator.integers(0, users, users), minlength=users)
            means[number] = table @ drawn / users
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return torch.from_numpy(low), torch.from_numpy(high)
