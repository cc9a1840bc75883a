"""Structured inference as a layer: part scores -> few structures."""

from fewfold.structured import structures
from fewfold.structured.best import TopSupport, topk_support
from fewfold.structured.gibbs import gibbs_marginals
from fewfold.structured.graph import FactorGraph, GraphSolution
from fewfold.structured.omega import Gibbs, SparseMAP
from fewfold.structured.sparsemap import (
    Solution,
    sparsemap,
    sparsemap_solution,
    sparsemap_support,
)

__all__ = [
    "FactorGraph",
    "Gibbs",
    "GraphSolution",
    "Solution",
    "SparseMAP",
    "TopSupport",
    "gibbs_marginals",
    "sparsemap",
    "sparsemap_solution",
    "sparsemap_support",
    "structures",
    "topk_support",
]
