"""The signalling game with mixed messages.

``python -m experiments.mixed_communication.run`` adds the rows that are missing to results.json:
``--method Gaussian-sparsemax --seed 322 --epochs 100`` some of them, ``--lr 0.005`` those of a
different rate, ``--full`` those of the published length. It may be stopped and started again: a run
on its way is kept in build/mixed_communication.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments import datasets
from experiments.arguments import add_epochs
from experiments.mixed_communication.methods import METHODS
from experiments.record import Record, origin
from experiments.signalling_game import data
from experiments.signalling_game.run import FULL, Budget, file_name, train

HERE = Path(__file__).parent
RECORD = Record(HERE / "results.json")
RUNS = HERE.parents[1] / "build" / "mixed_communication"


def run(
    name: str, chosen: list[str], seeds: list[int], budget: Budget, rate: float | None = None
) -> None:
    """Add the missing rows; without a rate, the learning rate is that of the method."""
    for seed in seeds:
        for method in chosen:
            own = METHODS[method] if rate is None else replace(METHODS[method], lr=rate)
            key: dict[str, Any] = {"data": name, "method": method, "seed": seed}
            key |= {"epochs": budget.epochs, "lr": own.lr}
            if RECORD.rows(**key):
                continue
            games = data.load(name, "train"), data.load(name, "test")
            row = train(method, own, games, budget, seed, RUNS / file_name(key))
            row["symbols"] = row.pop("calls at the end")
            RECORD.add([{**key, **row, **origin()}])
            print(key, {what: row[what] for what in ("success", "best", "symbols")}, flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    found = data.FEATURES if datasets.has(data.FEATURES) else data.NAMES[0]
    parser.add_argument("--data", choices=data.NAMES, default=found)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 322")
    parser.add_argument("--lr", type=float, help="by default 0.001, as published")
    add_epochs(parser, Budget.epochs, FULL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    budget = Budget(epochs=options.epochs)
    run(options.data, options.method or [*METHODS], options.seed or [322], budget, options.lr)


if __name__ == "__main__":
    main()
