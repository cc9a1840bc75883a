"""Structures: the best, the k best and SparseMAP of small and extreme instances."""

import itertools

import numpy as np
import torch
from torch import Tensor

import fewfold as ff
from fewfold.structured.structures.structure import Structure
from tests.fuzz.compare import close, native, plain
from tests.fuzz.values import normal, pick, threads


def instance(rng: np.random.Generator) -> tuple[Structure, tuple[int, ...]]:
    """A structure and the shape of its scores."""
    make = ff.structures
    n, s = int(rng.integers(2, 9)), int(rng.integers(1, 7))
    edges = torch.tensor(list(itertools.combinations(range(max(n, 2)), 2)))
    options = (
        (make.Sequence(normal(rng, s, s)), (n, s)),
        (make.SequentialSubset(int(rng.integers(1, n)), bonus=normal(rng, n - 1)), (n,)),
        (make.DependencyTree(), (n, n)),
        (make.DependencyTree(single_root=True), (n, n)),
        (make.DependencyTree(projective=True), (n, n)),
        (make.SpanningTree(edges, n), (len(edges),)),
        (make.Assignment(), (n, n + int(rng.integers(0, 3)))),
        (make.Matching(), (n, int(rng.integers(1, 9)))),
        (make.Bits(), (n,)),
        (make.Budget(int(rng.integers(1, n + 1))), (n,)),
        (make.KSubset(int(rng.integers(1, n + 1))), (n,)),
        (make.Xor(), (n,)),
        (make.AtMostOne(), (n,)),
        (make.Or(), (n,)),
        (make.OrOut(), (n,)),
        (make.Pair(normal(rng, 1)[0]), (2,)),
    )
    return pick(rng, options)


def scores_of(rng: np.random.Generator, *shape: int) -> Tensor:
    """Normal, tied, narrow, huge or equal scores."""
    kind, scores = pick(rng, ("normal", "ties", "narrow", "huge", "equal")), normal(rng, *shape)
    if kind == "ties":
        return scores.round() / 2
    return scores * {"normal": 1.0, "narrow": 1e-5, "huge": 1e3, "equal": 0.0}[kind]


def best(rng: np.random.Generator) -> int:
    """The best structure has the score of the best one that plain torch finds."""
    threads(rng)
    structure, event = instance(rng)
    scores = scores_of(rng, int(rng.integers(1, 6)), *event)
    ours, theirs = native(structure.argmax, scores), plain(structure.argmax, scores)
    worth = [value(structure, scores, found) for found in (ours, theirs)]
    close(worth[0], worth[1], 1e-9 * (1 + float(scores.abs().max())), f"{structure} {event}")
    return len(scores)


def value(structure: Structure, scores: Tensor, found: Tensor) -> Tensor:
    """The score of structures: linear in their parts, and what pairs of neighbours add."""
    rows = (scores * found.to(scores)).flatten(1).sum(1)
    extra = getattr(structure, "transitions", None)
    if extra is not None:  # labels of neighbours
        label = found.to(scores)
        rows = rows + torch.einsum("bis,st,bit->b", label[:, :-1], extra, label[:, 1:])
    bonus = getattr(structure, "bonus", None)
    if bonus is not None:
        on = found.to(scores)
        rows = rows + (on[:, :-1] * on[:, 1:] * bonus).sum(1)
    if isinstance(structure, ff.structures.Pair):
        rows = rows + found.to(scores).prod(1) * structure.score
    return rows


def sparsemap(rng: np.random.Generator) -> int:
    """Marginals; not their gradients, which jump where tied structures enter the support."""
    threads(rng)
    structure, event = instance(rng)
    scores = scores_of(rng, int(rng.integers(1, 6)), *event)
    ours = native(ff.sparsemap, scores, structure)
    theirs = plain(ff.sparsemap, scores, structure)
    size = 1 + float(scores.abs().max())
    close(ours, theirs, 2e-7 * size, f"marginals of {structure} {event}")
    return len(scores)


TRIALS = {"best": best, "sparsemap": sparsemap}
