"""Maps from scores to sparse probabilities: one function each, and the regularisers behind them."""

from fewfold.maps.constrained import Bounded, constrained_softmax, constrained_sparsemax
from fewfold.maps.entmax import entmax, softmax, sparsemax
from fewfold.maps.entropies import Gini, Shannon, Tsallis
from fewfold.maps.grouped.fused import Fused, Oscar, fusedmax, oscarmax
from fewfold.maps.ksubset import Subset, ksubset
from fewfold.maps.map_support import map_support
from fewfold.maps.modules import AdaptiveEntmax, Map
from fewfold.maps.normmax import Norm, normmax
from fewfold.maps.omega import Omega
from fewfold.maps.topk_sparsemax import TopK, topk_sparsemax, topk_sparsemax_certified

__all__ = [
    "AdaptiveEntmax",
    "Bounded",
    "Fused",
    "Gini",
    "Map",
    "Norm",
    "Omega",
    "Oscar",
    "Shannon",
    "Subset",
    "TopK",
    "Tsallis",
    "constrained_softmax",
    "constrained_sparsemax",
    "entmax",
    "fusedmax",
    "ksubset",
    "map_support",
    "normmax",
    "oscarmax",
    "softmax",
    "sparsemax",
    "topk_sparsemax",
    "topk_sparsemax_certified",
]
