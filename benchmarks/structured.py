"""SparseMAP, forward and backward, compared with lp-sparsemap.

The peer joins the race where it can be imported (`pip install lp-sparsemap`; it needs Eigen and
Cython to build). Where it cannot, ours is compared with what version 1.0 of it once took on an AVX2
server for the forward pass alone; the table then says "lp-sparsemap, as once measured".
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold._timing import Call, race

BATCH = 64
INSTALLED = importlib.util.find_spec("lpsmap") is not None
ONE_FACTOR = {"max_iter": 1, "step_size": 0.0, "max_inner_iter": 1000}
"""The peer's settings for a single factor: its outer loop has nothing to agree on."""
THREADED = {("sequence", "50 x 10"), ("non-projective tree", "20 words")}

Answer = Callable[[Tensor, Tensor | None], Tensor]
Build = Callable[[Any, Any, Tensor, Tensor | None], None]
"""Adds the factors of one instance: (the peer, its graph, its variables, additional scores)."""


@dataclass(frozen=True)
class Problem:
    """One kind of instance, the solvers of both sides, and the required speed-up."""

    what: str
    size: str
    times: float
    figure: float
    """Seconds that the peer once took for the forward pass of one instance."""
    event: tuple[int, ...]
    ours: Answer
    theirs: Build
    additional: tuple[int, ...] | None = None
    settings: tuple[tuple[str, Any], ...] = tuple(ONE_FACTOR.items())


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*map(_against_peer, _problems()), *_threads()]


def _problems() -> Iterator[Problem]:
    for length, states, figure in ((20, 10, 1.3), (50, 10, 8.4), (20, 50, 16), (50, 50, 120)):
        event, between = (length, states), (length - 1, states, states)
        size = f"{length} x {states}"
        yield Problem("sequence", size, 20, figure / 1e3, event, _sequence, _chain, between)
    for projective, what, figures in (
        (False, "non-projective tree", (2.8, 23)),
        (True, "projective tree", (1.3, 13)),
    ):
        tree, arcs = partial(_tree, projective), partial(_arcs, projective)
        for words, figure in zip((20, 40), figures, strict=True):
            yield Problem(what, f"{words} words", 15, figure / 1e3, (words, words), tree, arcs)
    many: tuple[tuple[str, Any], ...] = ()  # its own defaults
    yield Problem(
        "assignment", "20 x 20", 20, 35e-3, (20, 20), _assignment, _rows_and_columns, settings=many
    )
    yield Problem("budget", "16 of 128", 30, 0.31e-3, (128,), _budget, _at_most)
    pairs = 16 * 15 // 2
    yield Problem(
        "pairs of bits", "16, all pairs", 10, 7.2e-3, (16,), _bits, _pairs, (pairs,), settings=many
    )


def _against_peer(problem: Problem) -> Case:
    return Case(
        what=f"{problem.what}, forward+backward",
        size=f"{problem.size}, batch of {BATCH}",
        peer="lp-sparsemap" if INSTALLED else "lp-sparsemap, as once measured",
        bar=1 / problem.times,
        build=partial(_race if INSTALLED else _remembered, problem),
    )


def _threads() -> Iterator[Case]:
    for problem in _problems():
        if (problem.what, problem.size) in THREADED:
            yield Case(
                what=f"{problem.what}, two threads",
                size=f"{problem.size}, batch of {BATCH}",
                peer="one thread",
                bar=1 / 1.7,
                build=partial(_two_threads, problem),
                threads=2,
            )


@dataclass(frozen=True)
class Instances:
    """A batch of random scores and of gradients of the marginals."""

    scores: Tensor
    additional: Tensor | None
    upstream: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [self.scores] if self.additional is None else [self.scores, self.additional]


def _drawn(problem: Problem) -> Instances:
    draw = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=draw, dtype=torch.float64)
    shape = (BATCH, *problem.event)
    more = None if problem.additional is None else normal(problem.additional).requires_grad_()
    return Instances(normal(shape).requires_grad_(), more, normal(shape))


def _ours(problem: Problem) -> Call:
    given = _drawn(problem)

    def call() -> object:
        found = problem.ours(given.scores, given.additional)
        return torch.autograd.grad(found, given.leaves, given.upstream)

    return call


def _race(problem: Problem) -> Pair:
    peer = importlib.import_module("lpsmap")
    warnings.filterwarnings("ignore", module="lpsmap")
    given = _drawn(problem)
    rows = [row.detach().requires_grad_() for row in given.scores]
    settings = dict(problem.settings)

    def theirs() -> None:
        for row, pull in zip(rows, given.upstream, strict=True):
            graph = peer.TorchFactorGraph()
            variables = graph.variable_from(row)
            problem.theirs(peer, graph, variables, given.additional)
            graph.solve(**settings)
            leaves = [row] if given.additional is None else [row, given.additional]
            torch.autograd.grad(variables.value, leaves, pull)

    return Pair(_ours(problem), theirs)


def _remembered(problem: Problem) -> Peak:
    taken = race({"ours": _ours(problem)}, seconds=1.0)["ours"].median
    return Peak(taken, BATCH * problem.figure, unit="seconds")


def _two_threads(problem: Problem) -> Pair:
    return Pair(
        _ours(problem),
        _ours(problem),
        before_ours=lambda: torch.set_num_threads(2),
        before_peer=lambda: torch.set_num_threads(1),
    )


# How each side says the same problem.


def _sequence(scores: Tensor, between: Tensor | None) -> Tensor:
    return ff.sparsemap(scores, ff.structures.Sequence(between, by_position=True))


def _chain(peer: Any, graph: Any, variables: Any, between: Tensor | None) -> None:
    graph.add(peer.Sequence(variables, between))


def _tree(projective: bool, scores: Tensor, _: Tensor | None) -> Tensor:
    return ff.sparsemap(scores, ff.structures.DependencyTree(projective=projective))


def _arcs(projective: bool, peer: Any, graph: Any, variables: Any, _: Tensor | None) -> None:
    graph.add(peer.DepTree(variables, packed=True, projective=projective))


def _assignment(scores: Tensor, _: Tensor | None) -> Tensor:
    return ff.sparsemap(scores, ff.structures.Assignment())


def _rows_and_columns(peer: Any, graph: Any, variables: Any, _: Tensor | None) -> None:
    for i in range(variables.shape[0]):
        graph.add(peer.Xor(variables[i, :]))
        graph.add(peer.Xor(variables[:, i]))


def _budget(scores: Tensor, _: Tensor | None) -> Tensor:
    return ff.sparsemap(scores, ff.structures.Budget(16))


def _at_most(peer: Any, graph: Any, variables: Any, _: Tensor | None) -> None:
    graph.add(peer.Budget(variables, budget=16))


def _bits(scores: Tensor, between: Tensor | None) -> Tensor:
    assert between is not None
    graph = ff.FactorGraph(batch_dims=1)
    bits = graph.variable(scores)
    graph.add(ff.structures.Pair(between), bits[list(combinations(range(scores.shape[-1]), 2))])
    return graph.solve()[bits]


def _pairs(peer: Any, graph: Any, variables: Any, between: Tensor | None) -> None:
    first, second = zip(*combinations(range(variables.shape[0]), 2), strict=True)
    graph.add(peer.Pair(variables[list(first)], variables[list(second)], between))
