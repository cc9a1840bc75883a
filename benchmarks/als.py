"""An iteration of alternating least squares, both sides, next to the one of implicit.

Ours solves rows of few pairs exactly and improves those of many in blocks of columns; implicit by
default takes three steps of conjugate gradients for each. The log is MovieLens-10M (see
`experiments.datasets`) or, where it is not there, one of its size.
"""

from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import torch

import fewfold as ff
from benchmarks.harness import Case, Pair
from experiments import datasets
from fewfold._timing import Call
from fewfold.recommender.models.als import users_by_item

FACTORS = (64, 128, 256)
ALPHA, PENALTY = 10.0, 10.0  # a pair weighs ALPHA, any other one


def cases() -> list[Case]:
    """Every row, in the order of the claims."""
    return list(_iterations()) if find_spec("implicit") else []


def _iterations() -> Iterator[Case]:
    for steps in (True, False):
        # By Cholesky factors an iteration of implicit with 256 takes more than a minute.
        for factors in FACTORS if steps else FACTORS[:2]:
            yield Case(
                what=f"iteration, {factors} factors",
                size=f"{_log().pairs} pairs",
                peer=f"implicit, {'3 CG steps' if steps else 'use_cg=False'}",
                bar=1.0,
                build=partial(_pair, factors, steps),
                threads=2,
            )


def _pair(factors: int, steps: bool) -> Pair:
    return Pair(_ours(factors), _implicit(factors, steps))


def _ours(factors: int) -> Call:
    """The next iteration at every call."""
    model = ff.recommender.ALS(factors, PENALTY / ALPHA, 1 / (ALPHA - 1), frequency_exponent=0.0)
    log = _log()
    turned, _ = users_by_item(log)
    items = torch.randn(log.items, factors, generator=torch.Generator().manual_seed(0))
    items *= 0.1 / factors**0.5
    users = model.solve_side(log.jagged, None, items)
    state = [users, model.solve_side(turned, None, users)]

    def iteration() -> None:
        users, items = state
        state[0] = model.solve_side(log.jagged, None, items, users)
        state[1] = model.solve_side(turned, None, state[0], items)

    return iteration


def _implicit(factors: int, steps: bool) -> Call:
    """The same with implicit's solver, as its `fit` calls it."""
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix
    from threadpoolctl import ThreadpoolController

    # It has threads of its own, and asks for this.
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    solver = AlternatingLeastSquares(factors, use_cg=steps, num_threads=2).solver
    rows = csr_matrix(_log().to_csr()) * np.float32(ALPHA)
    columns, draws = rows.T.tocsr(), np.random.default_rng(0)
    users, items = (draws.random((n, factors), dtype=np.float32) * 0.01 for n in rows.shape)

    def iteration() -> None:
        solver(rows, users, items, PENALTY, num_threads=2)
        solver(columns, items, users, PENALTY, num_threads=2)

    return iteration


@cache
def _log() -> ff.recommender.Interactions:
    if datasets.has("ml-10m-fastvae"):
        return datasets.ml10m(0).train
    draws = np.random.default_rng(0)
    lengths = draws.lognormal(3.0, 0.9, 47_000).astype(np.int64) + 5
    users = np.repeat(np.arange(len(lengths)), lengths)
    items = (6_000 * draws.random(len(users)) ** 3).astype(np.int64)
    return ff.recommender.Interactions.from_pairs(users, items, shape=(len(lengths), 6_000))
