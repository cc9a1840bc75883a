"""Rating prediction with the training of the authors' code, for its fifty epochs.

``python -m experiments.movielens_ratings.published_run`` adds what is missing to results.json.
"""

import argparse
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.movielens_ratings.dense_yogi import Trainer, Yogi
from experiments.movielens_ratings.ratings import Ratings, Split, ml1m
from experiments.movielens_ratings.row_tables import Make, anchored_rows, dense_rows, mixed_rows
from experiments.movielens_ratings.run import RESULTS, SPLITS
from experiments.record import Record, Row

EPOCHS = 50


@dataclass(frozen=True)
class AsPublished:
    """User and item tables, and the settings of their training."""

    users: Make
    items: Make
    l1: float = 0.0
    epochs: int = EPOCHS
    bias: bool = True
    yogi: Yogi = field(default_factory=Yogi)

    def recipe(self) -> Row:
        """Return the settings for a row."""
        return {"epochs": self.epochs, "l1": self.l1, "bias": self.bias, **asdict(self.yogi)}


def _anchored(users: int, items: int, l1: float, **yogi: Any) -> AsPublished:
    return AsPublished(anchored_rows(users), anchored_rows(items), l1, yogi=Yogi(**yogi))


SIZES = ((120, 8), (15, 15), (5, 10))
METHODS = {
    "MF": AsPublished(dense_rows(), dense_rows()),
    "MixDim, 16 blocks, temperature 0.6": AsPublished(mixed_rows(16, 0.6), mixed_rows(16, 0.6)),
    **{
        f"MixDim, width {width}, {blocks} blocks, temperature {temperature}": AsPublished(
            mixed_rows(blocks, temperature, width), mixed_rows(blocks, temperature, width)
        )
        for width, blocks, temperature in (
            (16, 8, 0.4), (16, 16, 0.4), (16, 8, 0.6), (32, 8, 0.6), (32, 16, 0.6),
        )
    },
    **{
        f"Sparse CBOW, l1 {l1:g}": AsPublished(
            dense_rows(penalised=True), dense_rows(penalised=True), l1
        )
        for l1 in (1e-4, 1e-5)
    },
    **{
        f"ANT, {users} and {items} anchors, l1 {l1:g}": _anchored(users, items, l1)
        for l1 in (1e-4, 7e-5, 5e-5, 2e-5, 1e-5)
        for users, items in SIZES
    },
    "ANT, 15 and 15 anchors, l1 0.0001, threshold of SGD": _anchored(
        15, 15, 1e-4, plain_threshold=True
    ),
    "ANT, 15 and 15 anchors, l1 0.0001, halved at 200,000": _anchored(
        15, 15, 1e-4, halve_after=200_000
    ),
    "ANT, 15 and 15 anchors, l1 0.0001, never halved": _anchored(
        15, 15, 1e-4, halve_after=10_000_000
    ),
}  # fmt: skip
PREFIX = "as published: "


def trainer(method: AsPublished, split: Split, seed: int) -> tuple[Trainer, torch.Generator]:
    """Return an untrained model, and the generator of the order of the ratings."""
    generator = torch.Generator().manual_seed(seed)
    users = torch.bincount(split.train.users, minlength=split.users)
    items = torch.bincount(split.train.items, minlength=split.items)
    steps = method.epochs * -(-len(split.train) // method.yogi.batch) + 1
    tables = method.users(users, generator), method.items(items, generator)
    return Trainer(*tables, bias=method.bias, steps=steps, settings=method.yogi), generator


def measure(method: AsPublished, split: Split, seed: int) -> Row:
    """Train a model; return its metrics at the epoch that is best on the validation part."""
    start = time.process_time()
    model, generator = trainer(method, split, seed)
    epochs = []
    for _ in range(method.epochs):
        order = torch.randperm(len(split.train), generator=generator)
        error = model.epoch(split.train, order, l1=method.l1)
        valid = model.mse(split.valid)
        test = valid if split.test is split.valid else model.mse(split.test)
        epochs.append((valid, test, model.size(), error))
    best = min(epochs, key=lambda epoch: epoch[0])
    return {
        "mse": round(best[1], 4),
        "mse of the last epoch": round(epochs[-1][1], 4),
        "validation mse": round(best[0], 4),
        "epoch": epochs.index(best) + 1,
        "parameters": best[2],
        "parameters of the last epoch": epochs[-1][2],
        "anchors": [table.active for table in model.tables],
        "nonzeros": [table.nonzeros() for table in model.tables],
        "processor seconds": round(time.process_time() - start, 1),
        "curve": [round(epoch[0], 4) for epoch in epochs],
        "training curve": [round(epoch[3], 4) for epoch in epochs],
    }


def run(
    ratings: Ratings, methods: dict[str, AsPublished], splits: list[str], seeds: int, results: Path
) -> None:
    """Add the missing rows."""
    record = Record(results)
    for seed in range(seeds):
        for split in splits:
            for name, method in methods.items():
                make = partial(measure, method, SPLITS[split](ratings), seed)
                key = {"method": PREFIX + name, "split": split, "seed": seed}
                record.once(make, **key, recipe=method.recipe())


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", help="separated by semicolons; by default all of them")
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.methods.split(";") if options.methods else list(METHODS)
    chosen = {name: METHODS[name] for name in names}
    run(ml1m(), chosen, options.splits, options.seeds, options.results)


if __name__ == "__main__":
    main()
