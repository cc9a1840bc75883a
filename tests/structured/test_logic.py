"""Logical constraints over bits: against brute force, known values, and plain torch."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured.sparsemap.active_set import solve_plain
from fewfold.structured.sparsemap.sparsemap import sparsemap, sparsemap_solution, sparsemap_support
from fewfold.structured.structures.bit_polytopes import ClosedForm
from fewfold.structured.structures.logic import (
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Logic,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)  # fmt: skip
from fewfold.structured.structures.nearest import nearest_linear

from .factors import draw

LOGIC = [Xor(), AtMostOne(), Or(), Imply(), XorOut(), OrOut(), AndOut()]
# what comes out for three inputs, to nine digits, from a generic quadratic solver
KNOWN = {
    (0.8, 0.7, -0.2): {
        "Xor": (0.55, 0.45, 0.0), "AtMostOne": (0.55, 0.45, 0.0), "Or": (0.8, 0.7, 0.0),
        "OrOut": (13 / 30, 13 / 30, 13 / 30), "AndOut": (17 / 30, 14 / 30, 1 / 30),
        "XorOut": (7 / 30, 4 / 30, 11 / 30), "Imply": (17 / 30, 14 / 30, 1 / 30),
    },
    (0.2, 0.3, -0.4): {
        "Xor": (0.45, 0.55, 0.0), "AtMostOne": (0.2, 0.3, 0.0), "Or": (0.45, 0.55, 0.0),
        "OrOut": (1 / 30, 1 / 30, 1 / 30), "AndOut": (0.2, 0.3, 0.0), "XorOut": (0.0, 0.0, 0.0),
        "Imply": (0.2, 0.3, 0.0),
    },
    (0.9, 0.2, 0.6): {
        "Xor": (0.65, 0.0, 0.35), "AtMostOne": (0.65, 0.0, 0.35), "Or": (0.9, 0.2, 0.6),
        "OrOut": (0.75, 0.2, 0.75), "AndOut": (0.9, 0.4, 0.4), "XorOut": (22 / 30, 1 / 30, 23 / 30),
        "Imply": (0.9, 0.2, 0.6),
    },
}  # fmt: skip


def name(structure: ClosedForm) -> str:
    return type(structure).__name__


def by_enumeration(atoms: Tensor, y: Tensor, w: Tensor, extra: Tensor) -> Tensor:
    """The mix of atoms nearest to y in the norm of w, less additional scores, by an active set."""
    scale = w.sqrt()
    scaled = atoms * scale

    def oracle(left: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = (left @ scaled.T + extra).argmax(1)
        return scaled[best], extra[best], torch.ones(len(left), dtype=torch.bool)

    found = solve_plain((y * scale)[None], oracle, 10_000, 1e-14)[0]
    return torch.from_numpy(found.weights @ found.atoms) / scale


@pytest.mark.parametrize("structure", LOGIC, ids=name)
@pytest.mark.parametrize("scores", KNOWN)
def test_known_values(structure: Logic, scores: tuple[float, ...]) -> None:
    found = sparsemap(torch.tensor(scores, dtype=torch.float64), structure)
    wanted = torch.tensor(KNOWN[scores][name(structure)], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("structure", LOGIC, ids=name)
@pytest.mark.parametrize("bits", [2, 3, 5])
def test_nearest_is_the_best_mix_of_all_structures(structure: Logic, bits: int) -> None:
    atoms = structure.enumerate(torch.Size([bits])).double()
    assert len(atoms) == structure.count(torch.Size([bits]))
    y, w = draw(bits, 30, bits), draw(bits + 1, 30, bits).exp()
    z, _ = structure.nearest(y, w)
    for i in range(len(y)):
        wanted = by_enumeration(atoms, y[i], w[i], torch.zeros(len(atoms), dtype=torch.float64))
        torch.testing.assert_close(z[i], wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("score", [1.3, 0.4, 0.0, -0.4, -1.3])
def test_pair_is_the_best_mix_of_four(score: float) -> None:
    atoms = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)), dtype=torch.float64)
    y, w = draw(1, 40, 2), draw(2, 40, 2).exp()
    pair = Pair(torch.full((40,), score, dtype=torch.float64))
    z, _ = pair.nearest(y, w)
    for i in range(len(y)):
        wanted = by_enumeration(atoms, y[i], w[i], score * atoms.prod(1))
        torch.testing.assert_close(z[i], wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("structure", [*LOGIC, Knapsack([0.5, 2.0, 1.0, 0.0], 1.2)], ids=name)
def test_face_is_the_derivative(structure: ClosedForm) -> None:
    y, w, v = draw(3, 60, 4), draw(4, 60, 4).exp(), draw(5, 60, 4)
    step = 1e-6
    moved = structure.nearest(y + step * v, w)[0] - structure.nearest(y - step * v, w)[0]
    _, face = structure.nearest(y, w)
    torch.testing.assert_close(face.push(v), moved / (2 * step), atol=1e-7, rtol=0)


def test_knapsack_meets_its_conditions() -> None:
    """z = clip(y - x c / w), with x > 0 only where the budget is spent."""
    y, w = draw(6, 200, 5), draw(7, 200, 5).exp()
    costs = torch.tensor([0.3, 1.0, 2.0, 0.7, 1.5], dtype=torch.float64)
    z, face = nearest_linear(y, w, costs.expand_as(y), y.new_full((200,), 1.5), False)
    spent = z @ costs
    assert (spent <= 1.5 + 1e-12).all()
    tight = (y.clamp(0, 1) @ costs) > 1.5
    assert 0 < tight.sum() < 200
    torch.testing.assert_close(z[~tight], y.clamp(0, 1)[~tight])
    torch.testing.assert_close(spent[tight], torch.full_like(spent[tight], 1.5))
    price = torch.where(face.free, (y - z) * w / costs, math.nan)[tight]
    spread = price.nan_to_num(-9).amax(1) - price.nan_to_num(99).amin(1)
    assert (spread[face.free[tight].any(1)].abs() < 1e-9).all()
    assert (price.nan_to_num(1.0) > 0).all()


@pytest.mark.native
@pytest.mark.parametrize("structure", [*LOGIC, Knapsack([0.5, 2.0, 1.0, 0.0] * 10, 1.2)], ids=name)
def test_native_is_plain(structure: ClosedForm) -> None:
    if not _native.enabled():
        pytest.skip("no kernels")
    scores = (
        draw(15, 300, 40) * torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)[:, None, None]
    )
    scores = scores.flatten(0, 1)
    scores[draw(16, 900, 40) > 1.5] = -math.inf
    scores[::7] = scores[::7, :1]  # ties
    found = sparsemap(scores, structure)
    with _native.disabled():
        plain = sparsemap(scores, structure)
    torch.testing.assert_close(found, plain, atol=1e-11, rtol=0)


def test_knapsack_has_no_structures() -> None:
    knapsack = Knapsack([1.0, 2.0], 1.5)
    assert sparsemap(torch.tensor([0.9, 0.9]), knapsack).tolist() == pytest.approx([0.66, 0.42])
    with pytest.raises(NotImplementedError, match="may be fractional"):
        knapsack.argmax(torch.zeros(2))
    with pytest.raises(ValueError, match="2 bits"):
        sparsemap(torch.zeros(3), knapsack)
    with pytest.raises(ValueError, match="costs"):
        Knapsack([-1.0], 1.0)


@pytest.mark.parametrize("structure", LOGIC, ids=name)
def test_argmax_is_the_best_of_all(structure: Logic) -> None:
    scores = draw(8, 200, 4)
    atoms = structure.enumerate(torch.Size([4])).double()
    best = structure.argmax(scores)
    torch.testing.assert_close((best * scores).sum(1), (scores @ atoms.T).amax(1))
    assert all((atoms == one).all(1).any() for one in best)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("structure", [*LOGIC, Pair(torch.tensor(0.7)), Pair(torch.tensor(-0.7))])
def test_the_support_makes_the_marginals(structure: ClosedForm, plain: bool) -> None:
    size = 2 if isinstance(structure, Pair) else 4
    scores = draw(9, 30, size)
    if plain:
        with _native.disabled():
            solution = sparsemap_solution(scores, structure)
    else:
        solution = sparsemap_solution(scores, structure)
    assert solution.converged.all()
    torch.testing.assert_close(solution.marginals, sparsemap(scores, structure))
    atoms = structure.enumerate(torch.Size([size])).double()
    assert all((atoms == one).all(1).any() for one in solution.support.atoms)


@pytest.mark.parametrize("structure", [*LOGIC, Knapsack([0.5, 2.0, 1.0], 1.2)], ids=name)
def test_gradients(structure: ClosedForm) -> None:
    scores = draw(10, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: sparsemap(t, structure), (scores,))
    assert torch.autograd.gradgradcheck(lambda t: sparsemap(t, structure), (scores,))


def test_gradient_of_a_pair_score() -> None:
    scores, edge = draw(11, 6, 2).requires_grad_(), draw(12, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda t, e: sparsemap(t, Pair(e)), (scores, edge))


@pytest.mark.parametrize("structure", LOGIC, ids=name)
def test_a_bit_that_cannot_be_on(structure: Logic) -> None:
    """-inf holds a bit at 0, whatever the rule makes of that."""
    scores = draw(13, 40, 4)
    scores[:, 1] = -math.inf
    atoms = structure.enumerate(torch.Size([4])).double()
    left = atoms[atoms[:, 1] == 0]
    finite = scores.masked_fill(scores == -math.inf, 0.0)
    z = sparsemap(scores, structure)
    one = torch.ones(4, dtype=torch.float64)
    for i in range(len(scores)):
        wanted = by_enumeration(left, finite[i], one, torch.zeros(len(left), dtype=torch.float64))
        torch.testing.assert_close(z[i], wanted, atol=1e-9, rtol=0)
    best = structure.argmax(scores)
    torch.testing.assert_close((best * finite).sum(1), (finite @ left.T).amax(1))
    support = sparsemap_support(scores, structure)
    assert (support.atoms[:, 1] == 0).all()


@pytest.mark.parametrize("structure", LOGIC, ids=name)
def test_odd_rows(structure: Logic) -> None:
    """Nothing to choose from is the empty structure; NaN stays in its row."""
    scores = draw(14, 4, 3)
    scores[0] = -math.inf
    scores[1, 2] = math.nan
    found = sparsemap(scores, structure)
    assert (found[0] == 0).all()
    assert found[1].isnan().all()
    torch.testing.assert_close(found[2:], sparsemap(scores[2:], structure))
    assert (structure.argmax(scores[[0]]) == 0).all()


@pytest.mark.parametrize("structure", LOGIC, ids=name)
def test_equal_scores(structure: Logic) -> None:
    scores = torch.zeros(2, 3, dtype=torch.float64)
    scores[1] = 5.0
    solution = sparsemap_solution(scores, structure)
    assert solution.converged.all()
    torch.testing.assert_close(solution.marginals, sparsemap(scores, structure))


def test_one_bit_is_too_few() -> None:
    with pytest.raises(ValueError, match="at least 2 bits"):
        sparsemap(torch.zeros(1), Imply())
    with pytest.raises(ValueError, match="2 bits"):
        sparsemap(torch.zeros(3), Pair(torch.tensor(0.1)))
    assert sparsemap(torch.tensor([-3.0]), Xor()).tolist() == [1.0]


@pytest.mark.parametrize("structure", [Xor(), AtMostOne(), XorOut(), Or(), Imply()], ids=name)
def test_large_scores_lose_nothing(structure: Logic, path: str) -> None:
    """Where the condition is tight, a step across it changes nothing, however far it goes."""
    scores = draw(16, 100, 4).mul(4).round().div(4)  # quarters, which 2 ** 50 can be added to
    row = structure.constraint(4)
    assert row is not None
    far = scores + 2.0**20 * row.costs
    near = sparsemap(far, structure)
    torch.testing.assert_close(near @ row.costs, torch.full((100,), row.bound).double())
    found = sparsemap(scores + 2.0**50 * row.costs, structure)
    torch.testing.assert_close(found, near, atol=1e-9, rtol=0)


@pytest.mark.parametrize("structure", [*LOGIC, Knapsack([1.0, 2.0, 1.0, 0.5], 1.0)], ids=name)
@pytest.mark.parametrize("size", [1e17, 1e40, 1e140])
def test_huge_scores_stay_on_the_polytope(structure: ClosedForm, size: float, path: str) -> None:
    """Some of them tied, so that the answer is between two structures."""
    scores = size * draw(17, 200, 4)
    scores[:, 1] = scores[:, 0]
    scores[::2, 2] = -scores[::2, 3]
    found = sparsemap(scores, structure)
    assert ((found >= 0) & (found <= 1)).all()
    row = structure.constraint(4)
    if row is None:  # the last bit is the "or", or the "and", of the others
        bits = 1 - found if isinstance(structure, AndOut) else found
        assert (bits[:, :-1] <= bits[:, -1:]).all()
        assert (bits[:, :-1].sum(1) >= bits[:, -1] - 1e-12).all()
        return
    total = found @ row.costs
    assert (total <= row.bound + 1e-12).all()
    if row.equal:
        assert (total >= row.bound - 1e-12).all()


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_pair_score_that_is_no_number(odd: float, path: str) -> None:
    scores, pair = draw(18, 2, 2), Pair(torch.tensor([0.3, odd], dtype=torch.float64))
    for found in (sparsemap(scores, pair), pair.argmax(scores)):
        assert found[1].isnan().all()
        assert found[0].isfinite().all()
    assert sparsemap_solution(scores, pair).converged.tolist() == [True, False]


def test_scores_of_a_pair_are_numbers() -> None:
    assert Pair(0.4).score.dtype == torch.float64
    for score in (np.zeros(3), [0.1, 0.2], "0.3", None, torch.tensor([1])):
        with pytest.raises(TypeError, match="score must be a number or a floating-point tensor"):
            Pair(score)


def test_the_nearest_point_with_bits_held_at_one() -> None:
    """As if they were not there, and the bound less by what they cost."""
    generator = torch.Generator().manual_seed(0)
    y = 2 * torch.randn(50, 5, dtype=torch.float64, generator=generator)
    y[:, 0] = math.inf
    w = 1 / torch.randint(1, 4, (50, 5), generator=generator).double()
    costs = 0.1 + torch.rand(50, 5, dtype=torch.float64, generator=generator)
    bound = costs[:, 0] + 0.5 * costs[:, 1:].sum(1)
    z, _ = nearest_linear(y, w, costs, bound, True)
    rest, _ = nearest_linear(y[:, 1:], w[:, 1:], costs[:, 1:], bound - costs[:, 0], True)
    torch.testing.assert_close((costs * z).sum(1), bound)
    torch.testing.assert_close(z[:, 1:], rest)
