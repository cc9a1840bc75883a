"""Choose the half-life of interactions on a validation part of a log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfold._check import positive_number
from fewfold._progress import phase
from fewfold.recommender.evaluation.model_evaluation import MINUTE
from fewfold.recommender.evaluation.paired_interval import paired_interval
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model import FitOptions, Model
from fewfold.recommender.models.registry import models
from fewfold.recommender.selection.trials import Trial, Trials, Validation
from fewfold.recommender.weighting import decayed, span_in_days

__all__ = ["HALF_LIVES", "Recency", "choose_half_life"]

HALF_LIVES = (7.0, 30.0, 90.0, 365.0)  # days
_GOOD = ("ease", "als", "item-knn")  # best first; good on most logs, and fitted quickly
_USERS = 10_000  # validated users
_WORTH = 0.005  # least relative gain for which old interactions are made to count less
_LONGEST = 5 * MINUTE  # work of all trials


@dataclass(frozen=True)
class Recency:
    """How the weight of an interaction depends on its age.

    Attributes:
        half_life: days in which a weight halves; None if age does not matter.
        why: the reason, as a sentence.
    """

    half_life: float | None
    why: str

    def __post_init__(self) -> None:
        if self.half_life is not None:
            positive_number(self.half_life, "half_life")

    def __str__(self) -> str:
        days = "none" if self.half_life is None else f"{self.half_life:g} days"
        return f"half-life: {days}; {self.why}"

    def applied(self, log: Interactions) -> Interactions:
        """Return the log with weights that decay with age."""
        return log if self.half_life is None else decayed(log, self.half_life)


def choose_half_life(
    log: Interactions, options: FitOptions, model: Model | None = None, *, limited: bool = True
) -> Recency:
    """Return the half-life with which a model ranks best, or none unless one is clearly better.

    Half-lives of 7, 30, 90 and 365 days, those below twice the span of the log, are tried on a
    validation part as `choose` has it. Each half of the validated users is ranked with the best
    half-life of the other half. If the paired 95 % interval of the gain in NDCG@10 is above 0, and
    the gain is half a percent or more, the best of all users is taken.

    Args:
        log: with times.
        options: of the fit: seed, split and deadline.
        model: to try half-lives with; by default the first of EASE, ALS and item-KNN that
            suits the log and is not too much work.
        limited: try nothing if that would be more than a few minutes of work.
    """
    span = span_in_days(log)
    if span is None:
        return Recency(None, "the log has no dates")
    candidates = [days for days in HALF_LIVES if days < 2 * span]
    tried = _good(log, len(candidates) + 1) if model is None else model
    if not candidates or tried is None:
        return Recency(None, "the log is too short to try any" if tried else "no model is cheap")
    work = (len(candidates) + 1) * tried.work(log)
    left = None if options.deadline is None else options.deadline.left() / 60 * MINUTE / 5
    if (limited and work > _LONGEST) or (left is not None and work > left):
        return Recency(None, "to try any would take too long")
    validation = Validation.of(
        log, split=options.split, users=_USERS, seed=options.seed, everybody=True
    )
    if validation is None:
        return Recency(None, "the log has too few users to try any")
    return _best(log, validation, candidates, tried, options)


def _good(log: Interactions, trials: int) -> Model | None:
    """The first model that suits the log, with settings from the middle of its grid.

    If so many trials of none are little work, it is the cheapest.
    """
    known = models()
    grids = [known[name].grid(log.items) for name in _GOOD if not known[name].unsuitable(log)]
    middle = [grid[len(grid) // 2] for grid in grids if grid]
    quick = (one for one in middle if trials * one.work(log) <= _LONGEST)
    return next(quick, min(middle, key=lambda one: one.work(log), default=None))


def _best(
    log: Interactions,
    validation: Validation,
    candidates: Sequence[float],
    model: Model,
    options: FitOptions,
) -> Recency:
    found: dict[float | None, Trial] = {}
    # Trials are as quick as reading a checkpoint of them would be.
    quick = replace(options, checkpoint=None, previous=None)
    with phase("choosing a half-life", total=len(candidates) + 1) as progress:
        for days in progress.each([None, *candidates]):
            train = validation.train if days is None else decayed(validation.train, days)
            trial = Trials(log, replace(validation, train=train), quick)
            found[days] = trial.run(model)
    values = {days: trial.per_user for days, trial in found.items()}
    even = torch.arange(validation.histories.users) % 2 == 0

    def best(users: Tensor) -> float:
        return max(candidates, key=lambda days: float(values[days][users].mean()))

    crossed = torch.where(even, values[best(~even)], values[best(even)])
    gain = paired_interval(crossed, values[None])
    chosen = best(torch.ones_like(even))
    enough = gain.low > 0 and gain.mean > _WORTH * float(values[None].mean())
    tested = (
        f"with {chosen:g} days NDCG@10 of {model.name} is {gain.mean:+.4f} ({gain.low:+.4f} to "
    )
    tested += f"{gain.high:+.4f}) on {len(even):,} users ({validation.split})"
    return Recency(chosen if enough else None, tested)
