"""Search of the settings of any model, by a function from suggested values to the model."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Unpack

import numpy as np
from torch import Tensor

from fewfold import _html
from fewfold._check import whole_number
from fewfold._progress import notes, phase, silence
from fewfold.recommender.evaluation.holdout import HoldOut
from fewfold.recommender.evaluation.metrics import NDCG, Metric, evaluate
from fewfold.recommender.evaluation.model_evaluation import sample_users
from fewfold.recommender.models.model import FitOptions, Fitted, Model
from fewfold.recommender.reading.log import read_log
from fewfold.recommender.reading.read_options import ReadOptions, check_keywords
from fewfold.recommender.training.train_options import Training

__all__ = ["Suggest", "Suggestions", "SearchedSettings", "SettingsSearch", "SettingsTried"]


class Suggest(Protocol):
    """What suggests values: `Suggestions`, or a trial of Optuna."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Suggest a number from `low` to `high`."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Suggest a whole number from `low` to `high`, both included."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Suggest one of several values."""


@dataclass
class Suggestions:
    """Values drawn at random; the methods are those of a trial of Optuna.

    Attributes:
        generator: of NumPy.
        values: the values that were suggested, by name.

    Example:
        >>> import numpy as np
        >>> from fewfold.recommender import Suggestions
        >>> suggest = Suggestions(np.random.default_rng(0))
        >>> 1 <= suggest.suggest_float("l2", 1, 1000, log=True) <= 1000
        True
    """

    generator: np.random.Generator
    values: dict[str, Any] = field(default_factory=dict)

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Draw a number from `low` to `high`, uniformly, or in its logarithm."""
        if not low <= high or (log and low <= 0):
            raise ValueError(
                f"{name}: low must be at most high, and above 0 if log; got {low} and {high}"
            )
        start, end = (math.log(low), math.log(high)) if log else (low, high)
        found = float(self.generator.uniform(start, end))
        found = min(max(math.exp(found) if log else found, float(low)), float(high))
        self.values[name] = found
        return found

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        if not low <= high or (log and low < 1):
            raise ValueError(
                f"{name}: low must be at most high, and at least 1 if log; got {low} and {high}"
            )
        if log:
            real = self.suggest_float(name, low - 0.5, high + 0.5, log=True)
            found = min(max(round(real), low), high)
        else:
            found = int(self.generator.integers(low, high, endpoint=True))
        self.values[name] = found
        return found

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Draw one of several values."""
        if not choices:
            raise ValueError(f"{name}: choices must have at least one value")
        self.values[name] = choices[int(self.generator.integers(len(choices)))]
        return self.values[name]


@dataclass(frozen=True, eq=False)
class SettingsTried:
    """One model of a search.

    Attributes:
        values: what was suggested.
        model: the model.
        score: mean of the metric on the validation items.
        seconds: time to fit and to rank.
    """

    values: dict[str, Any]
    model: Model
    score: float
    seconds: float


