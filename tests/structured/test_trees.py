"""Dependency trees and spanning trees, against enumeration."""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import disabled
from fewfold.structured.structures.dependency_tree import DependencyTree
from fewfold.structured.structures.spanning_tree import SpanningTree
from fewfold.structured.structures.structure import Structure

from .cases import reference

KINDS = [
    DependencyTree(projective=projective, single_root=single)
    for projective in (False, True)
    for single in (False, True)
]
EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [1, 3], [3, 2], [2, 1], [3, 3]])
GRAPH = SpanningTree(EDGES, 4)  # two edges join 1 and 2, one goes nowhere
CASES = [*[(kind, (n, n)) for kind in KINDS for n in (1, 3, 4)], (GRAPH, (7,))]
TABLES = ["random", "ties", "huge", "gaps"]

every_case = pytest.mark.parametrize(("structure", "event"), CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def made(structure: Structure, event: tuple[int, ...], table: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (12, *event), all structures, and (12, structures) what each is worth."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(12, *event, generator=generator, dtype=torch.float64)
    if table == "ties":
        scores = scores.round()
    if table == "huge":
        scores = 100 * scores
    if table == "gaps":
        some = torch.rand(scores.shape, generator=generator) < 0.25
        scores = scores.masked_fill(some, -math.inf)
    every = structure.enumerate(torch.Size(event))
    values = torch.where(every, scores.unsqueeze(1), 0.0).flatten(2).sum(2)
    fine = values.max(1).values > -math.inf
    if len(event) == 2:
        fine &= ~(scores == -math.inf).all(1).any(1)  # absent words have a test of their own
    return scores[fine], every, values[fine]


def both() -> list[contextlib.AbstractContextManager[None]]:
    """With kernels and without."""
    return [contextlib.nullcontext(), disabled()]


@pytest.mark.parametrize(
    ("n", "counts"), [(3, [16, 9, 12, 7]), (4, [125, 64, 55, 30]), (5, [1296, 625, 273, 143])]
)
def test_there_are_as_many_trees_as_are_known(n: int, counts: list[int]) -> None:
    event = torch.Size((n, n))
    assert [kind.count(event) for kind in KINDS] == counts
    assert [len(kind.enumerate(event)) for kind in KINDS] == counts


def test_kirchhoff_counts_spanning_trees() -> None:
    assert GRAPH.count(torch.Size([7])) == len(GRAPH.enumerate(torch.Size([7]))) == 12


@every_case
@pytest.mark.parametrize("table", TABLES)
def test_the_best_are_the_best_of_all(
    structure: Structure, event: tuple[int, ...], table: str
) -> None:
    scores, every, values = made(structure, event, table)
    known = {tuple(one.flatten().tolist()) for one in every}
    for path, rows, k in zip(both(), (12, 2), (6, 4), strict=True):
        own, worths = scores[:rows], values[:rows]
        wanted = worths.sort(1, descending=True).values[:, :k]
        with path:
            best = structure.argmax(own) > 0
            ranked = structure.k_best(own, k)
        assert {tuple(one.flatten().tolist()) for one in best} <= known
        worth = torch.where(best, own, 0.0).flatten(1).sum(1)
        torch.testing.assert_close(worth, worths.max(1).values)
        there = ranked.valid[:, : wanted.shape[1]]
        assert not ranked.valid[:, wanted.shape[1] :].any()
        assert torch.equal(there, wanted > -math.inf)
        torch.testing.assert_close(ranked.scores[:, : wanted.shape[1]], wanted)
        for found, valid in zip(ranked.structures, ranked.valid, strict=True):
            kinds = {tuple(one.flatten().tolist()) for one in found[valid]}
            assert len(kinds) == int(valid.sum())
            assert kinds <= known


@every_case
@pytest.mark.parametrize("table", TABLES)
def test_the_sum_over_all_and_its_gradient(
    structure: DependencyTree | SpanningTree, event: tuple[int, ...], table: str
) -> None:
    scores, every, values = made(structure, event, table)
    own = scores.clone().requires_grad_()
    total = structure.log_partition(own)
    torch.testing.assert_close(total, values.logsumexp(1), rtol=1e-11, atol=1e-11)
    (grad,) = torch.autograd.grad(total.sum(), own)
    marginals = values.softmax(1) @ every.flatten(1).double()
    torch.testing.assert_close(grad.flatten(1), marginals, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("structure", "event"), [*[(k, (3, 3)) for k in KINDS], (GRAPH, (7,))])
def test_the_sum_has_second_derivatives(
    structure: DependencyTree | SpanningTree, event: tuple[int, ...]
) -> None:
    scores = made(structure, event, "random")[0][:1].requires_grad_()
    mask = torch.ones_like(scores, dtype=torch.bool)
    for forbidden in ([], [1, -1]):
        mask.view(-1)[forbidden] = False
        assert torch.autograd.gradgradcheck(
            lambda own: structure.log_partition(own, mask=mask), (scores,), fast_mode=True
        )


@pytest.mark.parametrize(
    ("structure", "event", "table"),
    [(*case, "random") for case in CASES]
    + [(*case, table) for case in CASES if case[1] != (4, 4) for table in ("huge", "gaps")],
    ids=str,
)
def test_draws_follow_the_distribution(
    structure: DependencyTree | SpanningTree, event: tuple[int, ...], table: str
) -> None:
    scores, every, values = made(structure, event, table)
    scores, values = scores[:2], values[:2]
    draws = structure.sample(scores, 4000, generator=torch.Generator().manual_seed(1))
    assert draws.shape == (4000, *scores.shape)
    assert draws.dtype == torch.bool
    own, known = draws.flatten(2).double(), every.flatten(1).double()
    same = own.sum(2, keepdim=True) + known.sum(1) == 2 * own @ known.T  # they differ nowhere
    assert bool(same.any(2).all())
    shares = same.double().mean(0)
    # four deviations of a share are at most 4 * 0.5 / sqrt(4000); the seed is fixed
    assert float((shares - values.softmax(1)).abs().max()) < 0.032


@every_case
def test_sparsemap_solves_its_problem(structure: Structure, event: tuple[int, ...]) -> None:
    for table in ("random", "ties", "gaps"):
        scores, every, _ = made(structure, event, table)
        atoms = every.flatten(1).double().numpy()
        rows = scores[:4].flatten(1).numpy()
        wanted = np.stack([reference(atoms, own, 0.0 * atoms[:, 0]) for own in rows])
        for path in both():
            with path:
                found = ff.sparsemap(scores[:4], structure)
            error = found.flatten(1) - torch.from_numpy(wanted)
            assert float(error.abs().max()) < 1e-8


@every_kind
def test_absent_words_leave_a_smaller_tree(kind: DependencyTree) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    every = ([0], [4], [0, 1, 3], [2], [0, 1, 2, 3], [1, 2, 4])
    for place, absent in enumerate(every):
        kept = [m for m in range(5) if m not in absent]
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, absent] = False
        small = scores[kept][:, kept]

        def inner(whole: Tensor, absent: list[int] = absent, kept: list[int] = kept) -> Tensor:
            assert not whole[..., absent, :].any()
            assert not whole[..., :, absent].any()
            return whole[..., kept, :][..., :, kept]

        for path in both()[: 1 + place % 2]:  # every second one without kernels as well
            with path:
                assert torch.equal(inner(kind.argmax(scores, mask=mask)), kind.argmax(small))
                wide, narrow = kind.k_best(scores, 3, mask=mask), kind.k_best(small, 3)
                whole, part = ff.sparsemap(scores, kind, mask=mask), ff.sparsemap(small, kind)
            assert torch.equal(inner(wide.structures), narrow.structures)
            torch.testing.assert_close(wide.scores, narrow.scores)
            torch.testing.assert_close(inner(whole), part)
        total = kind.log_partition(small)
        torch.testing.assert_close(kind.log_partition(scores, mask=mask), total)
        draws = inner(kind.sample(scores, 20, mask=mask, generator=generator))
        assert bool((draws.sum(1) == 1).all())


@every_kind
def test_no_word_at_all_is_the_empty_tree(kind: DependencyTree) -> None:
    scores = torch.zeros(2, 3, 3)
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    for path in both():
        with path:
            assert not kind.argmax(scores, mask=mask).any()
            assert not ff.sparsemap(scores, kind, mask=mask).any()
            assert kind.k_best(scores, 2, mask=mask).valid.tolist() == [[True, False]] * 2
    assert kind.log_partition(scores, mask=mask).tolist() == [0, 0]
    assert not kind.sample(scores, 2, mask=mask).any()


@every_kind
def test_no_way_to_the_root_is_an_error(kind: DependencyTree) -> None:
    scores = torch.zeros(2, 3, 3)
    scores[1].fill_diagonal_(-math.inf)
    for path in both():
        with path:
            with pytest.raises(ValueError, match="instance 1 has no structure"):
                kind.argmax(scores)
            with pytest.raises(ValueError, match="instance 1 has no structure"):
                ff.sparsemap(scores, kind)
            assert kind.k_best(scores, 2).valid.tolist() == [[True, True], [False, False]]
    with pytest.raises(ValueError, match="instance 1 has no structure"):
        kind.sample(scores, 2)
    own = scores.clone().requires_grad_()
    total = kind.log_partition(own)
    assert total[1] == -math.inf
    (grad,) = torch.autograd.grad(total[0], own)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("projective", [False, True])
def test_two_words_that_need_the_root_have_no_tree_with_one(projective: bool) -> None:
    scores = torch.zeros(1, 3, 3)
    scores[0, [1, 2, 0, 2], [0, 0, 1, 1]] = -math.inf  # words 0 and 1 have the root or nothing
    single = DependencyTree(projective=projective, single_root=True)
    for path in both():
        with path:
            with pytest.raises(ValueError, match="no structure"):
                single.argmax(scores)
            assert DependencyTree(projective=projective).argmax(scores).sum() == 3
    assert single.log_partition(scores).item() == -math.inf


def test_one_root_costs_no_digits() -> None:
    # a penalty of the root that outweighs 1e12 would leave nothing of differences of 1e-6
    kind = DependencyTree(single_root=True)
    generator = torch.Generator().manual_seed(6)
    scores = 1e-6 * torch.randn(20, 4, 4, generator=generator, dtype=torch.float64)
    scores[:, 0, 1] = -1e12
    every = kind.enumerate(torch.Size([4, 4]))
    values = torch.where(every, scores.unsqueeze(1), 0.0).flatten(2).sum(2)
    for path in both():
        with path:
            best = kind.argmax(scores)
        torch.testing.assert_close(
            (best * scores).flatten(1).sum(1), values.max(1).values, rtol=1e-9, atol=0.0
        )


@every_kind
def test_a_nan_stays_in_its_row(kind: DependencyTree) -> None:
    scores = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2))
    clean = ff.sparsemap(scores, kind)
    scores[1, 2, 0] = math.nan
    found, best = ff.sparsemap(scores, kind), kind.argmax(scores)
    assert bool(found[1].isnan().all())
    assert bool(best[1].isnan().all())
    assert torch.equal(found[[0, 2]], clean[[0, 2]])
    assert kind.log_partition(scores).isnan().tolist() == [False, True, False]


