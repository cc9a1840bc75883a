"""Comparison of models on one split of one log, and which one to choose."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fewfold._progress import notes, phase, silence
from fewfold._resources import format_bytes
from fewfold.recommender.evaluation.dense_comparison import bytes_of
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.metrics import NDCG, Metric, evaluate
from fewfold.recommender.evaluation.model_evaluation import (
    METRICS,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.shortcut_weight import Trial
from fewfold.recommender.models.model import FitOptions, Fitted, Model
from fewfold.recommender.models.registry import models as registered_models
from fewfold.recommender.reading.log import read_log
from fewfold.recommender.training.training import Training

__all__ = ["Comparison", "Contender", "compare"]

_REFERENCE = "fastvae"  # the verdict compares the best of the others with it


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
        against: name of the best other model, its mean gain over FastVAE and the 95 % interval of
            the gain, by the bootstrap over users; None where one of the two is missing.
    """

    split: str
    contenders: Sequence[Contender]
    skipped: Mapping[str, str]
    metric: Metric
    against: tuple[str, float, float, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "split": self.split,
            "models": [
                {
                    "model": one.kind, "settings": repr(one.recipe), "seconds": one.seconds,
                    "bytes": one.size, "users per second": one.users_per_second,
                    "users ranked": one.evaluation.sample or "all",
                    **one.evaluation.as_dict()["overall"],
                }
                for one in self.contenders
            ],
            "skipped": dict(self.skipped),
            "verdict": self.verdict,
        }  # fmt: skip

    @property
    def verdict(self) -> str:
        """Which model to choose, as text."""
        best = self.contenders[0]
        if self.against is None:
            return f"The best of these is {best.kind}."
        simple, gain, low, high = self.against
        spread = f"{self.metric} {abs(gain):.4f}, 95 % interval {min(abs(low), abs(high)):.4f} to "
        spread += f"{max(abs(low), abs(high)):.4f}"
        flags = next(one.recipe.flags() for one in self.contenders if one.kind == simple)
        if low > 0:
            return (
                f"The simple method wins: {simple} is better than fastvae by {spread}. "
                f"Take it: fewfold fit --model {simple}{flags}."
            )
        if high < 0:
            return f"fastvae wins: better than {simple}, the best simple method, by {spread}."
        return (
            f"fastvae and {simple} are equally good on this log ({self.metric} differs by "
            f"{-gain:+.4f}, 95 % interval {-high:+.4f} to {-low:+.4f}). Take the simpler one if "
            f"its size suits you: fewfold fit --model {simple}{flags}."
        )

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
        lines += ["", f"{who}; a mean is good to about ±{half:.4f} (95 %)."]
        lines += [f"{name} was left out: {why}." for name, why in self.skipped.items()]
        lines += [*(f"{m} = {m.formula}" for m in shown), "", self.verdict]
        return "\n".join(lines)


def compare(
    source: Any,
    *,
    models: Sequence[str] = ("popularity", "item-knn", "ease", "fastvae"),
    test: float = 0.2,
    split: str = "auto",
    training: Training | None = None,
    seed: int = 0,
    all_users: bool = False,
    progress: bool = True,
    **reading: Any,
) -> Comparison:
    """Fit several models to one part of a log and evaluate them on the rest.

    The settings of each (the neighbours of item-KNN, the penalty of EASE, the weight of FastVAE's
    shortcut) are chosen on items held out from the training part, never on the test items.

    Args:
        source: as in `Recommender.fit`.
        models: names of models.
        test: share of the interactions to hold out.
        split: how to hold out, as in `Recommender.fit`.
        all_users: rank all users. By default every model ranks the same sample of them where all
            would take more than about a minute.
        progress: show progress on standard error.
        reading: passed to `read_log`.
    """
    kinds, known = list(dict.fromkeys(models)), registered_models()
    if not kinds or not set(kinds) <= set(known):
        raise ValueError(
            f"models must be some of {', '.join(known)}, got {', '.join(kinds) or None}"
        )
    with notes(progress), silence(not progress):
        log = read_log(source, **reading)
        held, how = hold_out(log.interactions, test=test, split=split, seed=seed)
        trial = Trial.of(held.train, seed=seed)
        queries = held.fold_in.jagged, held.test.jagged
        contenders: list[Contender] = []
        skipped: dict[str, str] = {}
        users: Tensor | None = None
        for kind in kinds:
            why = known[kind].too_large(held.train.items)
            if why:
                skipped[kind] = why
                continue
            began = time.perf_counter()
            with phase(f"choosing settings of {kind}"):
                recipe = _chosen(known[kind].grid(held.train.items), trial)
            options = FitOptions(training or Training(), seed=seed, progress=progress)
            fitted = recipe.learn(held.train, options).fitted
            seconds = time.perf_counter() - began
            if not contenders and not all_users:  # the same users for all models
                users = sample_users(fitted, *queries, seed=seed)
            seen = held.train.counts() > 0
            evaluation = assess(fitted, *queries, seen, split=how, users=users)
            speed = _speed(fitted, held.fold_in)
            contenders.append(Contender(kind, recipe, evaluation, seconds, bytes_of(fitted), speed))
    if not contenders:
        reasons = "; ".join(f"{kind}: {why}" for kind, why in skipped.items())
        raise ValueError(f"none of the models can be fitted here ({reasons}); compare others")
    metric = METRICS[0]
    contenders.sort(key=lambda one: -one.evaluation.overall[metric].mean)
    return Comparison(how, contenders, skipped, metric, _against(contenders, metric))


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
    history = log.rows(slice(0, 2000))
    fitted.rank(log.rows(slice(0, 16)), 10)
    began = time.perf_counter()
    fitted.rank(history, 10, exclude=history)
    return len(history.lengths) / (time.perf_counter() - began)


def _against(
    contenders: Sequence[Contender], metric: Metric
) -> tuple[str, float, float, float] | None:
    ours = next((one for one in contenders if one.kind == _REFERENCE), None)
    simple = next((one for one in contenders if one.kind != _REFERENCE), None)
    if ours is None or simple is None:
        return None
    both = (one.evaluation.overall[metric].per_user.numpy() for one in (simple, ours))
    gain = np.subtract(*both)
    rng = np.random.default_rng(0)
    means = [gain[rng.integers(0, len(gain), len(gain))].mean() for _ in range(1000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return simple.kind, float(gain.mean()), float(low), float(high)
