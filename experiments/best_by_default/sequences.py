"""Sequences of users, leave one out: each user's last item is ranked among all items.

The test target is a user's last item and the validation target the one before. Models learn from
what came before both; at test time they are told the validation item too. Items that the user has
already are left out of the ranking, as in the full ranking of the S3-Rec authors
(`train_matrix` in their trainers.py), whose files these are. Users with fewer than three items are
not tested.
"""

import numpy as np
import torch

from experiments.best_by_default.next_item import Task, drop_last
from experiments.datasets import DATA
from fewfold.recommender import Jagged

__all__ = ["SEQUENCES", "sequence_task"]

SEQUENCES = ("s3rec/beauty", "s3rec/sports", "s3rec/toys", "sasrec-video-games", "bert4rec-beauty")


def sequence_task(name: str, *, validation: bool = False) -> Task:
    """The task of a data set, or the one with validation items as targets."""
    import pandas

    table = pandas.read_parquet(DATA / name / "interactions.parquet")
    users, who = np.unique(table["user"].to_numpy(), return_inverse=True)
    ids = torch.from_numpy(table["item"].to_numpy().astype(np.int64) - 1)
    lengths = torch.from_numpy(np.bincount(who, minlength=len(users)))
    whole = Jagged(ids, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    train = drop_last(whole, 2)
    known = whole.rows((lengths >= 3).nonzero().squeeze(1))
    if validation:
        known = drop_last(known, 1)
    targets = known.values[known.offsets[1:] - 1]
    return Task(train, drop_last(known, 1), targets, int(ids.max()) + 1, exclude=True)
