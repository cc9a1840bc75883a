"""The next-item transformer on the session and sequence tasks.

``python -m experiments.best_by_default.transformer diginetica s3rec/beauty --seed 0`` adds what is
missing to results.json: for each data set a row of the test cases with the defaults of the model.
With ``--validation`` it prints the figures of validation cases instead, by which defaults are
chosen. Training is kept in build/ and resumed if it was stopped.
"""

import argparse
import time
from functools import partial
from pathlib import Path

from experiments.best_by_default.next_item import Task, evaluate_next_item, sampled
from experiments.best_by_default.sequences import SEQUENCES
from experiments.best_by_default.session_knn import CASES, RECORD, load
from experiments.best_by_default.sessions import SESSIONS
from experiments.record import Row
from fewfold.recommender import Checkpoint, Transformer
from fewfold.recommender.models.model import FitOptions, Fitted
from fewfold.recommender.models.model_options import TRANSFORMER

TRAININGS = Path("build/best_by_default")
Trained = tuple[Fitted, int]


def fitted(model: Transformer, name: str, task: Task, seed: int, *, part: str = "test") -> Trained:
    """The model, trained on a task, or read if this was done before; and processor seconds.

    Args:
        model: to train.
        name: of the data set.
        task: of which the training sequences are used.
        seed: of the training.
        part: names the file: training sequences of the validation and of the test may differ.
    """
    TRAININGS.mkdir(parents=True, exist_ok=True)
    path = TRAININGS / f"{name.replace('/', '-')}-{seed}-{part}"
    clock = path.with_suffix(".seconds")
    options = FitOptions(seed=seed, checkpoint=Checkpoint(path, resume=True))
    began = time.process_time()
    made = model.fit_sequences(task.train, task.items, options)
    if not clock.exists():
        clock.write_text(f"{time.process_time() - began:.0f}")
    return made, int(clock.read_text())


def metrics_of(model: Fitted, task: Task) -> Row:
    """Metrics of a fitted model on the cases of a task, rounded."""
    found = evaluate_next_item(model.rank, task.prefixes, task.targets, exclude=task.exclude)
    return {metric: round(value, 5) for metric, value in found.items()}


def with_defaults(name: str, seed: int) -> Row:
    """A row of the test cases with the settings that a user gets."""
    model, task = Transformer(), load(name)
    trained, took = fitted(model, name, task, seed)
    return {
        "settings": model.flags().strip(), "training processor seconds": took,
        **metrics_of(trained, task),
    }  # fmt: skip


def main() -> None:
    """Measure the data sets that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=[*SESSIONS, *SEQUENCES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", action="store_true")
    for option in TRANSFORMER.values():
        parser.add_argument(f"--{option.name}", type=option.type, default=option.default)
    given = parser.parse_args()
    for name in given.data:
        if given.validation:
            model, task = Transformer.from_options(vars(given)), load(name, validation=True)
            trained = model.fit_sequences(task.train, task.items, FitOptions(seed=given.seed))
            print(name, metrics_of(trained, sampled(task, CASES)))
            continue
        make = partial(with_defaults, name, given.seed)
        RECORD.once(make, task=name, model="transformer", tuning="default", seed=given.seed)


if __name__ == "__main__":
    main()
