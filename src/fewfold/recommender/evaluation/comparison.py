"""Comparison of models on one split of one log, and which one to choose."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor

from fewfold import _html
from fewfold._progress import notes, phase, silence
from fewfold._resources import format_bytes
from fewfold.recommender.evaluation.dense_comparison import bytes_of
from fewfold.recommender.evaluation.holdout import HoldOut
from fewfold.recommender.evaluation.metrics import NDCG, Metric, evaluate
from fewfold.recommender.evaluation.model_evaluation import (
    METRICS,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.evaluation.paired_interval import PairedInterval, paired_interval
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.shortcut_weight import Trial
from fewfold.recommender.models.model import FitOptions, Fitted, Model
from fewfold.recommender.models.registry import models as registered_models
from fewfold.recommender.reading.log import read_log
from fewfold.recommender.reading.read_options import ReadOptions, check_keywords
from fewfold.recommender.training.train_options import Training

__all__ = ["Comparison", "Contender", "compare"]


@dataclass(frozen=True, eq=False)
class Contender:
    """One model of a comparison.

    Attributes:
        kind: name of the model in `fewfold fit --model`.
        recipe: the model with the settings that were chosen.
        evaluation: on the held-out items.
        seconds: time of choosing the settings and fitting.
        size: bytes of the learned tensors.
        users_per_second: ranking speed, ten items for each user.
    """

    kind: str
    recipe: Model
    evaluation: Evaluation
    seconds: float
    size: int
    users_per_second: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Result of `compare`; printing it gives the table and the verdict.

    Attributes:
        split: description of how test items were held out.
        contenders: best first.
        skipped: models that were not run, and why.
        metric: the metric that decides.
        differences: the best model's metric minus that of each other contender, in their order.
    """

    split: str
    contenders: Sequence[Contender]
    skipped: Mapping[str, str]
    metric: Metric
    differences: Sequence[PairedInterval]

    @property
    def equal(self) -> Sequence[Contender]:
        """The best model, and those whose difference to it has an interval that contains zero."""
        others = zip(self.contenders[1:], self.differences, strict=True)
        return [self.contenders[0], *(one for one, found in others if found.contains_zero)]

    @property
    def cheapest(self) -> Contender:
        """The contender of `equal` whose settings are chosen and fitted in the least time."""
        return min(self.equal, key=lambda one: one.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "split": self.split,
            "metric": str(self.metric),
            "models": [
                self._contender_as_dict(one, difference)
                for one, difference in zip(
                    self.contenders, (None, *self.differences), strict=True
                )
            ],
            "formulas": self.contenders[0].evaluation.as_dict()["formulas"],
            "skipped": dict(self.skipped),
            "verdict": self.verdict,
        }  # fmt: skip

    def _contender_as_dict(
        self, one: Contender, difference: PairedInterval | None
    ) -> dict[str, Any]:
        results = one.evaluation.as_dict()
        behind = None
        if difference is not None:
            behind = {"mean": difference.mean, "low": difference.low, "high": difference.high}
        return {
            "model": one.kind, "settings": repr(one.recipe), "summary": one.recipe.summary(),
            "seconds": one.seconds, "bytes": one.size, "users per second": one.users_per_second,
            "users ranked": results["users ranked"], **results["overall"],
            "slices": results["slices"], "behind the best": behind,
        }  # fmt: skip

    @property
    def verdict(self) -> str:
        """Which model to choose, as text."""
        best, equal, cheapest = self.contenders[0], self.equal, self.cheapest
        if len(self.contenders) == 1:
            return f"{best.kind} is the only model here."
        command = f"fewfold fit --model {cheapest.kind}{cheapest.recipe.flags()}"
        if len(equal) == 1:
            return (
                f"{best.kind} is the best: {self.metric} differs from {self.contenders[1].kind}, "
                f"the next best, by {self.differences[0]}. Fit it: {command}."
            )
        names = [one.kind for one in equal]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        return (
            f"{listed} are equally good on this log: {self.metric} of {best.kind} differs from "
            f"{names[-1]} by {self._difference(equal[-1])}. {cheapest.kind} is fitted in the "
            f"least time: {command}."
        )

    def _difference(self, contender: Contender) -> PairedInterval:
        return self.differences[self.contenders.index(contender) - 1]

    def _repr_html_(self) -> str:
        """Return a table for notebooks, with the difference of each model from the best."""
        shown = [score.metric for score in self.contenders[0].evaluation.overall.scores][:4]
        rows = [
            [
                one.kind,
                *(one.evaluation.overall[metric].mean for metric in shown),
                "" if behind is None else str(behind),
                f"{one.seconds:.1f} s", format_bytes(one.size), f"{one.users_per_second:,.0f}",
                one.recipe.summary(),
            ]
            for one, behind in zip(self.contenders, (None, *self.differences), strict=True)
        ]  # fmt: skip
        return "\n".join([
            _html.table(
                ["model", *map(str, shown), f"{self.metric} below the best", "fit", "size",
                 "users/s", "settings"],
                rows, caption=f"Held out: {self.split}; ranked among all items.",
            ),
            _html.paragraphs(
                *(f"{name} was left out: {why}." for name, why in self.skipped.items()),
                self.verdict,
            ),
        ])  # fmt: skip

    def __str__(self) -> str:
        shown = [score.metric for score in self.contenders[0].evaluation.overall.scores][:4]
        heading = "".join(f"{metric!s:>11}" for metric in shown)
        lines = [
            f"Held out: {self.split}; ranked among all items.",
            "",
            f"{'model':<11}{heading}{'fit':>9}{'size':>10}{'users/s':>10}   settings",
        ]
        for one in self.contenders:
            cells = "".join(f"{one.evaluation.overall[m].mean:11.4f}" for m in shown)
            lines.append(
                f"{one.kind:<11}{cells}{one.seconds:7.1f} s{format_bytes(one.size):>10}"
                f"{one.users_per_second:10,.0f}   {one.recipe.summary()}"
            )
        decisive = self.contenders[0].evaluation.overall
        half = max(s.high - s.low for s in decisive.scores[:1]) / 2
        who = self.contenders[0].evaluation.sample or f"{decisive.users:,} users"
        lines += ["", f"{who}; the 95 % interval of a mean is about ±{half:.4f}."]
        lines += [f"{name} was left out: {why}." for name, why in self.skipped.items()]
        lines += [*(f"{m} = {m.formula}" for m in shown), "", self.verdict]
        return "\n".join(lines)


