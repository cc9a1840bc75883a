"""Structures with extreme scores and sizes in the kernels: NaN, no parts, one position."""

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from tests.paths import kernels_only

pytestmark = kernels_only
kernels = _native.kernels
I32, I64 = torch.int32, torch.int64
CONVERGED, STOPPED, INFEASIBLE, NO_NUMBERS = range(4)
NONE = None, 0, 0, None, 0, None, 0  # of Chains: no transitions, start or stop


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(scores: Tensor, slots: int, run: object, *more: object, **how: object):
    """Marginals, outcomes and what the kernel returns."""
    rows, parts = scores.shape
    marginals, outcomes = zeros(rows, parts), zeros(rows, dtype=I32)
    codes, offsets = how.get("codes"), how.get("offsets")
    asked = kernels.Request(
        scores, rows, parts, slots, how.get("turns", 200), 1e-9, codes, offsets, marginals,
        zeros(rows), zeros(rows, dtype=I64), outcomes, 1, how.get("widen", False),
    )  # fmt: skip
    found = run(asked, *more)
    return marginals, outcomes.tolist(), found


def test_scores_that_are_no_numbers_have_no_answer():
    scores = normal(3, 4)
    scores[1, 2] = torch.nan
    turned = torch.tensor([0, 1, 0, 0], dtype=torch.uint8)
    ends = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3]], dtype=I32)
    cases = [(4, kernels.sparsemap_logic, rule, turned) for rule in range(4)]
    cases += [(4, kernels.sparsemap_spanning, ends, 4), (4, kernels.sparsemap_choices, 1, 2)]
    cases += [(2, kernels.sparsemap_dependencies, *how) for how in ((True, True), (False, False))]
    for slots, run, *more in cases:
        marginals, outcomes, _ = solved(scores, slots, run, *more)
        assert outcomes == [CONVERGED, NO_NUMBERS, CONVERGED], run
        assert marginals[1].isnan().all()
        assert marginals[[0, 2]].isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_have_no_answer_from_a_warm_start_either(bad):
    scores, chains = normal(2, 12), kernels.Chains(3, 4, *NONE)
    codes = torch.tensor([[0, 4, 8], [1, 5, 9]], dtype=I32)
    warm = {"codes": codes, "offsets": torch.tensor([0, 1, 2])}
    scores[1, 7] = bad
    marginals, outcomes, _ = solved(scores, 3, kernels.sparsemap_sequences, chains, **warm)
    assert outcomes == [CONVERGED, NO_NUMBERS]
    assert marginals[1].isnan().all()


def test_infinite_scores_of_trees_have_no_answer():
    scores = normal(2, 9)
    scores[1, 5] = torch.inf
    for projective in (True, False):
        for single in (True, False):
            _, outcomes, _ = solved(scores, 3, kernels.sparsemap_dependencies, projective, single)
            assert outcomes == [CONVERGED, NO_NUMBERS]


def test_bits_that_are_all_left_out_are_off():
    scores = torch.full((1, 3), -torch.inf, dtype=torch.float64)
    turned = zeros(3, dtype=torch.uint8)
    for rule in range(4):
        marginals, outcomes, _ = solved(scores, 3, kernels.sparsemap_logic, rule, turned)
        assert outcomes == [CONVERGED]
        assert not marginals.any()


def test_a_solver_that_is_stopped_gives_what_it_has():
    scores = 0.1 * normal(1, 12)
    for widen in (False, True):
        chains, run = kernels.Chains(3, 4, *NONE), kernels.sparsemap_sequences
        marginals, outcomes, found = solved(scores, 3, run, chains, turns=2, widen=widen)
        assert outcomes == [STOPPED]
        codes, weights = found[0], found[1]
        assert weights.sum() == pytest.approx(1)
        mixed = np.zeros(12)
        np.add.at(mixed, codes.reshape(-1), np.repeat(weights, 3))
        np.testing.assert_allclose(marginals[0].numpy(), mixed, atol=1e-12)


