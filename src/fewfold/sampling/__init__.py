"""Queries in, ids and log-proposals out: how to touch a few items of very many."""

from fewfold.sampling.dynamic import Dynamic
from fewfold.sampling.multi_index import MultiIndex
from fewfold.sampling.proposal import Given, Proposal
from fewfold.sampling.quadratic_kernel import QuadraticKernel
from fewfold.sampling.static import Popularity, Uniform

__all__ = [
    "Dynamic",
    "Given",
    "MultiIndex",
    "Popularity",
    "Proposal",
    "QuadraticKernel",
    "Uniform",
]
