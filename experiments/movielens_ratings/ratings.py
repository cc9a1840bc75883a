"""Ratings in the published order, and two splits."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments import datasets

SHUFFLE = 1446557  # the seed of the published split


@dataclass(frozen=True)
class Ratings:
    """Users, items and stars; one entry per rating."""

    users: Tensor
    items: Tensor
    stars: Tensor

    def __len__(self) -> int:
        return len(self.stars)

    def __getitem__(self, part: slice | Tensor) -> "Ratings":
        return Ratings(self.users[part], self.items[part], self.stars[part])


@dataclass(frozen=True)
class Split:
    """Training, validation and test ratings, and the numbers of users and items."""

    train: Ratings
    valid: Ratings
    test: Ratings
    users: int
    items: int


def published(ratings: Ratings) -> Split:
    """Split 90/10; the last tenth selects the epoch and is reported, as in the paper."""
    last = ratings[int(len(ratings) * 0.9) :]
    return Split(ratings[: int(len(ratings) * 0.9)], last, last, *_sizes(ratings))


def honest(ratings: Ratings) -> Split:
    """Split 80/10/10; the last tenth is only reported."""
    first, second = int(len(ratings) * 0.8), int(len(ratings) * 0.9)
    return Split(ratings[:first], ratings[first:second], ratings[second:], *_sizes(ratings))


def _sizes(ratings: Ratings) -> tuple[int, int]:
    return int(ratings.users.max()) + 1, int(ratings.items.max()) + 1


def ml1m() -> Ratings:
    """Load MovieLens-1M in the order of the published shuffle; unrated items are dropped."""
    import pandas

    table = pandas.read_parquet(datasets.DATA / "ml-1m" / "ratings.parquet")
    table = table.sample(frac=1.0, random_state=SHUFFLE)
    users, items = (np.unique(table[c], return_inverse=True)[1] for c in ("user_id", "movie_id"))
    stars = torch.from_numpy(table["rating"].to_numpy().astype(np.float32))
    return Ratings(torch.from_numpy(users), torch.from_numpy(items), stars)
