"""Cutting trained dense tables to a number of parameters, to compare with training sparse ones.

The tables of MF with weight decay are coded by k-SVD with as many anchors as the budget allows at
one to four non-negative entries per row; then, in a second row, the anchors and the non-zeros are
trained for five epochs. ``python -m experiments.movielens_ratings.cut_trained`` adds what is
missing to results.json.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from experiments.movielens_ratings.models import WIDTH, Factors
from experiments.movielens_ratings.ratings import Ratings, Split, ml1m
from experiments.movielens_ratings.run import METHODS, RESULTS, SPLITS, fit
from experiments.movielens_ratings.training import Recipe, mse, train
from experiments.record import Record, Row
from fewfold.embeddings.coding.sparse_coding import learn_dictionary
from fewfold.embeddings.table.embedding import AnchorEmbedding

PREFIX = "MF, weight decay, coded by k-SVD"
TRAINED = ", then trained"


@dataclass(frozen=True)
class Cut:
    """Number of parameters, and non-zeros of each row."""

    budget: int
    width: int


CUTS = (Cut(59_400, 4), Cut(29_200, 2), Cut(10_800, 1))


@torch.no_grad()
def coded(model: Factors, cut: Cut, seed: int) -> Factors:
    """Replace the tables of a model by sparse codes with this number of parameters."""
    generator = torch.Generator().manual_seed(seed)
    tables = [model.users.weight.detach(), model.items.weight.detach()]
    rows = sum(len(table) for table in tables)
    anchors = (cut.budget - rows * cut.width) // (len(tables) * WIDTH)
    made = []
    for table in tables:
        code = learn_dictionary(table, anchors, cut.width, generator=generator)
        sparse = AnchorEmbedding(len(table), WIDTH, anchors=anchors)
        sparse.anchors.copy_(code.anchors)
        sparse.transform.zero_().scatter_(1, code.slots, code.weights)
        made.append(sparse)
    model.users, model.items = made
    return model


def measure(cut: Cut, split: Split, seed: int, recipe: Recipe) -> Row:
    """Train dense tables, cut them, train what is left if the recipe says so; return metrics."""
    start = time.process_time()
    model = coded(fit(METHODS["MF, weight decay"], split, seed).model, cut, seed)
    if recipe.after:
        _, last = train(model, split, recipe, seed=seed)
        best = min(last, key=lambda epoch: epoch.valid)
        valid, test, size = best.valid, best.test, best.size
    else:
        valid, test, size = mse(model, split.valid), mse(model, split.test), model.size()
    return {
        "mse": round(test, 4),
        "validation mse": round(valid, 4),
        "parameters": size,
        "anchors": [len(table.anchors) for table in model.tables],
        "nonzeros": [table.nonzeros() for table in model.tables],
        "processor seconds": round(time.process_time() - start, 1),
    }


def run(
    ratings: Ratings, cuts: tuple[Cut, ...], splits: list[str], seeds: int, results: Path
) -> None:
    """Add the missing rows."""
    record = Record(results)
    for seed in range(seeds):
        for split in splits:
            for cut in cuts:
                for after, suffix in ((0, ""), (5, TRAINED)):
                    recipe = Recipe(epochs=0, after=after, anchor_decay=0.0)
                    make = partial(measure, cut, SPLITS[split](ratings), seed, recipe)
                    name = f"{PREFIX} to {cut.budget:,}{suffix}"
                    record.once(make, method=name, split=split, seed=seed, recipe=asdict(recipe))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(ml1m(), CUTS, options.splits, options.seeds, options.results)


if __name__ == "__main__":
    main()
