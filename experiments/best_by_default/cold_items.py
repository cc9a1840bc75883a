"""Items without interactions, ranked by their attributes: Recall@50 against popularity by category.

A tenth of the items is hidden from training with all its interactions, and a tenth of the other
pairs is held out. A test pair is an interaction with a hidden item of a user who has training
interactions; the item is ranked

- among all items, without those that the user had in training, and
- among the hidden items alone.

Settings are chosen by `Warm` on a tenth of the training items, which it hides once more; the test
pairs choose nothing. Recall is the share of the test pairs whose item is among the best 50.

    python -m experiments.best_by_default.cold_items [--data steam-sample] [--seed 0]

adds what is missing to cold_items.json.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from experiments.datasets import DATA
from experiments.record import Record, Row
from fewfold.recommender import VAE, Interactions, Jagged, Training
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.item_features import item_features
from fewfold.recommender.models.model import FitOptions, Fitted
from fewfold.recommender.models.warm import Warm

__all__ = ["ColdTask", "category_popularity", "main", "recalls"]

SETS = ("steam-sample", "amazon-games-2018")
_SHARE = 0.1  # of the items hidden, and of the other pairs held out
_USERS = 5000  # tested
_DEPTH = 50


@dataclass(frozen=True, eq=False)
class ColdTask:
    """A log with hidden items.

    Attributes:
        train: without all pairs of the hidden items and some others.
        cold: (items,) mask of the hidden items.
        users: (n,) tested users, who have training pairs and hidden items.
        hidden: the hidden items of each of them.
        warm: their held-out pairs of other items.
    """

    train: Interactions
    cold: Tensor
    users: Tensor
    hidden: Jagged
    warm: Jagged

    @classmethod
    def of(cls, log: Interactions, seed: int) -> "ColdTask":
        """Hide a tenth of the items, and a tenth of the other pairs."""
        generator = torch.Generator().manual_seed(1000 + seed)
        cold = torch.zeros(log.items, dtype=torch.bool)
        cold[torch.randperm(log.items, generator=generator)[: round(_SHARE * log.items)]] = True
        hidden = cold[log.ids]
        out = ~hidden & (torch.rand(log.pairs, generator=generator) < _SHARE)
        train, tested = log.keep(~hidden & ~out), log.keep(hidden)
        able = ((tested.jagged.lengths > 0) & (train.jagged.lengths > 0)).nonzero().squeeze(1)
        users = able[torch.randperm(len(able), generator=generator)[:_USERS]].sort().values
        seen, warm = train.counts() > 0, log.keep(out).rows(users)
        return cls(train, cold, users, tested.rows(users), warm.select(seen[warm.values]))


def recall(top: Tensor, wanted: Jagged) -> float:
    """Share of the wanted items that are in their row's ranking."""
    return float((top[wanted.row] == wanted.values.unsqueeze(1)).any(1).double().mean())


def recalls(task: ColdTask, fitted: Fitted) -> Row:
    """Recall@50 of a model, of hidden items and of others."""
    history = task.train.rows(task.users)
    every = fitted.rank(history, _DEPTH, exclude=history).ids
    among = fitted.rank(history, _DEPTH, allowed=task.cold).ids
    return {
        "cold among all": recall(every, task.hidden),
        "cold among cold": recall(among, task.hidden),
        "warm among all": recall(every, task.warm),
    }


def fixed_recalls(task: ColdTask, scores: Tensor) -> Row:
    """Recall@50 of one ranking for all users, of (items,) scores."""
    history = task.train.rows(task.users)
    every = scores.expand(len(task.users), -1).clone()
    every[history.row, history.values] = -torch.inf
    among = scores.masked_fill(~task.cold, -torch.inf).topk(_DEPTH).indices
    top = every.topk(_DEPTH).indices
    return {
        "cold among all": recall(top, task.hidden),
        "cold among cold": recall(among.expand(len(task.users), -1), task.hidden),
        "warm among all": recall(top, task.warm),
    }


def category_popularity(task: ColdTask, categories: list[list[str]]) -> Tensor:
    """(items,) mean interactions in training of the items of each category, averaged over them."""
    counts = task.train.counts().double()
    total: dict[str, list[float]] = {}
    for item, mine in enumerate(categories):
        if not task.cold[item]:
            for category in mine:
                total.setdefault(category, []).append(float(counts[item]))
    mean = {category: float(np.mean(values)) for category, values in total.items()}
    overall = float(counts[~task.cold].mean())
    means = [[mean.get(category, overall) for category in mine] for mine in categories]
    return torch.tensor([np.mean(mine or [overall]) for mine in means], dtype=torch.float64)


def read(name: str) -> tuple[Interactions, dict[str, list[Any]]]:
    """The log of a data set, and the columns of its items table."""
    log = pl.read_parquet(DATA / name / "interactions.parquet")
    items = pl.read_parquet(DATA / name / "items.parquet").sort("item")
    shape = int(log["user"].max()) + 1, len(items)  # type: ignore[arg-type]
    pairs = Interactions.from_pairs(log["user"].to_list(), log["item"].to_list(), shape=shape)
    return pairs, {column: items[column].to_list() for column in items.columns if column != "item"}


def categories_of(columns: dict[str, list[Any]]) -> list[list[str]]:
    """Tags and genres of each item; without them, the words of its title."""
    lists = [columns[name] for name in ("genres", "tags") if name in columns]
    if lists:
        return [
            sorted({tag for value in row for tag in (value or "").split("|") if tag})
            for row in zip(*lists, strict=True)
        ]
    return [sorted({*title.lower().split()}) for title in columns["title"]]


def warm_row(task: ColdTask, columns: dict[str, list[Any]], seed: int, epochs: int | None) -> Row:
    """Fit the default `VAE` with attributes, and measure it with and without."""
    features = item_features(Attributes.of(columns)).matrix
    options = FitOptions(Training(epochs=epochs), seed=seed)
    learned = Warm(VAE()).with_features(features).learn(task.train, options)
    fitted: Any = learned.fitted
    assert learned.attributes is not None
    without = recalls(task, fitted.inner)
    return {
        **recalls(task, fitted),
        "warm among all without attributes": without["warm among all"],
        "cold among all without attributes": without["cold among all"],
        "validation": asdict(learned.attributes),
    }


def main() -> None:
    """Measure the data sets, whatever is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", choices=SETS, nargs="*", default=SETS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=None, help="of each training")
    options = parser.parse_args()
    record = Record(Path(__file__).with_name("cold_items.json"))
    for name in options.data:
        log, columns = read(name)
        task = ColdTask.of(log, options.seed)
        generator = torch.Generator().manual_seed(options.seed)
        key = {"data": name, "seed": options.seed}
        by_category = category_popularity(task, categories_of(columns))
        rankings = {
            "random": torch.rand(log.items, generator=generator, dtype=torch.float64),
            # Items with interactions by their own: hidden items are where their categories are.
            "popularity by category": by_category.where(task.cold, task.train.counts().double()),
            # All items by their categories, so that hidden ones compete on equal terms.
            "popularity by category, for all items": by_category,
        }
        for method, scores in rankings.items():
            record.once(lambda t=task, s=scores: fixed_recalls(t, s), method=method, **key)  # type: ignore[misc]
        record.once(
            lambda t=task, c=columns: warm_row(t, c, options.seed, options.epochs),  # type: ignore[misc]
            method="fastvae with attributes", epochs=options.epochs, **key,
        )  # fmt: skip


if __name__ == "__main__":
    main()
