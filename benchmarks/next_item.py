"""A step of the next-item transformer, however many items there are.

``python -m benchmarks.next_item ITEMS``: peak memory of a few steps, in bytes.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.harness import Case, Pair, Peak
from fewfold._resources import peak_memory
from fewfold.recommender import FullSoftmax, Jagged, Objective, TrainOptions, Transformer
from fewfold.recommender.models.next_item.next_item_run import (
    HeldOut,
    NextItemRun,
    default_objective,
)

SEQUENCES, LENGTH, POSITIONS = 2000, 11, 1024
Step = Callable[[], object]


def cases() -> list[Case]:
    """Every row, in the order of the claims."""
    return [
        Case(
            what=f"step of {POSITIONS} positions",
            size="1000000 items",
            peer="30000 items",
            bar=1.5,
            build=partial(_two_sizes, 1_000_000, 30_000),
            threads=2,
        ),
        Case(
            what=f"step of {POSITIONS} positions",
            size="200000 items",
            peer="full softmax",
            bar=1 / 20,
            build=partial(_sampled_and_full, 200_000),
            threads=2,
        ),
        Case(
            what="steps, peak memory",
            size="1000000 items",
            peer="3 GiB",
            bar=1.0,
            build=lambda: Peak(_peak(1_000_000), 3 * 2**30),
            threads=2,
        ),
    ]


def _two_sizes(large: int, small: int) -> Pair:
    ours, peer = step(large, default_objective(large)), step(small, default_objective(small))
    return Pair(ours, peer, before_ours=_often(ours), before_peer=_often(peer))


def _sampled_and_full(items: int) -> Pair:
    ours = step(items, default_objective(items))
    return Pair(ours, step(items, FullSoftmax()), before_ours=_often(ours))


def _often(one: Step) -> Step:
    return lambda: [one() for _ in range(8)]


def step(items: int, objective: Objective) -> Step:
    """One step on the next batch each time, of sequences of random items."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(items, (SEQUENCES * LENGTH,), generator=generator)
    rows = Jagged(values, torch.arange(SEQUENCES + 1) * LENGTH)
    options = TrainOptions(epochs=1000, batch=POSITIONS, lr=1e-3)
    network = Transformer().network(items).train()
    run = NextItemRun(network, HeldOut.draw(rows, 0), objective, options, False)
    run.begin()
    batches = list(run.batches())

    def advance() -> None:
        batches.append(batches.pop(0))
        run.advance(batches[0])

    return advance


def _peak(items: int) -> float:
    command = [sys.executable, "-m", "benchmarks.next_item", str(items)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    count = int(sys.argv[1])
    _often(step(count, default_objective(count)))()
    print(peak_memory())
