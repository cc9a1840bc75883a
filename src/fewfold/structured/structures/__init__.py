"""Structures for `sparsemap`: subsets, sequences, alignments, matchings, trees, logic."""

from fewfold.structured.kbest import KBest
from fewfold.structured.structures.alignment import Alignment
from fewfold.structured.structures.assignment import Assignment, Matching
from fewfold.structured.structures.bits import Bits, Budget, KSubset
from fewfold.structured.structures.constituency import ConstituencyTree
from fewfold.structured.structures.custom import Custom
from fewfold.structured.structures.dependency_tree import DependencyTree
from fewfold.structured.structures.logic import (
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
from fewfold.structured.structures.segmentation import Segmentation
from fewfold.structured.structures.sequence import Sequence
from fewfold.structured.structures.sequential_subset import SequentialSubset
from fewfold.structured.structures.spanning_tree import SpanningTree
from fewfold.structured.structures.structure import Structure

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