@every_kind
def test_long_sentences_agree_without_kernels(kind: DependencyTree) -> None:
    generator = torch.Generator().manual_seed(4)
    for n in (2, 9, 17, 25):
        scores = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
        native = kind.argmax(scores)
        with disabled():
            assert torch.equal(native, kind.argmax(scores))


@every_kind
def test_chains_of_nested_cycles(kind: DependencyTree) -> None:
    # every word likes its neighbour a little less than the one before: cycles within cycles
    n = 24
    far = (torch.arange(n).unsqueeze(0) - torch.arange(n).unsqueeze(1)).abs().double()
    scores = (-(2.0 ** far.clamp(max=12))).fill_diagonal_(-5000.0)
    native = kind.argmax(scores)
    with disabled():
        plain = kind.argmax(scores)
    assert float((native * scores).sum()) == float((plain * scores).sum())


@pytest.mark.parametrize("single", [False, True])
def test_sums_and_draws_hold_for_any_size_of_scores(single: bool) -> None:
    kind = DependencyTree(single_root=single)
    scores = 300 * torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(8)).double()
    best = kind.argmax(scores)
    value = (best * scores).flatten(1).sum(1)
    torch.testing.assert_close(kind.log_partition(scores), value, rtol=1e-12, atol=1.0)
    own = scores.clone().requires_grad_()
    (marginals,) = torch.autograd.grad(kind.log_partition(own).sum(), own)
    draws = kind.sample(scores, 1000, generator=torch.Generator().manual_seed(0))
    assert float((draws.double().mean(0) - marginals).abs().max()) < 0.05  # three deviations


