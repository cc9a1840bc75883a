"""Structured inference as a layer: scores of parts to sparse distributions over structures."""

from fewfold.structured import structures
from fewfold.structured.factor_graph.graph import FactorGraph, GraphSolution
from fewfold.structured.gibbs import gibbs_marginals
from fewfold.structured.regularisers import Gibbs, SparseMAP
from fewfold.structured.sparsemap.sparsemap import (
    Solution,
    sparsemap,
    sparsemap_solution,
    sparsemap_support,
)
from fewfold.structured.topk_support import TopSupport, topk_support

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
