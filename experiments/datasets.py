"""Where the experiments and the data tests find real logs."""

import os
from pathlib import Path

import scipy.sparse

from fewfold.recommender import Interactions

DATA = Path(os.environ.get("FEWFOLD_DATA", "/work/shared/datasets"))


def has(name: str) -> bool:
    """Whether the dataset is on this machine."""
    return (DATA / name / "interactions.npz").exists()


def interactions(name: str) -> Interactions:
    """A log stored as a scipy CSR matrix of ones, such as ``ml-10m-fastvae``."""
    return Interactions.from_csr(scipy.sparse.load_npz(DATA / name / "interactions.npz"))
