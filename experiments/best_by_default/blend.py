"""A blend of the next-item transformer and session-KNN on the session and sequence tasks.

``python -m experiments.best_by_default.blend diginetica s3rec/beauty --seed 0`` adds what is
missing to results.json: for each data set a row of the test cases with the defaults of both models
and of the blend, and one with the weight that is best on validation cases. Trainings of the
transformer are kept in build/, and shared with experiments.best_by_default.transformer.
"""

import argparse
from functools import partial

from experiments.best_by_default.next_item import Task, sampled
from experiments.best_by_default.sequences import SEQUENCES
from experiments.best_by_default.session_knn import CASES, RECORD, load
from experiments.best_by_default.sessions import SESSIONS
from experiments.best_by_default.transformer import fitted, metrics_of
from experiments.record import Row
from fewfold.recommender import Blend, SessionKNN, Transformer
from fewfold.recommender.models.blend import FittedBlend
from fewfold.recommender.models.model import Fitted

# Weights of session-KNN, and the metric they are chosen by: both as in `--model auto`.
WEIGHTS = (0.2, 0.35, 0.5, 0.65, 0.8)
METRIC = "ndcg@10"
Parts = tuple[Fitted, Fitted, int]


def parts_of(name: str, task: Task, seed: int, part: str) -> Parts:
    """Both models, fitted to a task with their defaults, and the processor seconds of training."""
    first, took = fitted(Transformer(), name, task, seed, part=part)
    return first, SessionKNN().fit_sequences(task.train, task.items), took


def measure(parts: Parts, task: Task, weight: float) -> Row:
    """Metrics of a blend with this weight of session-KNN."""
    first, second, _ = parts
    recipe = Blend(first.recipe, second.recipe, weight)
    return metrics_of(FittedBlend(recipe, first, second), task)


def with_default_weight(name: str, seed: int) -> Row:
    """A row of the test cases with the settings that a user gets."""
    task = load(name)
    parts = parts_of(name, task, seed, "test")
    return {
        "settings": {"weight": Blend.weight}, "training processor seconds": parts[2],
        **measure(parts, task, Blend.weight),
    }  # fmt: skip


def with_chosen_weight(name: str, seed: int) -> Row:
    """A row of the test cases with the weight that is best on validation cases."""
    task, early = load(name), load(name, validation=True)
    # Sequences are validated with the training of the test: both learn from the same items.
    part = "validation" if name in SESSIONS else "test"
    parts, cases = parts_of(name, early, seed, part), sampled(early, CASES)
    tried = {weight: measure(parts, cases, weight)[METRIC] for weight in WEIGHTS}
    best = max(tried, key=lambda weight: tried[weight])
    whole = parts_of(name, task, seed, "test")
    return {
        "settings": {"weight": best}, "chosen by": METRIC, "validation": tried,
        "training processor seconds": whole[2], **measure(whole, task, best),
    }  # fmt: skip


MAKE = {"default": with_default_weight, "chosen": with_chosen_weight}


def main() -> None:
    """Measure the data sets that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=[*SESSIONS, *SEQUENCES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tuning", nargs="+", choices=MAKE, default=list(MAKE))
    given = parser.parse_args()
    for name in given.data:
        for kind in given.tuning:
            row = partial(MAKE[kind], name, given.seed)
            RECORD.once(row, task=name, model="blend", tuning=kind, seed=given.seed)


if __name__ == "__main__":
    main()
