"""ALS with its defaults, with settings chosen on a validation part, and next to implicit.

``python -m experiments.best_by_default.als epinions gowalla ml10m`` adds what is missing to
als.json. Rows of a log:

- ``default``: the settings of `ALS()`;
- ``chosen``: the best of `ALS.grid` by NDCG@50 on a validation part of the training data, as
  `compare` and `auto` choose it;
- ``equal``: the objective of implicit with its settings, fitted by `ALS` and by implicit. The
  settings of Epinions and Gowalla are those of `experiments/fastvae`, which were best for implicit
  on a validation part.

All on the same split, ranked among all items.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from experiments.best_by_default.tasks import METRICS, best_on_validation, load, metrics_of
from experiments.record import Record, Row
from fewfold.recommender import ALS, Split
from fewfold.recommender.evaluation.metrics import evaluate

RECORD = Record(Path(__file__).with_name("als.json"))
# factors, confidence and penalty of implicit
IMPLICIT = {"epinions": (128, 10.0, 10.0), "gowalla": (128, 40.0, 10.0), "ml10m": (32, 10.0, 10.0)}
_ITERATIONS = 15


def equal_objective(factors: int, confidence: float, penalty: float) -> ALS:
    """The model whose objective is that of implicit with these settings."""
    return ALS(
        factors, penalty / confidence, 1 / (confidence - 1), _ITERATIONS, frequency_exponent=0.0
    )


def row_of(model: ALS, split: Split) -> Row:
    """Metrics of a fitted model on the test items, and the processor time of the fit."""
    began = time.process_time()
    fitted = model.fit(split.train)
    seconds = round(time.process_time() - began, 1)
    return {"settings": repr(fitted.recipe), "fit cpu": seconds, **metrics_of(fitted, split)}


def default_row(name: str) -> Row:
    """What a user gets."""
    return row_of(ALS(), load(name))


def chosen_row(name: str) -> Row:
    """The settings that are best on validation."""
    split = load(name)
    best, tried = best_on_validation(split.train, ALS.grid(split.train.items), "ndcg@50")
    return {"validation": tried, **row_of(best, split)}


def equal_row(name: str) -> Row:
    """The objective of implicit."""
    return row_of(equal_objective(*IMPLICIT[name]), load(name))


def implicit_row(name: str) -> Row:
    """implicit itself."""
    from implicit.cpu.als import AlternatingLeastSquares

    split, (factors, confidence, penalty) = load(name), IMPLICIT[name]
    model = AlternatingLeastSquares(
        factors, regularization=penalty, alpha=confidence, iterations=_ITERATIONS, random_state=0,
        num_threads=int(os.environ.get("OMP_NUM_THREADS", "0")),
    )  # fmt: skip
    train = csr_matrix(split.train.to_csr())
    began = time.process_time()
    model.fit(train, show_progress=False)
    seconds = round(time.process_time() - began, 1)
    users = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    ids = model.recommend(users.numpy(), train[users.numpy()], N=50)[0].astype(np.int64)
    found = evaluate(torch.from_numpy(ids), split.test.rows(users), METRICS, resamples=0)
    return {
        "settings": f"factors={factors}, alpha={confidence:g}, regularization={penalty:g}",
        "fit cpu": seconds,
        **{str(metric).lower(): round(found[metric].mean, 5) for metric in METRICS},
    }  # fmt: skip


def main() -> None:
    """Measure the logs, whatever is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", nargs="*", default=[*IMPLICIT, "bundled"])
    for name in parser.parse_args().data:
        RECORD.once(partial(default_row, name), task=name, model="als", tuning="default")
        RECORD.once(partial(chosen_row, name), task=name, model="als", tuning="chosen")
        if name in IMPLICIT:
            RECORD.once(partial(equal_row, name), task=name, model="als", tuning="equal")
            RECORD.once(partial(implicit_row, name), task=name, model="implicit", tuning="equal")


if __name__ == "__main__":
    main()
