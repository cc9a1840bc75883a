"""Valid argument lists for every binding of structured inference."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfold import _native
from tests.fuzz.recipes import F64, I32, I64, RECIPES, _threads, offsets, real, size, whole
from tests.fuzz.spoil import Rng

__all__: list[str] = []
Made = tuple[Callable[..., object], list[object]]
kernels: Any = _native.kernels


def _register(name: str) -> Callable[[Callable[[Rng], Made]], Callable[[Rng], Made]]:
    def keep(make: Callable[[Rng], Made]) -> Callable[[Rng], Made]:
        RECIPES[name] = make
        return make

    return keep


def _zeros(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _request(rng: Rng, rows: int, parts: int, slots: int, codes: Tensor | None) -> list[object]:
    """Arguments of a Request, 14 of them; codes (m, slots) to start from."""
    at = None
    if codes is not None:
        at = torch.linspace(0, len(codes), rows + 1).long()
    numbers = [_zeros(rows, parts), _zeros(rows), _zeros(rows, dtype=I64), _zeros(rows, dtype=I32)]
    head = [real(rng, rows, parts), rows, parts, slots, 50, 1e-9, codes, at]
    return [*head, *numbers, _threads(rng), bool(rng.integers(2))]


def _asked(name: str) -> Callable[..., object]:
    def run(*arguments: object) -> object:
        return getattr(kernels, name)(kernels.Request(*arguments[:14]), *arguments[14:])

    return run


@_register("sparsemap_choices")
def _choices(rng: Rng) -> Made:
    rows, n = size(rng, 3), size(rng, 7, 1)
    return _asked("sparsemap_choices"), [*_request(rng, rows, n, n, None), 1, size(rng, n, 1)]


@_register("sparsemap_logic")
def _logic(rng: Rng) -> Made:
    rows, n = size(rng, 3), size(rng, 7, 2)
    turned = whole(rng, 2, n, dtype=torch.uint8)
    return _asked("sparsemap_logic"), [*_request(rng, rows, n, n, None), size(rng, 3), turned]


@_register("sparsemap_pairs")
def _pairs(rng: Rng) -> Made:
    rows = size(rng, 3)
    return _asked("sparsemap_pairs"), [*_request(rng, rows, 2, 2, None), real(rng, rows)]


def _codes(rng: Rng, m: int, slots: int, each: int) -> Tensor:
    """(m, slots) a part at each slot, which has `each` of its own."""
    return (torch.arange(slots) * each + whole(rng, each, m, slots)).int()


def _chains(rng: Rng, rows: int, n: int, states: int) -> list[object]:
    """Arguments of Chains, nine of them."""
    steps = real(rng, rows, max(n - 1, 1), states, states)
    strides = [steps.stride(0), steps.stride(1)] if rng.random() < 0.5 else [0, 0]
    own = [real(rng, rows, states), states] if rng.random() < 0.5 else [None, 0]
    return [n, states, steps, *strides, *own, real(rng, 1, states), 0]


@_register("sparsemap_sequences")
def _sequences(rng: Rng) -> Made:
    rows, n, states = size(rng, 3), size(rng, 5, 1), size(rng, 4, 1)
    codes = _codes(rng, size(rng, 4), n, states) if rng.random() < 0.5 else None

    def run(*a: object) -> object:
        return kernels.sparsemap_sequences(kernels.Request(*a[:14]), kernels.Chains(*a[14:]))

    asked = _request(rng, rows, n * states, n, codes)
    return run, [*asked, *_chains(rng, rows, n, states)]


@_register("best_sequences")
def _best_sequences(rng: Rng) -> Made:
    rows, n, states, k = size(rng, 3), size(rng, 5, 1), size(rng, 4, 1), size(rng, 5, 1)
    given = _chains(rng, rows, n, states)
    one = rng.random() < 0.5

    def run(
        scores: object, rows: int, k: int, codes: object, values: object, *chains: object
    ) -> None:
        made = kernels.Chains(*chains)
        if one:
            kernels.best_sequences(scores, rows, made, codes, values, 1)
        else:
            kernels.k_best_sequences(scores, rows, made, k, codes, values, 2)

    out = [_zeros(rows, k, n, dtype=I32), _zeros(rows, k)]
    return run, [real(rng, rows, n * states), rows, k, *out, *given]


@_register("subsets")
def _subsets(rng: Rng) -> Made:
    rows, n, k = size(rng, 3), size(rng, 6, 1), size(rng, 4, 1)
    bonus = real(rng, rows, max(n - 1, 1))
    subset = [n, size(rng, n), bool(rng.integers(2)), bonus, bonus.stride(0), 1]
    which = size(rng, 2)

    def run(*a: object) -> object:
        made = kernels.Subsets(*a[19:])
        if which == 0:
            return kernels.sparsemap_subsets(kernels.Request(*a[:14]), made)
        scores, rows, k, codes, values = a[14:19]
        if which == 1:
            return kernels.best_subsets(scores, rows, made, codes, values, 1)
        return kernels.k_best_subsets(scores, rows, made, k, codes, values, 2)

    out = [_zeros(rows, k, n, dtype=I32), _zeros(rows, k)]
    return run, [*_request(rng, rows, n, n, None), real(rng, rows, n), rows, k, *out, *subset]


@_register("pull_sequences")
def _pull_sequences(rng: Rng) -> Made:
    rows, n, states, m = size(rng, 3, 1), size(rng, 5, 1), size(rng, 4, 1), size(rng, 6)
    steps = _zeros(rows, max(n - 1, 1), states, states)
    ends = [_zeros(rows, states), states, _zeros(1, states), 0]
    head = [_codes(rng, m, n, states), whole(rng, rows, m), real(rng, m), m, n, states, rows]
    return kernels.pull_sequences, [*head, steps, steps.stride(0), states * states, *ends]


def _best_trees(name: str, *after: object) -> Callable[..., object]:
    def run(*arguments: object) -> object:
        return getattr(kernels, name)(kernels.BestTrees(*arguments[:8]), *arguments[8:], *after)

    return run


@_register("dependencies")
def _dependencies(rng: Rng) -> Made:
    rows, n, k = size(rng, 3), size(rng, 5, 1), size(rng, 3, 1)
    how = [bool(rng.integers(2)), bool(rng.integers(2))]
    if rng.random() < 0.5:
        return _asked("sparsemap_dependencies"), [*_request(rng, rows, n * n, n, None), *how]
    out = [_zeros(rows, k, n, dtype=I32) - 1, _zeros(rows, k)]
    asked = [real(rng, rows, n * n), rows, n * n, n, k, *out, 1, *how]
    return _best_trees("best_dependencies"), asked


@_register("spanning")
def _spanning(rng: Rng) -> Made:
    rows, nodes, k = size(rng, 3), size(rng, 5, 2), size(rng, 3, 1)
    ends = torch.combinations(torch.arange(nodes)).int()
    edges = len(ends)
    if rng.random() < 0.5:
        asked = _request(rng, rows, edges, edges, None)
        return _asked("sparsemap_spanning"), [*asked, ends, nodes]
    out = [_zeros(rows, k, edges, dtype=I32) - 1, _zeros(rows, k)]
    head = [real(rng, rows, edges), rows, edges, edges, k, *out, 1]
    return _best_trees("best_spanning"), [*head, ends, nodes]


@_register("assignments")
def _assignments(rng: Rng) -> Made:
    rows, m, n, k = size(rng, 3), size(rng, 4, 1), size(rng, 5, 1), size(rng, 3, 1)
    scores, which = real(rng, rows, m, n), size(rng, 4)
    shape = [rows, m, n, bool(rng.integers(2)), _threads(rng)]
    marks = [_zeros(rows, k), _zeros(rows, dtype=I64), _zeros(rows, dtype=I32)]
    codes = _zeros(rows, k, m, dtype=I32)

    def run(*a: object) -> object:
        made = kernels.AssignmentShape(*a[:5])
        scores, other, third, codes, k, values, took, outcomes = a[5:13]
        if which == 0:
            return kernels.best_assignments(made, scores, codes, values)
        if which == 1:
            return kernels.best_assignments_k(made, scores, k, codes, values)
        if which == 2:
            return kernels.project_assignments(made, scores, other, values, took, outcomes)
        if which == 3:
            return kernels.face_assignments(made, scores, other, third)
        return kernels.sparsemap_assignments(kernels.Request(*a[13:]), made)

    dense = [scores, torch.zeros_like(scores), torch.zeros_like(scores)]
    return run, [*shape, *dense, codes, k, *marks, *_request(rng, rows, m * n, m, None)]


@_register("pull and derive")
def _pull(rng: Rng) -> Made:
    rows, slots, each = size(rng, 3), size(rng, 4, 1), size(rng, 3, 1)
    at = offsets(rng, rows)
    m, parts = int(at[-1]), slots * each
    codes, dense = _codes(rng, m, slots, each), real(rng, rows, parts)
    if rng.random() < 0.5:
        tail = [dense, _zeros(m), torch.zeros_like(dense), _threads(rng)]
        return kernels.pull, [codes, at, None, rows, slots, parts, *tail]
    columns = real(rng, size(rng, 3), m)
    return kernels.derive, [codes, at, rows, slots, columns, len(columns), m, _threads(rng)]


@_register("nearest_linear")
def _nearest_linear(rng: Rng) -> Made:
    rows, n = size(rng, 3), size(rng, 6, 1)
    dense = [real(rng, rows, n), rows, n]
    if rng.random() < 0.5:
        return kernels.nearest_any_out, [*dense, _zeros(rows, n), _threads(rng)]
    line = [real(rng, n), 0.5, bool(rng.integers(2))]
    return kernels.nearest_linear, [*dense, *line, _zeros(rows, n), _threads(rng)]


@_register("Graph")
def _graph(rng: Rng) -> Made:
    bits, factors, rows = size(rng, 8, 2), size(rng, 3, 1), size(rng, 2)
    wide, n, states = size(rng, 3, 2), 2, 2
    uses = [factors, wide, whole(rng, bits, factors, wide), torch.ones(factors, wide).double()]
    four = [factors, 4, whole(rng, bits, factors, 4), torch.ones(factors, 4).double()]
    marks = [_zeros(rows), _zeros(rows), _zeros(rows, dtype=I64), *_zeros(2, rows, dtype=I32)]
    changes, values = real(rng, rows, bits), real(rng, 200)
    kinds = size(rng, 5)

    def run(*a: object) -> None:
        graph = kernels.Graph(a[0])
        used, square = kernels.Uses(*a[1:5]), kernels.Uses(*a[5:9])
        graph.add_linear(used, a[9], a[10], False)
        if kinds == 0:
            graph.add_any_out(used)
        if kinds == 1:
            graph.add_sequences(square, kernels.Chains(n, states, *a[11:18]))
        if kinds == 2:
            graph.add_dependencies(square, 2, True, True)
        if kinds == 3:
            graph.add_assignments(square, 2, 2, False)
        if kinds == 4:
            graph.add_subsets(square, kernels.Subsets(4, 2, True, None, 0, 0))
        scores, rows, pairs, steps, marginals, apart, moved, took, outcome, failed = a[18:28]
        for warm in (False, True):
            graph.solve(
                scores, rows, pairs, 20, 1e-6, steps, warm, marginals, took, apart, moved, outcome,
                failed, 2,
            )  # fmt: skip
        graph.pull(a[28], a[29], 1)
        first, count = a[31], a[32]
        graph.active(first, count, a[28])
        graph.weigh(first, count, a[30], a[29])

    more = [real(rng, factors * rows, 1, 2, 2), 4, 0, None, 0, None, 0]
    line = [torch.ones(factors, wide).double(), torch.ones(factors).double()]
    dense = [real(rng, rows, bits), rows, _zeros(rows, 0), torch.ones(rows).double()]
    tail = [_zeros(rows, bits), *marks, changes, _zeros(rows, bits), values, factors, factors]
    return run, [bits, *uses, *four, *line, *more, *dense, *tail]
