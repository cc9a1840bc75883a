"""The next-item transformer on sessions and sequences, with its default settings.

python -m experiments.best_by_default.transformer --data diginetica --seed 0

Rows go to results.json; those with `--validation` measure the validation part of the training data,
which settings are chosen on, and are printed only.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from experiments.best_by_default.next_item import Task, evaluate_next_item
from experiments.best_by_default.sequences import SEQUENCES, sequence_task
from experiments.best_by_default.sessions import SESSIONS, session_task
from experiments.record import Record
from fewfold.recommender import Training, Transformer
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.models.model_options import TRANSFORMER

RESULTS = Record(Path(__file__).with_name("results.json"))


def measure(task: Task, model: Transformer, training: Training, seed: int) -> dict[str, Any]:
    """Train and evaluate; times are those of the processors, without evaluation."""
    began = time.process_time()
    fitted = model.fit_sequences(task.train, task.items, FitOptions(training, seed=seed))
    took = time.process_time() - began
    found = evaluate_next_item(fitted.rank, task.prefixes, task.targets, exclude=task.exclude)
    return {"training processor seconds": round(took), **found}


def main() -> None:
    """Measure one data set with one seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", choices=(*SESSIONS, *SEQUENCES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--time-budget", type=float, metavar="SECONDS")
    parser.add_argument("--validation", action="store_true")
    for option in TRANSFORMER.values():
        parser.add_argument(f"--{option.name}", type=option.type, default=option.default)
    given = parser.parse_args()
    make = session_task if given.data in SESSIONS else sequence_task
    task = make(given.data, validation=given.validation)
    model = Transformer.from_options(vars(given))
    training = Training(epochs=given.epochs, time_budget=given.time_budget)
    if given.validation:
        print(json.dumps(measure(task, model, training, given.seed)))
        return
    key = {
        "task": given.data, "model": "transformer", "settings": model.flags().strip(),
        "epochs": given.epochs, "seed": given.seed,
    }  # fmt: skip
    print(json.dumps(RESULTS.once(lambda: measure(task, model, training, given.seed), **key)))


if __name__ == "__main__":
    main()
