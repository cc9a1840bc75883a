"""FastVAE beside the simple methods, on one split of one log: which should be taken?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fewfold._progress import notes, phase, silence
from fewfold._resources import free_memory
from fewfold.recommender.evaluation.dense_comparison import bytes_of, in_words
from fewfold.recommender.evaluation.evaluate import METRICS, Evaluation, assess, sample_users
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.metrics import NDCG, Metric, evaluate
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.baselines import BM25, EASE, Cosine, ItemKNN, MostPopular
from fewfold.recommender.models.fastvae.shortcut_weight import Trial
from fewfold.recommender.models.fitted import Fitted
from fewfold.recommender.models.recipes import VAE, Recipe, Training
from fewfold.recommender.models.registry import KINDS, fitted_to
from fewfold.recommender.reading.log import read_log

__all__ = ["Comparison", "Contender", "compare"]

EASE_ITEMS = 40_000  # at most, 32 GB while it learns
_KNN_ITEMS = 200_000
_FEW = 8_000  # items up to which several settings of EASE are tried
_L2 = (5.0, 20.0, 100.0, 500.0, 2500.0)


@dataclass(frozen=True, eq=False)
class Contender:
    """One model of a comparison.

    Attributes:
        kind: what `fewfold fit --model` calls it.
        recipe: with the settings that were chosen for it.
        evaluation: on the items held out.
        seconds: of fitting, with the choice of its settings.
        size: of what it has learned, in bytes.
        users_per_second: ranked, ten items each.
    """

    kind: str
    recipe: Recipe
    evaluation: Evaluation
    seconds: float
    size: int
    users_per_second: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; printing it gives the table and the verdict.

    Attributes:
        split: how test items were held out, in words.
        contenders: best first.
        skipped: models that were not run, and why.
        metric: what decides.
        against: of the best simple method, its gain over FastVAE with the interval of it, by the
            bootstrap over users; None where one of the two is missing.
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
        """Which to take, in words."""
        best = self.contenders[0]
        if self.against is None:
            return f"The best of these is {best.kind}."
        simple, gain, low, high = self.against
        spread = f"{self.metric} {abs(gain):.4f}, 95 % interval {min(abs(low), abs(high)):.4f} to "
        spread += f"{max(abs(low), abs(high)):.4f}"
        flags = next(_flags(one.recipe) for one in self.contenders if one.kind == simple)
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
                f"{one.kind:<11}{cells}{one.seconds:7.1f} s{in_words(one.size):>10}"
                f"{one.users_per_second:10,.0f}   {_settings(one.recipe)}"
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
    """Fit several models to one part of a log and see which finds most of the other.

    The settings of each (the neighbours of item-KNN, the penalty of EASE, the weight of FastVAE's
    shortcut) are chosen on a few items hidden from the training part, never on the test items.

    Args:
        source: as in `Recommender.fit`.
        models: which.
        test: share of the interactions to hold out.
        split: how, as in `Recommender.fit`.
        all_users: rank all users. Otherwise a sample of them is ranked by every model where all
            would take more than about a minute.
        progress: tell on standard error.
        reading: passed to `read_log`.
    """
    kinds = list(dict.fromkeys(models))
    if not kinds or not set(kinds) <= set(KINDS):
        raise ValueError(
            f"models must be some of {', '.join(KINDS)}, got {', '.join(kinds) or None}"
        )
    with notes(progress), silence(not progress):
        log = read_log(source, **reading)
        held, how = hold_out(log.interactions, test=test, split=split, seed=seed)
        trial = Trial.of(held.train, seed=seed)
        asked = held.fold_in.jagged, held.test.jagged
        contenders: list[Contender] = []
        skipped: dict[str, str] = {}
        users: Tensor | None = None
        for kind in kinds:
            why = _too_large(kind, held.train.items)
            if why:
                skipped[kind] = why
                continue
            began = time.perf_counter()
            with phase(f"choosing settings of {kind}"):
                recipe = _chosen(_recipes(kind, held.train.items), trial)
            fitted = fitted_to(
                held.train, recipe, training or Training(), seed=seed, progress=progress
            ).fitted
            seconds = time.perf_counter() - began
            if not contenders and not all_users:  # the same users for all, or they do not compare
                users = sample_users(fitted, *asked, seed=seed)
            seen = held.train.counts() > 0
            evaluation = assess(fitted, *asked, seen, split=how, users=users)
            speed = _speed(fitted, held.fold_in)
            contenders.append(Contender(kind, recipe, evaluation, seconds, bytes_of(fitted), speed))
    if not contenders:
        told = "; ".join(f"{kind}: {why}" for kind, why in skipped.items())
        raise ValueError(f"none of the models can be fitted here ({told}); compare others")
    metric = METRICS[0]
    contenders.sort(key=lambda one: -one.evaluation.overall[metric].mean)
    return Comparison(how, contenders, skipped, metric, _against(contenders, metric))


def _recipes(kind: str, items: int) -> list[Recipe]:
    if kind == "fastvae":
        return [VAE()]
    if kind == "popularity":
        return [MostPopular()]
    if kind == "ease":
        return [EASE(l2, most_items=max(items, 1)) for l2 in (_L2 if items <= _FEW else (250.0,))]
    return [ItemKNN(n, weighting) for n in (20, 100) for weighting in (Cosine(), BM25())]


def _too_large(kind: str, items: int) -> str:
    """Why a model cannot be fitted here; empty if it can."""
    need = 20 * items**2
    if kind == "ease" and (items > EASE_ITEMS or need > 0.6 * free_memory()):
        return f"it needs an items x items matrix, {in_words(need)} for {items:,} items"
    if kind == "item-knn" and items > _KNN_ITEMS:
        return f"it compares every item with every other, which takes too long for {items:,} items"
    return ""


def _chosen(recipes: Sequence[Recipe], trial: Trial | None) -> Recipe:
    """The one that finds most of what was hidden."""
    if trial is None or len(recipes) == 1:
        return recipes[0]

    def score(recipe: Recipe) -> float:
        fitted = fitted_to(trial.rest, recipe, Training()).fitted
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
    ours = next((one for one in contenders if one.kind == "fastvae"), None)
    simple = next((one for one in contenders if one.kind != "fastvae"), None)
    if ours is None or simple is None:
        return None
    both = (one.evaluation.overall[metric].per_user.numpy() for one in (simple, ours))
    gain = np.subtract(*both)
    rng = np.random.default_rng(0)
    means = [gain[rng.integers(0, len(gain), len(gain))].mean() for _ in range(1000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return simple.kind, float(gain.mean()), float(low), float(high)


def _settings(recipe: Recipe) -> str:
    if isinstance(recipe, EASE):
        return f"l2 {recipe.l2:g}"
    if isinstance(recipe, ItemKNN):
        return f"{recipe.neighbours} neighbours, {recipe.weighting!r}"
    if isinstance(recipe, VAE):
        return f"latent {recipe.latent}, hidden {recipe.hidden}"
    return ""


def _flags(recipe: Recipe) -> str:
    """What to write on the command line to get the same settings."""
    if isinstance(recipe, EASE):
        return f" --l2 {recipe.l2:g}"
    if isinstance(recipe, ItemKNN):
        name = "bm25" if isinstance(recipe.weighting, BM25) else "cosine"
        return f" --neighbours {recipe.neighbours} --weighting {name}"
    return ""
