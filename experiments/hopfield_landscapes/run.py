"""Number of patterns in the fixed points of MNIST queries, for eight maps and two temperatures.

``python -m experiments.hopfield_landscapes.run`` adds the rows that are missing to results.json:
``--map sparsemax --beta 1`` some of them, ``--full`` those of all 10,000 test images. The pictures
and the table are drawn by ``python -m experiments.hopfield_landscapes.table``.
"""

import argparse
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import fewfold as ff
from experiments.images import images
from experiments.record import Record, Row
from fewfold import _progress

RECORD = Record(Path(__file__).with_name("results.json"))
MAPS: dict[str, ff.Omega] = {
    "softmax": ff.Shannon(),
    "1.5-entmax": ff.Tsallis(1.5),
    "sparsemax": ff.Gini(),
    "normmax 2": ff.Norm(2.0),
    "normmax 5": ff.Norm(5.0),
    "2-subsets": ff.Subset(2),
    "4-subsets": ff.Subset(4),
    "8-subsets": ff.Subset(8),
}
BETAS = (0.1, 1.0)
QUERIES, FULL = 1000, 10_000
STEPS = 5
SOFTMAX_THRESHOLD = 0.01  # weight above which a pattern counts under softmax
LARGEST = 10  # sizes beyond are counted together
FEW = 0.002  # share of positive weights up to which a product with them alone is faster
_AT_ONCE = 250  # queries, each of which is compared with all memories


def digits(part: str) -> Tensor:
    """Return images (n, 784) scaled to [-1, 1]."""
    return images("mnist", part)[0].flatten(1) / 127.5 - 1


def sizes(
    queries: Tensor, memory: Tensor, omega: ff.Omega, beta: float, steps: int = STEPS
) -> Tensor:
    """Return the support size (queries,) of each query after some steps.

    The same as of `ff.hopfield_retrieve`, whose last energy is not needed here. Queries that a step
    does not move are left out of the next ones.
    """
    energy = ff.FenchelYoung(omega, beta)
    least = SOFTMAX_THRESHOLD if isinstance(omega, ff.Shannon) else 0.0
    found = torch.empty(len(queries), dtype=torch.int64)
    moving, state = torch.arange(len(queries)), queries
    for _ in range(steps):
        probs = energy.probs(state, memory)
        found[moving] = (probs > least).sum(1)
        after = mixed(probs, memory)
        moves = (after != state).any(1)
        moving, state = moving[moves], after[moves]
        if not len(moving):
            break
    return found


def mixed(probs: Tensor, memory: Tensor) -> Tensor:
    """Return the product of both, from the positive weights alone if they are few."""
    if probs.count_nonzero() > FEW * probs.numel():
        return probs @ memory
    query, pattern = probs.nonzero(as_tuple=True)
    parts = probs[query, pattern, None] * memory[pattern]
    return memory.new_zeros(len(probs), memory.shape[1]).index_add_(0, query, parts)


def count(name: str, beta: float, queries: int) -> Row:
    """Return a row: the percentage of queries with support size 1, 2, ...."""
    memory, batches, found = digits("train"), digits("test")[:queries].split(_AT_ONCE), []
    for number, some in enumerate(batches):
        _progress.line(f"{name}, beta {beta:g}: part {number + 1} of {len(batches)}")
        found.append(sizes(some, memory, MAPS[name], beta))
    _progress.line("")
    every = torch.cat(found)
    shares = torch.bincount(every.clamp(max=LARGEST + 1), minlength=LARGEST + 2)
    return {
        "per cent": [round(x, 2) for x in (100 * shares / queries).tolist()],
        "median": int(every.median()),
        "largest": int(every.max()),
    }


def run(names: list[str], betas: list[float], queries: int) -> None:
    """Add the missing rows."""
    for beta, name in product(betas, names):
        make = partial(count, name, beta, queries)
        RECORD.once(make, map=name, beta=beta, queries=queries)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", choices=MAPS, action="append", help="by default all")
    parser.add_argument("--beta", type=float, action="append", help="by default 0.1 and 1")
    parser.add_argument("--full", action="store_true", help="all test images, not 1,000")
    options = parser.parse_args()
    queries = FULL if options.full else QUERIES
    run(options.map or [*MAPS], options.beta or [*BETAS], queries)


if __name__ == "__main__":
    main()