def test_chains_of_one_position_have_no_transitions():
    scores, steps = normal(2, 3), torch.full((2, 2), 99.0, dtype=torch.float64)
    chains = kernels.Chains(1, 3, zeros(2, 0), 0, 0, None, 0, None, 0)
    marginals, outcomes, _ = solved(scores, 1, kernels.sparsemap_sequences, chains)
    assert outcomes == [CONVERGED, CONVERGED]
    torch.testing.assert_close(marginals, ff.sparsemax(scores))
    start, stop, by = zeros(2, 3), zeros(2, 3), torch.tensor([2.0, 3.0, 5.0]).double()
    codes = torch.tensor([[0], [2], [-1]], dtype=I32)  # the last has no state at all
    kernels.pull_sequences(
        codes, torch.tensor([0, 1, 1]), by, 3, 1, 3, 2, steps, 0, 0, start, 3, stop, 3
    )
    assert start.tolist() == stop.tolist() == [[2, 0, 0], [0, 0, 3]]
    assert (steps == 99).all()


def test_a_single_bit_has_no_neighbours():
    scores = torch.tensor([[0.4], [-0.4]], dtype=torch.float64)
    subsets = kernels.Subsets(1, 1, True, None, 0, 0)
    marginals, outcomes, _ = solved(scores, 1, kernels.sparsemap_subsets, subsets)
    assert outcomes == [CONVERGED, CONVERGED]
    torch.testing.assert_close(marginals, scores.clamp(0, 1))


def test_subsets_start_from_the_structures_given():
    scores, bonus = normal(2, 5), normal(2, 4, seed=1)
    subsets = kernels.Subsets(5, 2, False, bonus, 4, 1)
    cold, outcomes, _ = solved(scores, 5, kernels.sparsemap_subsets, subsets)
    assert outcomes == [CONVERGED, CONVERGED]
    codes = torch.tensor([[0, 1, -1, -1, -1], [-1, -1, 2, 3, -1], [0, -1, -1, -1, 4]], dtype=I32)
    warm, outcomes, _ = solved(
        scores, 5, kernels.sparsemap_subsets, subsets, codes=codes, offsets=torch.tensor([0, 2, 3])
    )
    assert outcomes == [CONVERGED, CONVERGED]
    torch.testing.assert_close(warm, cold, atol=1e-6, rtol=0)


def test_derivatives_with_factors_and_without():
    scores, chains = 0.1 * normal(3, 12), kernels.Chains(3, 4, *NONE)
    run = kernels.sparsemap_sequences
    _, outcomes, found = solved(scores, 3, run, chains, widen=True)
    assert outcomes == [CONVERGED] * 3
    codes, _, offsets, factors = (torch.from_numpy(part) for part in found)
    grad, m = normal(3, 12, seed=1), len(codes)
    out = [zeros(3, 12), zeros(3, 12)]
    by = [zeros(m), zeros(m)]
    for given, own, to in zip((factors, None), by, out, strict=True):
        kernels.pull(codes, offsets, given, 3, 3, 12, grad, own, to, 1)
    torch.testing.assert_close(out[0], out[1])
    torch.testing.assert_close(by[0], by[1])
    assert out[0].any()


def test_derivatives_of_structures_met_twice_and_of_no_structures():
    codes = torch.tensor([[0, 2], [1, 2], [0, 2], [1, 3]], dtype=I32)
    twice, alone = torch.tensor([0, 4, 4]), torch.tensor([0, 3])
    x = normal(2, 4)
    wide, own = x.clone(), x[:, [0, 1, 3]].contiguous()
    kernels.derive(codes, twice, 2, 2, wide, 2, 4, 1)
    kernels.derive(codes[[0, 1, 3]].contiguous(), alone, 1, 2, own, 2, 3, 1)
    assert not wide[:, 2].any()  # the second time it adds nothing
    torch.testing.assert_close(wide[:, [0, 1, 3]], own)


