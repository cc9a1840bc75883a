"""Session-KNN on the session and sequence tasks, with settings chosen on validation cases.

``python -m experiments.best_by_default.session_knn diginetica s3rec/beauty`` adds what is missing
to results.json: for each data set a row of the test cases with the defaults of the model, and one
with the settings that were best on validation cases. Without names it runs all data sets.
"""

import argparse
import itertools
from dataclasses import fields
from functools import partial
from pathlib import Path

from experiments.best_by_default.next_item import Task, evaluate_next_item, sampled
from experiments.best_by_default.sequences import SEQUENCES, sequence_task
from experiments.best_by_default.sessions import SESSIONS, session_task
from experiments.record import Record, Row
from fewfold.recommender import SessionKNN

RECORD = Record(Path(__file__).parent / "results.json")
GRID = [
    SessionKNN(neighbours, decay=decay, spread=spread)
    for neighbours, decay, spread in itertools.product((100, 500), (1.0, 2.0, 4.0), (4.0, 8.0))
]
CASES = 10_000  # validation cases, drawn at random, on which settings are chosen


def deciding_metric(name: str) -> str:
    """The metric by which settings are chosen: the one that is published first."""
    return "recall@20" if name in SESSIONS else "ndcg@10"


def load(name: str, *, validation: bool = False) -> Task:
    """The task of a data set."""
    return (session_task if name in SESSIONS else sequence_task)(name, validation=validation)


def measure(model: SessionKNN, task: Task) -> dict[str, float]:
    """Metrics of the model, rounded."""
    model.fit_sequences(task.train, task.items)
    found = evaluate_next_item(model.rank, task.prefixes, task.targets, exclude=task.exclude)
    return {metric: round(value, 5) for metric, value in found.items()}


def settings(model: SessionKNN) -> dict[str, float]:
    """The settings of the model."""
    return {each.name: getattr(model, each.name) for each in fields(model) if each.init}


def with_defaults(name: str) -> Row:
    """A row of the test cases with the settings that a user gets."""
    model = SessionKNN()
    return {"settings": settings(model), **measure(model, load(name))}


def with_chosen(name: str) -> Row:
    """A row of the test cases with the settings that are best on validation cases."""
    task, metric = sampled(load(name, validation=True), CASES), deciding_metric(name)
    tried = [(measure(model, task)[metric], model) for model in GRID]
    score, best = max(tried, key=lambda one: one[0])
    return {
        "settings": settings(best), "chosen by": metric, "validation": score,
        **measure(best, load(name)),
    }  # fmt: skip


MAKE = {"default": with_defaults, "chosen": with_chosen}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=[*SESSIONS, *SEQUENCES])
    parser.add_argument("--tuning", nargs="+", choices=MAKE, default=list(MAKE))
    given = parser.parse_args()
    for name in given.data:
        for kind in given.tuning:
            RECORD.once(partial(MAKE[kind], name), task=name, model="session-knn", tuning=kind)
