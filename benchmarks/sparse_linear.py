"""Sparse EASE next to SANSA: time of a fit, size and NDCG@10 at equal density.

SANSA (`pip install sansa`, which needs scikit-sparse) approximates the inverse of EASE by two
sparse factors. Its density, that of each factor, is that of our one matrix, so that its model is
twice as large. Both have the penalty that was best for sparse EASE on a validation part
(`experiments/best_by_default`), and SANSA the settings of its documentation.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from scipy.sparse import csr_matrix

from benchmarks.harness import Case, Peak
from experiments.best_by_default.tasks import load
from fewfold.recommender import NDCG, SparseEASE, Split, evaluate

PENALTY, PREDICTORS = 20.0, 200
PEER = "sansa, exact factor"
METRIC = NDCG(10)
_USERS_AT_ONCE = 1000


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return list(_rows()) if find_spec("sansa") else []


def _rows() -> Iterator[Case]:
    size = f"bundled log, {PREDICTORS} weights an item"
    for what, build in (("fit", _seconds), ("size", _sizes), ("1 - NDCG@10", _misses)):
        yield Case(f"sparse EASE, {what}", size, PEER, 1.0, build, threads=2)


def _seconds() -> Peak:
    return Peak(_ours()[1], _sansa()[1], "seconds")


def _sizes() -> Peak:
    ours = sum(tensor.nbytes for tensor in _ours()[0].state().values())
    parts = [(part.data, part.indices, part.indptr) for part in _sansa()[0]]
    return Peak(ours, sum(array.nbytes for part in parts for array in part))


def _misses() -> Peak:
    split = _split()
    users = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    known, wanted = split.fold_in.rows(users), split.test.rows(users)
    ours = _ours()[0].rank(known, METRIC.k, exclude=known).ids
    rows, (first, second) = csr_matrix(split.fold_in.to_csr()), _sansa()[0]
    theirs = []
    for part in users.split(_USERS_AT_ONCE):
        scores = torch.from_numpy((rows[part.numpy()] @ first @ second).toarray())
        mine = split.fold_in.rows(part)
        scores[mine.row, mine.values] = -torch.inf
        theirs.append(scores.topk(METRIC.k).indices)
    found = [
        evaluate(top, wanted, [METRIC], resamples=0)[METRIC].mean
        for top in (ours, torch.cat(theirs))
    ]
    return Peak(1 - found[0], 1 - found[1], "")


@cache
def _split() -> Split:
    return load("bundled")


# A fit of SANSA takes too long to repeat. Both are timed once, in seconds of the processors.


@cache
def _ours() -> tuple[SparseEASE, float]:
    train = _split().train
    began = time.process_time()
    fitted = SparseEASE(PENALTY, PREDICTORS).fit(train)
    return fitted, time.process_time() - began


@cache
def _sansa() -> tuple[Any, float]:
    import sansa  # type: ignore[import-not-found]

    logging.getLogger("sansa").setLevel(logging.ERROR)
    train = csr_matrix(_split().train.to_csr())
    config = sansa.SANSAConfig(
        l2=PENALTY,
        weight_matrix_density=PREDICTORS / train.shape[1],
        gramian_factorizer_config=sansa.CHOLMODGramianFactorizerConfig(),
        lower_triangle_inverter_config=sansa.UMRUnitLowerTriangleInverterConfig(
            scans=1, finetune_steps=5
        ),
    )
    sansa.SANSA(replace(config, l2=2 * PENALTY)).fit(train[:200])  # compiles what it calls
    began = time.process_time()
    fitted = sansa.SANSA(config).fit(train)
    return fitted.weights, time.process_time() - began
