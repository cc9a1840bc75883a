"""The automatic choice on logs without order: the bundled one, MovieLens-10M, Gowalla and Epinions.

``python -m experiments.best_by_default.auto gowalla --seeds 3`` adds what is missing to auto.json.
The choice sees the training part alone; its table of trials is kept with the row. Choices and
trainings are kept in build/ and resumed if they were stopped.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.datasets import epinions, gowalla, ml10m
from experiments.record import Record, Row
from fewfold.recommender import (
    NDCG,
    Auto,
    Checkpoint,
    Recall,
    Split,
    bundled,
    evaluate,
    read_log,
)
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.models.model import FitOptions

__all__ = ["LOGS", "main", "measure"]

RECORD = Record(Path(__file__).with_name("auto.json"))
TRAININGS = Path("build/best_by_default")
METRICS = (NDCG(10), NDCG(50), Recall(50))


def bundled_split(seed: int) -> Split:
    """Return the bundled log as `fewfold fit` splits it."""
    return hold_out(read_log(bundled()).interactions, test=0.2, split="auto", seed=seed)[0]


LOGS: dict[str, Callable[[int], Split]] = {
    "bundled": bundled_split,
    "epinions": epinions,
    "gowalla": gowalla,
    "ml10m": ml10m,
}


def measure(name: str, seed: int) -> Row:
    """Choose and fit a model on the training part, and evaluate it on all test users."""
    split = LOGS[name](seed)
    TRAININGS.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(TRAININGS / f"auto-{name}-{seed}", resume=True)
    began = time.process_time()
    options = FitOptions(seed=seed, split="random", checkpoint=checkpoint)
    learned = Auto().learn(split.train, options)
    took = round(time.process_time() - began)
    ranking = learned.fitted.rank(split.fold_in.jagged, 50, exclude=split.fold_in.jagged)
    report = evaluate(ranking.ids, split.test, METRICS, resamples=0)
    choice = learned.choice
    assert choice is not None
    return {
        **{str(metric).lower(): round(report[metric].mean, 4) for metric in METRICS},
        "chosen": choice.chosen,
        "settings": choice.settings,
        "processor seconds": took,
        "tried": [asdict(row) for row in choice.tried],
    }


def main() -> None:
    """Measure the logs that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="*", default=[*LOGS])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    for name in given.logs:
        for seed in range(given.seeds):
            RECORD.once(partial(measure, name, seed), log=name, seed=seed)


if __name__ == "__main__":
    main()