@pytest.mark.parametrize("apart", [0.0, -1e-7, -1e-3])
def test_faces_have_no_structures_that_are_nearly_as_good(apart):
    """A change of state belongs to the face if it costs nothing, however little it costs else."""
    steps = torch.tensor([[[0.0, apart], [apart, 0.0]]]).double()
    chains, run = kernels.Chains(2, 2, steps, 0, 4, None, 0, None, 0), kernels.sparsemap_sequences
    marginals, outcomes, found = solved(zeros(1, 4), 2, run, chains, widen=True)
    assert outcomes == [CONVERGED]
    torch.testing.assert_close(marginals, torch.full_like(marginals, 0.5))
    assert len(found[0]) == (3 if apart == 0 else 2)
    assert found[1][:2] == pytest.approx(0.5)


def test_knapsacks_that_newtons_method_empties_one_by_one():
    """Each step overshoots the heaviest item left: more steps than are taken before a bisection."""
    costs = 4.0 ** torch.arange(12).double()
    scores = torch.stack([torch.full((12,), 0.9), torch.linspace(0.2, 1.5, 12)]).double()
    for room in (0.1, 3.0):
        with _native.disabled():
            expected = ff.sparsemap(scores, ff.structures.Knapsack(costs, room))
        found = ff.sparsemap(scores, ff.structures.Knapsack(costs, room))
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(found @ costs, torch.full((2,), room).double())


@pytest.mark.parametrize(
    ("scores", "pair", "expected"),
    [
        ((1.0, 1.0), -5.0, (0.5, 0.5)),  # either bit, not both
        ((-1.0, 0.0), -5.0, (0.0, 0.0)),
        ((0.0, -1.0), -5.0, (0.0, 0.0)),
        ((-5.0, 2.0), 0.0, (0.0, 1.0)),
        ((-1.0, -1.0), 9.0, (1.0, 1.0)),
    ],
)
def test_pairs_of_bits_with_ties(scores, pair, expected):
    given, both = torch.tensor([scores]).double(), torch.tensor([pair]).double()
    marginals, outcomes, _ = solved(given, 2, kernels.sparsemap_pairs, both)
    assert outcomes == [CONVERGED]
    torch.testing.assert_close(marginals[0], torch.tensor(expected).double())


# ---- graphs -------------------------------------------------------------------------------------


class Graph:
    """Two factors over eight bits: chains of two states, or subsets of at most two bits."""

    def __init__(self, kind: str = "chains", positions: int = 2, states: int = 2) -> None:
        self.bits, each = 2 * positions * states, positions * states
        self.graph = kernels.Graph(self.bits)
        bits, sign = torch.arange(self.bits).view(2, each), torch.ones(2, each).double()
        uses = kernels.Uses(2, each, bits, sign)
        if kind == "chains":
            self.graph.add_sequences(uses, kernels.Chains(positions, states, *NONE))
        else:
            bonus = zeros(1, 3)
            self.graph.add_subsets(uses, kernels.Subsets(4, 2, True, bonus, 0, 1))

    def solve(self, scores: Tensor, warm: bool = False) -> tuple[Tensor, list[int]]:
        rows = len(scores)
        marginals, (took, *flags) = (
            zeros(rows, self.bits),
            [zeros(rows, dtype=I64)] + [zeros(rows, dtype=I32) for _ in range(2)],
        )
        apart, moved, steps = zeros(rows), zeros(rows), torch.ones(rows, dtype=torch.float64)
        self.graph.solve(
            scores, rows, zeros(rows, 0), 1000, 1e-9, steps, warm, marginals, took, apart, moved,
            *flags, 1,
        )  # fmt: skip
        self.failed = flags[1].tolist()
        return marginals, flags[0].tolist()