@dataclass(frozen=True, eq=False)
class SearchedSettings:
    """Result of `SettingsSearch.run`; printing it gives a table.

    Attributes:
        tried: best first.
        metric: what decides.
        split: how the validation items were held out.
    """

    tried: Sequence[SettingsTried]
    metric: Metric
    split: str

    @property
    def best(self) -> Model:
        """The best model, not fitted."""
        return self.tried[0].model

    def __str__(self) -> str:
        lines = [f"Validated on: {self.split}.", "", f"{self.metric!s:<10} {'seconds':>8}  model"]
        lines += [
            f"{one.score:<10.4f} {one.seconds:8.1f}  {one.model.name}: {_listed(one.values)}"
            for one in self.tried
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [[one.model.name, _listed(one.values), one.score, one.seconds] for one in self.tried]
        heads = ["model", "settings", str(self.metric), "seconds"]
        return _html.table(heads, rows, caption=f"Validated on: {self.split}.")


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


class SettingsSearch:
    """Search of the settings of any model on a part of a log.

    Two parts are held out: the one that `Recommender.fit` holds out with the same `test` and
    `seed`, which is never looked at, and of the rest the one on which models are validated. So the
    evaluation of the best model by ``Recommender(best, seed=seed).fit(log, test=test)`` is honest,
    while the scores of the search, of which the best was chosen, are a little too high.

    An object of this class is the objective of an Optuna study as well:
    ``study.optimize(search, n_trials=50)`` with ``direction="maximize"``.

    Args:
        source: as in `Recommender.fit`.
        recipe: returns a model for suggested values.
        test: share of the interactions that is set aside, or a `HoldOut`.
        metric: what decides.
        training: settings of the training of a `VAE`.
        seed: the same seed gives the same search.
        reading: columns, conditions and formats of the log; see `ReadOptions`.

    Example:
        >>> import fewfold as ff
        >>> from fewfold.recommender import EASE, NDCG, SettingsSearch
        >>> def recipe(suggest):
        ...     return EASE(l2=suggest.suggest_float("l2", 1, 1000, log=True))
        >>> log = ff.read_log(ff.recommender.bundled(), core=20)
        >>> found = SettingsSearch(log, recipe).run(5, progress=False)
        >>> len(found.tried), type(found.best).__name__, found.metric
        (5, 'EASE', NDCG@10)
        >>> rec = ff.Recommender(found.best).fit(log, test=0.2, progress=False)
    """

    def __init__(
        self,
        source: Any,
        recipe: Callable[[Suggest], Model],
        *,
        test: float | HoldOut = 0.2,
        metric: Metric | None = None,
        training: Training | None = None,
        seed: int = 0,
        **reading: Unpack[ReadOptions],
    ) -> None:
        check_keywords(reading, SettingsSearch)
        self.recipe, self.metric = recipe, metric if metric is not None else NDCG(10)
        self.training, self.seed = training or Training(), whole_number(seed, "seed", least=0)
        held_out = HoldOut.of(test)
        log = read_log(source, **reading).interactions
        rest = held_out.apply(log, seed)[0].train if held_out.test else log
        validation = HoldOut(held_out.test or 0.2, held_out.split)
        self._held, self.split = validation.apply(rest, seed + 1)
        self._all_users = held_out.all_users
        self._users: Tensor | None = None

    def __call__(self, suggest: Suggest) -> float:
        """Return the mean metric of the model for suggested values."""
        return self._score(self.recipe(suggest))

    def run(
        self, trials: int = 20, *, time_budget: float | None = None, progress: bool = True
    ) -> SearchedSettings:
        """Try values drawn at random.

        Args:
            trials: number of models.
            time_budget: seconds after which no other trial begins; the first is always run.
            progress: show progress on standard error.
        """
        whole_number(trials, "trials")
        began = time.monotonic()
        tried: list[SettingsTried] = []
        with notes(progress), silence(not progress), phase("searching", total=trials) as searching:
            for number in searching.each(range(trials)):
                spent = time.monotonic() - began
                if tried and time_budget is not None and spent >= time_budget:
                    break
                suggest = Suggestions(np.random.default_rng([self.seed, number]))
                start, model = time.perf_counter(), self.recipe(suggest)
                score = self._score(model)
                seconds = time.perf_counter() - start
                tried.append(SettingsTried(suggest.values, model, score, seconds))
        tried.sort(key=lambda one: -one.score)
        return SearchedSettings(tried, self.metric, self.split)

    def _score(self, model: Model) -> float:
        if not isinstance(model, Model):
            raise TypeError(
                f"recipe must return a model such as EASE(), got {type(model).__name__}"
            )
        held = self._held
        options = FitOptions(self.training, seed=self.seed, progress=False)
        fitted = model.learn(held.train, options).fitted
        known = held.fold_in.rows(slice(None), ordered=model.ordered)
        users = self._validated(fitted)
        seen, disliked = known.rows(users), held.fold_in.disliked
        gone = seen if disliked is None else seen.append(disliked.rows(users)).sets()
        top = fitted.rank(seen, min(self.metric.k, fitted.items), exclude=gone).ids
        found = evaluate(top, held.test.jagged.rows(users), (self.metric,), resamples=0)
        return found[self.metric].mean

    def _validated(self, fitted: Fitted) -> Tensor:
        """Return the users that are ranked: the same for all models."""
        if self._users is None:
            known, test = self._held.fold_in.jagged, self._held.test.jagged
            some = None if self._all_users else sample_users(fitted, known, test, seed=self.seed)
            self._users = (test.lengths > 0).nonzero().squeeze(1) if some is None else some
        return self._users
