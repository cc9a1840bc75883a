"""Everything a network can choose a few of: the structures that `sparsemap` takes."""

from fewfold.structured.assignments import Assignment, Matching
from fewfold.structured.choices import Bits, Budget, KSubset
from fewfold.structured.custom import Custom
from fewfold.structured.kbest import KBest
from fewfold.structured.logic import (
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)
from fewfold.structured.sequences import Sequence
from fewfold.structured.sequential import SequentialSubset
from fewfold.structured.spanning import SpanningTree
from fewfold.structured.structure import Structure
from fewfold.structured.trees import DependencyTree

__all__ = [
    "AndOut",
    "Assignment",
    "AtMostOne",
    "Bits",
    "Budget",
    "Custom",
    "DependencyTree",
    "Imply",
    "KBest",
    "KSubset",
    "Knapsack",
    "Matching",
    "Or",
    "OrOut",
    "Pair",
    "Sequence",
    "SequentialSubset",
    "SpanningTree",
    "Structure",
    "Xor",
    "XorOut",
]