def test_graphs_of_no_instances():
    made = Graph()
    for _ in range(2):  # before any call, and after one with nothing to solve
        codes, weights, by, offsets = made.graph.active(0, 2, None)
        assert (codes.shape, weights.shape, by.shape) == ((0, 0), (0,), (0,))
        assert offsets.tolist() == [0]
        made.graph.weigh(0, 2, zeros(0), zeros(0, 8))
        assert made.solve(zeros(0, 8))[1] == []
    kernels.nearest_any_out(zeros(0, 3), 0, 3, zeros(0, 3), 1)


@pytest.mark.parametrize("kind", ["chains", "subsets"])
def test_an_instance_that_is_no_number_has_no_structures(kind):
    made, scores = Graph(kind), normal(3, 8)
    alone, outcomes = made.solve(scores[[0, 2]].contiguous())
    assert outcomes == [CONVERGED, CONVERGED]
    for bad in (torch.nan, torch.inf):
        scores[1, 3] = bad
        marginals, outcomes = made.solve(scores)
        assert outcomes == [CONVERGED, NO_NUMBERS, CONVERGED]
        assert marginals[1].isnan().all()
        torch.testing.assert_close(marginals[[0, 2]], alone)
        _, weights, _, offsets = made.graph.active(0, 2, normal(3, 8, seed=1))
        assert offsets[2] == offsets[4]
        sums = np.add.reduceat(weights, offsets[[0, 1, 4, 5]])
        np.testing.assert_allclose(sums, 1)
        to = zeros(3, 8)
        made.graph.weigh(0, 2, torch.ones(len(weights), dtype=torch.float64), to)
        assert not to[1].any()


@pytest.mark.parametrize("kind", ["chains", "subsets"])
def test_a_warm_start_leaves_structures_whose_parts_are_gone(kind):
    made, scores = Graph(kind), 0.3 * normal(2, 8)
    made.solve(scores)
    gone = scores.clone()
    gone[0, scores[0, :4].argmax()] = gone[1, 5] = -torch.inf
    expected, outcomes = Graph(kind).solve(gone)
    assert outcomes == [CONVERGED, CONVERGED]
    again, outcomes = made.solve(gone, warm=True)
    assert outcomes == [CONVERGED, CONVERGED]
    torch.testing.assert_close(again, expected, atol=1e-6, rtol=0)


def test_a_warm_start_from_structures_of_weight_zero_alone():
    """Exact in binary: a structure keeps the weight zero, and then the others lose their parts."""
    scores = torch.tensor([-1.5, 0.5, 1.5, -2.0, -1.0, 0.0, 1.0, -2.0, 0.5]).double()
    made, scores = Graph(positions=3, states=3), scores.repeat(1, 2)
    made.solve(scores)
    codes, weights, _, _ = made.graph.active(0, 1, None)
    (idle,) = codes[weights == 0].tolist()
    assert idle == [1, 4, 8]
    gone = scores.clone()
    gone[0, 2] = -torch.inf  # a part of every other structure
    assert (codes[weights > 0] == 2).any(1).all()
    again, outcomes = made.solve(gone, warm=True)
    expected, cold = Graph(positions=3, states=3).solve(gone)
    assert outcomes == cold == [CONVERGED]
    torch.testing.assert_close(again, expected, atol=1e-9, rtol=0)


def test_scores_whose_sums_overflow_have_no_answer():
    scores = normal(3, 8)
    scores[0] = scores[1, 4:] = 1e308  # in both factors, and in the second
    made = Graph()
    marginals, outcomes = made.solve(scores)
    assert outcomes == [NO_NUMBERS, NO_NUMBERS, CONVERGED]
    assert made.failed == [0, 1, -1]
    assert marginals[:2].isnan().all()
    assert marginals[2].isfinite().all()


def test_the_first_factor_whose_active_set_grows_too_large_is_named():
    """Nearly equal scores have more than a thousand structures in the support."""
    scores, made = 1e-3 * normal(3, 2400), Graph(positions=2, states=600)
    scores[0, 1200:] *= 1e6
    scores[1, :1200] *= 1e6
    _, outcomes = made.solve(scores)
    assert outcomes == [STOPPED] * 3
    assert made.failed == [0, 1, 0]
