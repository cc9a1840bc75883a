"""Rating prediction on MovieLens-1M with compact tables.

``python -m experiments.movielens_ratings.run`` adds what is missing to results.json: it may be
stopped and started again.
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from experiments.movielens_ratings.models import (
    Factors,
    Make,
    anchored,
    dense,
    mixed_dimension,
    plainly_anchored,
    sparse_rows,
)
from experiments.movielens_ratings.ratings import Ratings, Split, honest, ml1m, published
from experiments.movielens_ratings.training import Epoch, Growing, Recipe, grow, train
from experiments.record import Record, Row
from fewfold.embeddings.sparsify.growth import AnchorGrowth

RESULTS = Path(__file__).parent / "results.json"
ANT = Recipe(epochs=18)
CUT = replace(ANT, l1=2e-5, row_decay=1e-5)
NBANT = Recipe(epochs=24, l1=1e-4)
FREE = Recipe(epochs=20, after=0, lr=0.01)  # no penalty: the epoch that is best is chosen
COSTS = Growing(l1=1e-6, per_anchor=1e-3)  # what a non-zero and an anchor cost
BUDGET = 29_200  # numbers that slimming keeps: those of the published 15 and 15 anchors
SPLITS = {"published": published, "third": honest}


@dataclass(frozen=True)
class Method:
    """Builder of the user and item tables, and their training recipe."""

    table: Make
    recipe: Recipe
    offset: bool = True
    centred: bool = True
    """whether the bias begins as the mean of the ratings, not as zero"""
    growing: Growing | None = None
    """what chooses the number of anchors first; `table` is then not used"""


METHODS = {
    "ANT, 30 and 30 anchors, cut to 59,400": Method(anchored(30), replace(CUT, keep=59_400)),
    "ANT, 30 and 30 anchors, cut to 29,200": Method(anchored(30), replace(CUT, keep=BUDGET)),
    "ANT, 12 and 12 anchors, cut to 10,800": Method(anchored(12), replace(CUT, keep=10_800)),
    "ANT, 30 and 30 anchors, l1 4e-5": Method(anchored(30), replace(ANT, l1=4e-5, row_decay=1e-5)),
    "ANT, 30 and 30 anchors, l1 7.5e-5": Method(anchored(30), replace(ANT, l1=7.5e-5)),
    "ANT, 4 and 4 anchors, l1 2.1e-4": Method(anchored(4), replace(ANT, l1=2.1e-4)),
    "NBANT": Method(anchored(COSTS.most), NBANT, growing=COSTS),
    "MF": Method(dense, FREE, offset=False),
    "MF, weight decay": Method(dense, replace(FREE, row_decay=2e-5), offset=False),
    "MixDim, 16 blocks, temperature 0.6": Method(
        mixed_dimension(16, 0.6), replace(FREE, row_decay=1e-5), offset=False
    ),
    "Sparse CBOW, l1 5e-5": Method(sparse_rows, replace(ANT, l1=5e-5)),
    "slimming, all": Method(sparse_rows, replace(ANT, l1=2e-5, subgradient=True, keep=BUDGET)),
    "slimming, 30 and 30 anchors": Method(
        anchored(30), replace(ANT, l1=2e-5, subgradient=True, keep=BUDGET)
    ),
    "ANT, plain, 15 and 15 anchors, l1 1e-4": Method(
        plainly_anchored(15), Recipe(20, 0, 4096, 0.01, l1=1e-4, warmup=0, anchor_decay=0.0,
        yogi=True), offset=False, centred=False,
    ),
}  # fmt: skip
GRID = {
    f"grid, {anchors} and {anchors} anchors": Method(anchored(anchors), NBANT)
    for anchors in (2, 4, 7, 10, 15, 20, 30)
}


@dataclass(frozen=True)
class Fitted:
    """A trained model, its epochs, and the growth history of its anchors, if any."""

    model: Factors
    epochs: list[Epoch]
    growth: AnchorGrowth | None = None


def fit(method: Method, split: Split, seed: int) -> Fitted:
    """Select the number of anchors if required, and train."""
    if method.growing is not None:
        widest = replace(method, table=anchored(method.growing.most), growing=None)
        growth = grow(
            model_of(widest, split, seed), split, method.recipe, method.growing, seed=seed
        )
        assert growth.best is not None
        chosen = replace(widest, table=anchored(growth.best.evaluated[0]))
        return replace(fit(chosen, split, seed), growth=growth)
    model = model_of(method, split, seed)
    _, last = train(model, split, method.recipe, seed=seed)
    return Fitted(model, last)


def model_of(method: Method, split: Split, seed: int) -> Factors:
    """Return an untrained model."""
    train_set = split.train
    counts = (
        torch.bincount(train_set.users, minlength=split.users),
        torch.bincount(train_set.items, minlength=split.items),
    )
    mean = float(train_set.stars.mean()) if method.centred else 0.0
    return Factors(method.table, counts, mean, offset=method.offset, seed=seed)


def measure(method: Method, split: Split, seed: int) -> Row:
    """Train a model; return its metrics at the epoch that is best on the validation part."""
    start = time.process_time()
    fitted = fit(method, split, seed)
    model, last = fitted.model, fitted.epochs
    best = min(last, key=lambda epoch: epoch.valid)
    row: Row = {
        "mse": round(best.test, 4),
        "mse of the last epoch": round(last[-1].test, 4),
        "validation mse": round(best.valid, 4),
        "parameters": best.size,
        "processor seconds": round(time.process_time() - start, 1),
    }
    if model.tables:
        row["anchors"] = [table.active for table in model.tables]
        row["nonzeros"] = [table.nonzeros() for table in model.tables]
    if fitted.growth is not None:
        row["growth"] = [[e.evaluated[0], round(e.objective, 4)] for e in fitted.growth.history]
    return row


def run(
    ratings: Ratings, methods: dict[str, Method], splits: list[str], seeds: int, results: Path
) -> None:
    """Add the missing rows."""
    record = Record(results)
    for seed in range(seeds):
        for name, method in methods.items():
            for split in splits:
                make = partial(measure, method, SPLITS[split](ratings), seed)
                recipe = asdict(method.recipe)
                record.once(make, method=name, split=split, seed=seed, recipe=recipe)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", help="separated by semicolons; by default all of them")
    parser.add_argument("--grid", action="store_true", help="numbers of anchors instead")
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = GRID if options.grid else METHODS
    names = options.methods.split(";") if options.methods else list(every)
    chosen = {name: every[name] for name in names}
    run(ml1m(), chosen, options.splits, options.seeds, options.results)


if __name__ == "__main__":
    main()
