"""An updated model next to one that is stale and one that is fitted again.

A log is cut into what a model is fitted to, what comes later, and what is tested: by time, or at
random where there are no times. NDCG@10 is on the tested pairs, given what each model knows.
"""

import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars

import fewfold as ff
from benchmarks.harness import Case, Peak
from experiments import datasets
from fewfold.recommender import ALS, EASE, NDCG, VAE, ItemKNN, SessionKNN

FITTED, LATER = 0.8, 0.1  # shares of the log
METRIC = NDCG(10)
MODELS: dict[str, Any] = {
    "ease": partial(EASE, most_items=20_000),
    "als": ALS,
    "item-knn": ItemKNN,
    "session-knn": SessionKNN,
    "fastvae": VAE,
}
LOGS = {
    "bundled log, at random": ("bundled", ("ease", "als", "item-knn", "fastvae")),
    "MovieLens-1M, by time": ("ml-1m", tuple(MODELS)),
    "Amazon games, by time": ("games", ("als", "item-knn", "session-knn")),
}


@dataclass(frozen=True)
class Measured:
    """NDCG@10 and seconds of the three models."""

    stale: float
    updated: float
    refit: float
    update_seconds: float
    refit_seconds: float

    def details(self) -> dict[str, float]:
        """All figures, for the file of results."""
        return {name: float(value) for name, value in vars(self).items()}


def cases() -> list[Case]:
    """Every row, in the order of the claims."""
    found = []
    for size, (log, models) in LOGS.items():
        if log != "bundled" and not datasets.has(Path(_FILES[log]).parts[0]):
            continue
        for model in models:
            quality, seconds = partial(_quality, log, model), partial(_seconds, log, model)
            lost = f"{model}: NDCG@10 lost by an update"
            found.append(Case(lost, size, "lost by a stale model", 0.5, quality, threads=2))
            if model != "session-knn":  # which keeps sessions, and is as quick to fit
                took = f"{model}: time of an update"
                found.append(Case(took, size, "a new fit", 0.5, seconds, threads=2))
    return found


def _quality(log: str, model: str) -> Peak:
    """What is lost against a new fit; a loss of less than 0.0005 counts as that."""
    found = measured(log, model)
    lost, stale = (max(found.refit - one, 0.0005) for one in (found.updated, found.stale))
    return Peak(lost, stale, "", found.details())


def _seconds(log: str, model: str) -> Peak:
    found = measured(log, model)
    return Peak(found.update_seconds, found.refit_seconds, "seconds", found.details())


@cache
def measured(log: str, model: str) -> Measured:
    """Fit, update and fit again."""
    fitted, later, tested = parts(log)
    both = {name: np.concatenate([fitted[name], later[name]]) for name in fitted}
    stale = ff.Recommender(MODELS[model]()).fit(fitted, progress=False)
    start = time.perf_counter()
    updated = stale.update(later)
    middle = time.perf_counter()
    refit = ff.Recommender(MODELS[model]()).fit(both, progress=False)
    end = time.perf_counter()
    first, second, third = (
        one.evaluate(tested, split="all", metrics=[METRIC], all_users=True).overall[METRIC].mean
        for one in (stale, updated, refit)
    )
    return Measured(first, second, third, middle - start, end - middle)


_FILES = {
    "ml-1m": "ml-1m-timestamps/ratings_timestamps.parquet",
    "games": "amazon-games-2018/interactions.parquet",
}


def parts(log: str) -> list[dict[str, np.ndarray]]:
    """Return the three parts of a log, as columns."""
    if log == "bundled":
        whole = ff.read_log(ff.recommender.bundled())
        users, items = np.array(whole.users.tolist()), np.array(whole.items.tolist())
        pairs = whole.interactions
        columns = {"user": users[pairs.row.numpy()], "item": items[pairs.ids.numpy()]}
        order = np.random.default_rng(0).permutation(pairs.pairs)
    else:
        frame = polars.read_parquet(datasets.DATA / _FILES[log])
        names = [name for name in frame.columns if name not in ("rating", "title")]
        columns = dict(
            zip(("user", "item", "time"), (frame[name].to_numpy() for name in names), strict=True)
        )
        order = np.argsort(columns["time"], kind="stable")
    first, second = (int(len(order) * share) for share in (FITTED, FITTED + LATER))
    return [
        {name: column[part] for name, column in columns.items()}
        for part in (order[:first], order[first:second], order[second:])
    ]