GOLD = torch.tensor([[0.9, 0.6, 0.3], [0.4, 0.7, 0.5], [0.1, 0.2, 0.4]], dtype=torch.float64)
"""with the scores of the root on the diagonal"""
KNOWN = [
    (
        False,
        [[0.75, 0.433333333, 0.233333333], [0.25, 0.533333333, 0.433333333],
         [0.0, 0.033333333, 0.333333333]],
        1.1091666666666484,
        [[-0.533333333, -0.177777778, 0.0], [0.533333333, -0.711111111, 0.533333333],
         [0.0, 0.888888889, -0.533333333]],
    ),
    (
        True,
        [[0.555555556, 0.538888889, 0.338888889], [0.372222222, 0.322222222, 0.538888889],
         [0.072222222, 0.138888889, 0.122222222]],
        1.0097222222222222,
        [[-0.177777778, -0.533333333, -0.355555556], [-0.177777778, 0.0, 0.177777778],
         [0.355555556, 0.533333333, 0.177777778]],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("single", "marginals", "objective", "change"), KNOWN)
def test_known_answers(
    single: bool, marginals: list[list[float]], objective: float, change: list[list[float]]
) -> None:
    kind = DependencyTree(single_root=single)
    found = ff.structured.sparsemap_solution(GOLD, kind)
    torch.testing.assert_close(
        found.marginals, torch.tensor(marginals, dtype=torch.float64), atol=1e-8, rtol=0
    )
    assert float(found.objective) == pytest.approx(objective, abs=1e-9)
    # the direction is written by head and word with the root as head 0
    wide = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
    direction = torch.where(torch.eye(3) > 0, wide[0, 1:], wide[1:, 1:])
    wanted = torch.tensor(change, dtype=torch.float64)
    for path in (contextlib.nullcontext, disabled):
        with path():
            _, moved = torch.func.jvp(lambda s: ff.sparsemap(s, kind), (GOLD,), (direction,))
            torch.testing.assert_close(moved, wanted, atol=1e-8, rtol=0)
            own = GOLD.clone().requires_grad_()
            for marginals_of in (
                ff.sparsemap,
                lambda s, k: ff.structured.sparsemap_solution(s, k).marginals,
            ):
                (pulled,) = torch.autograd.grad(marginals_of(own, kind), own, direction)
                torch.testing.assert_close(pulled, wanted, atol=1e-8, rtol=0)


def test_solving_forty_words_converges() -> None:
    scores = torch.randn(40, 40, 40, generator=torch.Generator().manual_seed(0)).double()
    for kind in (DependencyTree(), DependencyTree(single_root=True)):
        found = ff.structured.sparsemap_solution(scores, kind)
        assert bool(found.converged.all())
        assert float(found.gap.max()) <= 1e-8


def test_graphs_that_cannot_be_spanned() -> None:
    with pytest.raises(ValueError, match="connect all 4 nodes"):
        SpanningTree(torch.tensor([[0, 1], [2, 3]]), 4)
    with pytest.raises(ValueError, match="from 0 to 1, got 0 to 2"):
        SpanningTree(torch.tensor([[0, 1], [1, 2]]), 2)
    for edges in (torch.zeros(2, 2), torch.ones(1, 2, dtype=torch.bool), [0, 1]):
        with pytest.raises(ValueError, match="whole numbers"):
            SpanningTree(edges, 2)  # type: ignore[arg-type]
    for other in ([[0, 1], [1]], [["a", "b"]], None):
        with pytest.raises(TypeError, match=r"edges must be an \(E, 2\) tensor"):
            SpanningTree(other, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="E=7"):
        GRAPH.argmax(torch.zeros(6))
    scores = torch.zeros(7).index_fill(0, torch.tensor([3, 4]), -math.inf)  # node 3 is cut off
    for path in both():
        with path, pytest.raises(ValueError, match="no structure"):
            GRAPH.argmax(scores)
    assert GRAPH.log_partition(scores).item() == -math.inf


def test_a_graph_of_one_node_has_the_empty_tree() -> None:
    alone = SpanningTree(torch.tensor([[0, 0]]), 1)
    for path in both():
        with path:
            assert not alone.argmax(torch.ones(2, 1)).any()
            assert alone.k_best(torch.ones(1), 2).valid.tolist() == [True, False]
    assert alone.log_partition(torch.ones(2, 1)).tolist() == [0, 0]
    assert not alone.sample(torch.ones(2, 1), 3).any()


def test_edges_may_be_a_list() -> None:
    scores = torch.tensor([0.5, 0.2, 0.0, 0.1, -0.3, 0.7, 1.0])
    for edges in (EDGES.tolist(), EDGES.numpy()):
        listed = SpanningTree(edges, 4)  # type: ignore[arg-type]
        assert torch.equal(ff.sparsemap(scores, listed), ff.sparsemap(scores, GRAPH))


def test_scores_must_be_square() -> None:
    with pytest.raises(ValueError, match="square"):
        DependencyTree().argmax(torch.zeros(2, 3, 4))


@every_kind
def test_a_chain_is_reached_to_its_end(kind: DependencyTree) -> None:
    scores = torch.full((9, 9), -math.inf, dtype=torch.float64)
    scores[0, 0] = 0.5
    scores[range(8), range(1, 9)] = 0.25
    assert float(kind.log_partition(scores)) == pytest.approx(2.5)
    assert kind.argmax(scores).sum() == 9