def compare(
    source: Any,
    *,
    models: Sequence[str] = ("popularity", "item-knn", "ease", "fastvae"),
    test: float | HoldOut = 0.2,
    training: Training | None = None,
    seed: int = 0,
    progress: bool = True,
    **reading: Unpack[ReadOptions],
) -> Comparison:
    """Fit several models to one part of a log and evaluate them on the rest.

    The settings of each (the neighbours of item-KNN, the penalty of EASE, the weight of FastVAE's
    shortcut) are chosen on items held out from the training part, never on the test items.

    Args:
        source: as in `Recommender.fit`.
        models: names of models.
        test: share of the interactions to hold out, or a `HoldOut`, which also says how. By default
            every model ranks the same sample of users where all would take more than about a
            minute.
        training: settings of the training of a `VAE`.
        seed: the same seed gives the same models.
        progress: show progress on standard error.
        reading: columns, conditions and formats of the log; see `ReadOptions`.
    """
    check_keywords(reading, compare)
    held_out = HoldOut.of(test)
    kinds, known = list(dict.fromkeys(models)), registered_models()
    if not kinds or not set(kinds) <= set(known):
        raise ValueError(
            f"models must be some of {', '.join(known)}, got {', '.join(map(str, kinds)) or None}"
        )
    with notes(progress), silence(not progress):
        log = read_log(source, **reading)
        held, how = held_out.apply(log.interactions, seed)
        contenders: list[Contender] = []
        skipped: dict[str, str] = {}
        users: Tensor | None = None
        for kind in kinds:
            why = known[kind].unsuitable(held.train)
            if why:
                skipped[kind] = why
                continue
            began = time.perf_counter()
            ordered = known[kind].ordered
            queries = held.fold_in.rows(slice(None), ordered=ordered), held.test.jagged
            with phase(f"choosing settings of {kind}"):
                trial = (Trial.last_out if ordered else Trial.of)(held.train, seed=seed)
                recipe = _chosen(known[kind].grid(held.train.items), trial)
            options = FitOptions(training or Training(), seed=seed, progress=progress)
            fitted = recipe.learn(held.train, options).fitted
            seconds = time.perf_counter() - began
            if not contenders and not held_out.all_users:  # the same users for all models
                users = sample_users(fitted, *queries, seed=seed)
            seen = held.train.counts() > 0
            evaluation = assess(
                fitted, *queries, seen, split=how, users=users, dislikes=held.fold_in.disliked
            )
            speed = _speed(fitted, held.fold_in)
            contenders.append(Contender(kind, recipe, evaluation, seconds, bytes_of(fitted), speed))
    if not contenders:
        reasons = "; ".join(f"{kind}: {why}" for kind, why in skipped.items())
        raise ValueError(f"none of the models can be fitted here ({reasons}); compare others")
    metric = METRICS[0]
    contenders.sort(key=lambda one: -one.evaluation.overall[metric].mean)
    return Comparison(how, contenders, skipped, metric, _differences(contenders, metric))


def _chosen(recipes: Sequence[Model], trial: Trial | None) -> Model:
    """The candidate with the highest NDCG on the hidden items."""
    if trial is None or len(recipes) == 1:
        return recipes[0]

    def score(recipe: Model) -> float:
        fitted = recipe.learn(trial.rest, FitOptions()).fitted
        top = fitted.rank(trial.visible, 50, exclude=trial.visible).ids
        return evaluate(top, trial.hidden, (NDCG(50),), resamples=0)[NDCG(50)].mean

    return max(recipes, key=score)


def _speed(fitted: Fitted, log: Interactions) -> float:
    history = log.rows(slice(0, 2000), ordered=fitted.recipe.ordered)
    fitted.rank(history.rows(slice(0, 16)), 10)
    began = time.perf_counter()
    fitted.rank(history, 10, exclude=history)
    return len(history.lengths) / (time.perf_counter() - began)


def _differences(contenders: Sequence[Contender], metric: Metric) -> list[PairedInterval]:
    """Return the differences of the first contender to the others, on the same users."""
    first, *others = (one.evaluation.overall[metric].per_user for one in contenders)
    return [paired_interval(first, other) for other in others]
