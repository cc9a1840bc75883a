"""What the anchors of films have in common: the genres of each anchor's films, against chance.

``python -m experiments.movielens_ratings.genres`` adds what is missing to results.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from experiments import datasets
from experiments.movielens_ratings import published_run
from experiments.movielens_ratings.ratings import Ratings, Split, ml1m, published
from experiments.movielens_ratings.run import METHODS, RESULTS, fit
from experiments.record import Record, Row
from fewfold.embeddings.anchor_inspection import inspect_anchors
from fewfold.embeddings.table.embedding import AnchorEmbedding

PREFIX = "genres: "


def film_genres() -> list[list[str]]:
    """Return the genres of the rated films, in the order of the items."""
    import pandas

    rated = pandas.read_parquet(datasets.DATA / "ml-1m" / "ratings.parquet")["movie_id"]
    table = pandas.read_parquet(datasets.DATA / "ml-1m" / "movies.parquet").set_index("movie_id")
    table = table.loc[sorted(rated.unique())]
    return [genres.split("|") for genres in table["genres"]]


def as_published(name: str, split: Split, seed: int) -> AnchorEmbedding:
    """Return the films of a model of `published_run` after its last epoch."""
    method = published_run.METHODS[name]
    model, generator = published_run.trainer(method, split, seed)
    for _ in range(method.epochs):
        order = torch.randperm(len(split.train), generator=generator)
        model.epoch(split.train, order, l1=method.l1)
    return model.tables[1].embedding()


def ours(name: str, split: Split, seed: int) -> AnchorEmbedding:
    """Return the films of a model of `run`."""
    return fit(METHODS[name], split, seed).model.tables[1]


Films = Callable[[str, Split, int], AnchorEmbedding]
MODELS: dict[str, tuple[Films, str]] = {
    "as published: ANT, 15 and 15 anchors, l1 0.0001": (
        as_published, "ANT, 15 and 15 anchors, l1 0.0001"
    ),
    "as published: ANT, 15 and 15 anchors, l1 1e-05": (
        as_published, "ANT, 15 and 15 anchors, l1 1e-05"
    ),
    "ANT, 30 and 30 anchors, cut to 29,200": (ours, "ANT, 30 and 30 anchors, cut to 29,200"),
}  # fmt: skip


def describe(table: AnchorEmbedding, genres: list[list[str]]) -> Row:
    """Return the purity of the ten first films of each anchor, of all its films, and by chance.

    No title is recorded: the log may not be published, nor parts of it.
    """
    first = inspect_anchors(table, labels=genres, top=10, sample=1)
    whole = inspect_anchors(table, labels=genres, top=len(genres), sample=1)
    groups = []
    for group in first.groups:
        genre, share = next(iter(group.labels.items()))
        groups.append([genre, round(share, 2), group.objects])
    return {
        "purity": round(first.purity or 0.0, 4),
        "by chance": round(first.chance or 0.0, 4),
        "purity of all films": round(whole.purity or 0.0, 4),
        "all films by chance": round(whole.chance or 0.0, 4),
        "anchors in use": len(groups),
        "groups": groups,
    }


def run(ratings: Ratings, names: list[str], seeds: int, results: Path) -> None:
    """Add the missing rows."""
    record, split, genres = Record(results), published(ratings), film_genres()
    for seed in range(seeds):
        for name in names:
            train, method = MODELS[name]

            def make(train: Films = train, method: str = method, seed: int = seed) -> Row:
                return describe(train(method, split, seed), genres)

            record.once(make, method=PREFIX + name, split="published", seed=seed)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="separated by semicolons; by default all of them")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.models.split(";") if options.models else list(MODELS)
    run(ml1m(), names, options.seeds, options.results)


if __name__ == "__main__":
    main()
