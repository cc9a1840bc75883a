"""Everything a network can choose a few of: the structures that `sparsemap` takes."""

from fewfold.structured.alignments import Alignment
from fewfold.structured.assignments import Assignment, Matching
from fewfold.structured.choices import Bits, Budget, KSubset
from fewfold.structured.constituency import ConstituencyTree
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
from fewfold.structured.segments import Segmentation
from fewfold.structured.sequences import Sequence
from fewfold.structured.sequential import SequentialSubset
from fewfold.structured.spanning import SpanningTree
from fewfold.structured.structure import Structure
from fewfold.structured.trees import DependencyTree

__all__ = [
    "Alignment",
    "AndOut",
    "Assignment",
    "AtMostOne",
    "Bits",
    "Budget",
    "ConstituencyTree",
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
    "Segmentation",
    "Sequence",
    "SequentialSubset",
    "SpanningTree",
    "Structure",
    "Xor",
    "XorOut",
]
