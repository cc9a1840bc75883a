"""Paths and loaders of the datasets of the experiments and data tests."""

import os
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from fewfold.recommender import Interactions, Split, random_split

_DEFAULT = Path(__file__).parents[2] / "shared" / "datasets"
DATA = Path(os.environ.get("FEWFOLD_DATA", _DEFAULT))


def has(name: str) -> bool:
    """Whether the dataset is on this machine."""
    return (DATA / name).is_dir()


def interactions(name: str) -> Interactions:
    """Load a log stored as a scipy CSR matrix of ones, such as ``ml-10m-fastvae``."""
    return Interactions.from_csr(scipy.sparse.load_npz(DATA / name / "interactions.npz"))


def ml10m(seed: int) -> Split:
    """Return the MovieLens-10M of the FastVAE authors: 10-core, random 80/20 split per user."""
    return random_split(interactions("ml-10m-fastvae").k_core(10).interactions, seed=seed)


def gowalla(seed: int) -> Split:
    """Return Gowalla as split by the authors of LightGCN; the split does not depend on the seed."""
    train, test = (
        Interactions.from_csr(scipy.sparse.load_npz(DATA / "gowalla" / f"{part}.npz"))
        for part in ("train", "test")
    )
    return Split(train=train, test=test, fold_in=train, users=torch.arange(train.users))


def epinions(seed: int) -> Split:
    """Return the ratings of Epinions as implicit feedback: random 80/20 split, no filter."""
    import pandas

    table = pandas.read_parquet(DATA / "epinions" / "ratings.parquet")
    users, items = (np.unique(table[c], return_inverse=True)[1] for c in ("user", "item"))
    return random_split(Interactions.from_pairs(users, items), seed=seed)
