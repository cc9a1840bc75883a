"""Click sessions in the protocol of SR-GNN: after every prefix, all items are ranked.

A test case is a prefix of a test session of one item or more, and the target the click after it.
Nothing is excluded: the target may be an item of the session. Validation cases are the prefixes of
the last tenth of the training sessions, which are in order of time; the others are then trained on.
"""

import numpy as np
import torch

from experiments.best_by_default.next_item import Task, prefixes_of
from experiments.datasets import DATA
from fewfold.recommender import Jagged

__all__ = ["SESSIONS", "session_task"]

SESSIONS = ("diginetica", "yoochoose1_64", "nowplaying")
_VALIDATION = 0.1  # share of the training sessions


def session_task(name: str, *, validation: bool = False) -> Task:
    """The task of a data set, or the one made from its training part to choose settings on."""
    stored = np.load(DATA / name / "sessions.npz")
    train, test = (_sessions(stored, part) for part in ("train", "test"))
    items = 1 + max(int(part.values.max()) for part in (train, test))
    if validation:
        count = len(train.lengths)
        cut = count - round(_VALIDATION * count)
        train, test = train.rows(slice(0, cut)), train.rows(slice(cut, count))
    return Task(train, *prefixes_of(test), items, exclude=False)


def _sessions(stored: np.lib.npyio.NpzFile, part: str) -> Jagged:
    """Sessions of one part, with items numbered from 0."""
    values, offsets = (stored[f"{part}_{name}"].astype(np.int64) for name in ("items", "indptr"))
    return Jagged(torch.from_numpy(values - 1), torch.from_numpy(offsets))
