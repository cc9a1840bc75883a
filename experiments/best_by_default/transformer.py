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
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.models.model_options import TRANSFORMER

TRAININGS = Path("build/best_by_default")


def measure(model: Transformer, task: Task, options: FitOptions) -> Row:
    """Metrics of the model, rounded, and the seconds of the processor that training took."""
    began = time.process_time()
    fitted = model.fit_sequences(task.train, task.items, options)
    took = round(time.process_time() - began)
    found = evaluate_next_item(fitted.rank, task.prefixes, task.targets, exclude=task.exclude)
    return {
        "training processor seconds": took,
        **{metric: round(value, 5) for metric, value in found.items()},
    }


def with_defaults(name: str, seed: int) -> Row:
    """A row of the test cases with the settings that a user gets."""
    model = Transformer()
    TRAININGS.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(TRAININGS / f"{name.replace('/', '-')}-{seed}", resume=True)
    options = FitOptions(seed=seed, checkpoint=checkpoint)
    return {"settings": model.flags().strip(), **measure(model, load(name), options)}


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
            print(name, measure(model, sampled(task, CASES), FitOptions(seed=given.seed)))
            continue
        make = partial(with_defaults, name, given.seed)
        RECORD.once(make, task=name, model="transformer", tuning="default", seed=given.seed)


if __name__ == "__main__":
    main()
