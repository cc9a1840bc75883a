"""Sparse EASE next to EASE: NDCG@10, size and peak memory of the fit.

``python -m experiments.best_by_default.sparse_ease bundled ml10m gowalla`` adds what is missing to
sparse_ease.json. The penalty of either model is chosen by NDCG@10 on a validation part of the
training data; the rows with the defaults of sparse EASE are there, too.

``python -m experiments.best_by_default.sparse_ease gowalla --predictors 200 500`` adds NDCG@10
on the validation part with as many predictors, and the seconds; test items are not looked at.

``python -m experiments.best_by_default.sparse_ease --peak NAME MODEL L2`` prints the peak memory of
a fit beyond what the process took before it, in bytes.
"""

import argparse
import ctypes
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.resources import Stopwatch
from experiments.best_by_default.tasks import METRICS, best_on_validation, load, metrics_of
from experiments.record import Record, Row
from fewfold.recommender import EASE, Interactions, SparseEASE, Split
from fewfold.recommender.evaluation.metrics import evaluate

RECORD = Record(Path(__file__).with_name("sparse_ease.json"))
TASKS = ("bundled", "ml10m", "gowalla")
L2 = (10.0, 20.0, 50.0, 100.0, 250.0, 500.0)
VALIDATED_L2 = 50.0  # of the rows with several numbers of predictors: the best one on Gowalla
LARGE_L2 = (20.0, 50.0, 100.0, 250.0)  # where a fit takes minutes
DENSE = 10_000  # most items for which EASE is fitted in its own form
_ROWS_AT_ONCE = 1024


def ease_by_users(split: Split, l2: float) -> Tensor:
    """Rankings (users, 50) of EASE from a users x users system, where that is the smaller one.

    With K = X X^T + l2 I, ``x_u (X^T X + l2 I)^-1 = (K^-1 X)_u``, and the diagonal of the inverse
    is ``(1 - sum_u X_ui (K^-1 X)_ui) / l2``. Rows of users who are in the log; exact.
    """
    matrix = split.train.to_csr().astype(np.float32)
    gram = torch.from_numpy((matrix @ matrix.T).toarray())
    gram.diagonal().add_(l2)
    torch.linalg.cholesky(gram, out=gram)
    inverse = torch.cholesky_inverse(gram, out=gram).numpy()
    turned = matrix.T.tocsr()
    blocks = [
        slice(start, start + _ROWS_AT_ONCE) for start in range(0, split.train.users, _ROWS_AT_ONCE)
    ]
    explained = np.zeros(split.train.items)
    for block in blocks:
        explained += matrix[block].multiply((turned @ inverse[:, block]).T).sum(0)
    diagonal = torch.from_numpy((1 - explained) / l2).float()
    top = []
    for block in blocks:
        scores = torch.from_numpy(np.ascontiguousarray((turned @ inverse[:, block]).T)) / -diagonal
        known = split.fold_in.rows(block)
        scores[known.row, known.values] = -torch.inf
        top.append(scores.topk(50).indices)
    return torch.cat(top)


def popular(train: Interactions) -> Interactions:
    """The log of the 10,000 most popular items, or of all."""
    chosen = train.counts().argsort(descending=True, stable=True)[:DENSE].sort().values
    return Interactions.from_csr(train.to_csr()[:, chosen.numpy()])


def ease_row(name: str) -> Row:
    """EASE on the test items."""
    split = load(name)
    small = split.train.items <= DENSE
    best, tried = best_on_validation(
        popular(split.train), [EASE(l2) for l2 in (L2 if small else LARGE_L2)], "ndcg@10"
    )
    if small:
        fitted = best.fit(split.train)
        return {
            "l2": best.l2,
            "validation": tried,
            "bytes": size(fitted),
            **metrics_of(fitted, split),
        }
    users = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    top = ease_by_users(split, best.l2)[users]
    found = evaluate(top, split.test.rows(users), METRICS, resamples=0)
    return {
        "l2": best.l2, "validation on 10,000 popular items": tried,
        "bytes": 4 * split.train.items**2,
        **{str(metric).lower(): round(found[metric].mean, 5) for metric in METRICS},
    }  # fmt: skip


def sparse_row(name: str, tuning: str) -> Row:
    """Sparse EASE on the test items, with its defaults or with the penalty that validates best."""
    split = load(name)
    best = SparseEASE()
    tried: dict[str, float] = {}
    if tuning == "chosen":
        grid = L2 if split.train.items <= DENSE else LARGE_L2
        best, tried = best_on_validation(split.train, [SparseEASE(l2) for l2 in grid], "ndcg@10")
    fitted = best.fit(split.train)
    return {
        "l2": best.l2, "predictors": best.predictors, "validation": tried, "bytes": size(fitted),
        **metrics_of(fitted, split),
    }  # fmt: skip


def predictors_row(name: str, predictors: int, l2: float) -> Row:
    """Sparse EASE with as many predictors on the validation part."""
    began = time.process_time()
    _, tried = best_on_validation(load(name).train, [SparseEASE(l2, predictors)], "ndcg@10")
    took = round(time.process_time() - began)
    return {"validation": tried, "processor seconds": took}


def size(fitted: Any) -> int:
    """Bytes of the tensors."""
    return sum(tensor.nbytes for tensor in fitted.state().values())


def peak_row(name: str, model: str, l2: float) -> Row:
    """Peak memory of the fit, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        __spec__.name if __spec__ else "",
        "--peak",
        name,
        model,
        str(l2),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {"peak bytes of the fit": int(done.stdout.split()[-1])}


def print_peak(name: str, model: str, l2: str) -> None:
    """Fit and print the peak memory beyond that before it."""
    train = load(name).train
    kinds = {"ease": EASE, "sparse-ease": SparseEASE}
    few = Interactions.from_pairs([0, 0, 1, 1], [0, 1, 1, 2])
    kinds[model](10.0).fit(few)  # what is loaded on first use is not the fit's
    if sys.platform == "linux":  # what reading has left free would be used again, and not counted
        ctypes.CDLL(None).malloc_trim(0)
    watch = Stopwatch()
    watch.peak_since()  # reading may have taken more
    before = watch.peak_since()
    kinds[model](float(l2)).fit(train)
    print(watch.peak_since() - before)


def main() -> None:
    """Measure the logs, whatever is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", nargs="*", default=TASKS)
    parser.add_argument("--predictors", nargs="+", type=int, default=[])
    parser.add_argument("--peak", nargs=3, metavar=("NAME", "MODEL", "L2"))
    options = parser.parse_args()
    if options.peak:
        print_peak(*options.peak)
        return
    for name in options.data:
        for many in options.predictors:
            key = {"task": name, "model": "sparse-ease", "tuning": "predictors"}
            row = partial(predictors_row, name, many, VALIDATED_L2)
            RECORD.once(row, **key, predictors=many, l2=VALIDATED_L2)
        if options.predictors:
            continue
        chosen = RECORD.once(
            partial(sparse_row, name, "chosen"), task=name, model="sparse-ease", tuning="chosen"
        )
        RECORD.once(
            partial(peak_row, name, "sparse-ease", chosen["l2"]),
            task=name,
            model="sparse-ease",
            tuning="peak",
        )
        RECORD.once(
            partial(sparse_row, name, "default"), task=name, model="sparse-ease", tuning="default"
        )
        dense = RECORD.once(partial(ease_row, name), task=name, model="ease", tuning="chosen")
        if name != "gowalla":  # 33 GB
            RECORD.once(
                partial(peak_row, name, "ease", dense["l2"]), task=name, model="ease", tuning="peak"
            )


if __name__ == "__main__":
    main()
