"""Logs of the full-ranking experiments, and the choice of settings on a validation part."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from experiments import datasets
from fewfold.recommender import (
    NDCG,
    Interactions,
    Recall,
    Split,
    bundled,
    random_split,
    read_log,
)
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.metrics import Metric, evaluate
from fewfold.recommender.models.model import Fitted, Model

__all__ = ["METRICS", "best_on_validation", "load", "metrics_of"]

METRICS: tuple[Metric, ...] = (NDCG(10), Recall(10), NDCG(50), Recall(50))
_USERS = 5000  # validated users

M = TypeVar("M", bound=Model)


def load(name: str) -> Split:
    """The split of a log: of its authors, or a fifth of the items of each user at random."""
    if name == "bundled":
        return hold_out(read_log(bundled()).interactions, test=0.2, split="random", seed=0)[0]
    split: Split = getattr(datasets, name)(0)
    return split


def metrics_of(fitted: Fitted, split: Split, users: torch.Tensor | None = None) -> dict[str, float]:
    """Metrics over all users with test items, or these; all items but the known ones are ranked."""
    if users is None:
        users = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    known = split.fold_in.rows(users)
    top = fitted.rank(known, 50, exclude=known).ids
    found = evaluate(top, split.test.rows(users), METRICS, resamples=0)
    return {str(metric).lower(): round(found[metric].mean, 5) for metric in METRICS}


def best_on_validation(
    train: Interactions, candidates: Sequence[M], metric: str
) -> tuple[M, dict[str, float]]:
    """The candidate that is best on a part of the training data, and the metric of each.

    A fifth of the items of each user is held out, and 5,000 users drawn at random are ranked.
    """
    split = random_split(train, test=0.2, seed=1)
    tested = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    draw = torch.randperm(len(tested), generator=torch.Generator().manual_seed(3))
    users = tested[draw[:_USERS]].sort().values
    scores = {}
    for model in candidates:
        scores[model.summary()] = metrics_of(model.fit(split.train), split, users)[metric]
    names = list(scores)
    return candidates[names.index(max(scores, key=lambda name: scores[name]))], scores
