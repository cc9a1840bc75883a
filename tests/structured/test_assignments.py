"""Assignments and matchings, against enumeration at small sizes and certificates at large ones."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from fewfold.structured.structures.assignment import Assignment, Matching, Pairing

EXACT = {"rtol": 0, "atol": 1e-9}
BOTH = [(Assignment(), shape) for shape in [(1, 1), (1, 3), (3, 3), (2, 4)]] + [
    (Matching(), shape) for shape in [(1, 1), (3, 3), (2, 3), (4, 2)]
]
each = pytest.mark.parametrize(("structure", "shape"), BOTH, ids=str)


def drawn(shape: tuple[int, ...], seed: int, kind: str = "normal") -> Tensor:
    """Scores of a kind that is easy, tied, or has entries that are not allowed."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "whole":
        return scores.round()
    if kind == "equal":
        return torch.full(shape, 0.3, dtype=torch.float64)
    if kind == "large":
        return 1e5 * scores + 1e6
    if kind == "masked":
        return scores.masked_fill(torch.rand(shape, generator=generator) < 0.15, -math.inf)
    if kind == "line":
        places = torch.rand(shape, generator=generator, dtype=torch.float64)
        return -4 * (places[..., :1] - places[..., :1, :]).abs()
    return scores


def wide_tensor(numbers: list[Any]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


KINDS = ["normal", "whole", "equal", "large", "masked", "line"]


def feasible(every: Tensor, scores: Tensor) -> Tensor:
    """The structures that use no forbidden pair, and every row that has a pair left."""
    return ~(every & (scores == -math.inf)).flatten(1).any(1)


def values(every: Tensor, scores: Tensor) -> Tensor:
    return torch.where(every, scores, 0.0).flatten(1).sum(1)


def certify(scores: Tensor, marginals: Tensor, structure: Pairing, tolerance: float) -> None:
    """Marginals are a mix of structures, and no structure would improve it."""
    assert (marginals >= 0).all()
    assert (marginals[scores == -math.inf] == 0).all()
    assert (marginals.sum(-2) <= 1 + 1e-10).all()
    rows = marginals.sum(-1)
    assert (rows <= 1 + 1e-10).all()
    if not structure.rows_optional:
        present = (scores > -math.inf).any(-1)
        torch.testing.assert_close(rows, present.to(rows), **EXACT)
    left = scores - marginals
    best = structure.argmax(left)
    gain = torch.where(best > 0, left, 0.0).sum((-2, -1))
    own = torch.where(marginals > 0, marginals * left, 0.0).sum((-2, -1))
    size = 1 + gain.abs()
    assert ((gain - own) / size).max() <= tolerance
    assert ((gain - own) / size).min() >= -tolerance


@each
def test_all_of_them(structure, shape):
    every = structure.enumerate(torch.Size(shape))
    assert len(every) == structure.count(torch.Size(shape))
    assert len(every.flatten(1).unique(dim=0)) == len(every)
    assert (every.sum(1) <= 1).all()
    assert (every.sum(2) <= 1).all()
    assert structure.rows_optional or (every.sum(2) == 1).all()


def test_counts():
    assert Assignment().count(torch.Size((4, 4))) == 24
    assert Assignment().count(torch.Size((2, 5))) == 20
    assert Matching().count(torch.Size((2, 2))) == 7
    assert Matching().count(torch.Size((3, 3))) == 34


@each
@pytest.mark.parametrize("kind", ["normal", "whole", "equal", "masked"])
def test_the_best_and_the_k_best(structure, shape, kind, path):
    every = structure.enumerate(torch.Size(shape))
    for seed in range(3):
        scores = drawn(shape, seed, kind)
        if not (scores > -math.inf).any(1).all():
            continue
        allowed = every[feasible(every, scores)]
        if not len(allowed):
            with pytest.raises(ValueError, match="no structure"):
                structure.argmax(scores)
            assert not structure.k_best(scores, 3).valid.any()
            continue
        expected = values(allowed, scores).sort(descending=True).values
        best = structure.argmax(scores)
        assert (allowed == best.bool()).flatten(1).all(1).any()
        torch.testing.assert_close(values(best.bool()[None], scores), expected[:1], **EXACT)
        k = min(len(allowed) + 2, 9)
        found = structure.k_best(scores, k)
        count = min(k, len(allowed))
        assert found.valid.tolist() == [True] * count + [False] * (k - count)
        torch.testing.assert_close(found.scores[:count], expected[:count], **EXACT)
        torch.testing.assert_close(
            values(found.structures[:count], scores), expected[:count], **EXACT
        )
        assert (found.scores[count:] == -math.inf).all()
        assert not found.structures[count:].any()
        assert len(found.structures[:count].flatten(1).unique(dim=0)) == count


@each
@pytest.mark.parametrize("kind", ["normal", "whole", "equal", "masked"])
def test_marginals_are_optimal(structure, shape, kind, path):
    """No structure of the list of all is better than the mix."""
    every = structure.enumerate(torch.Size(shape))
    for seed in range(2):
        scores = drawn(shape, seed, kind)
        if not (scores > -math.inf).any(1).all() or not feasible(every, scores).any():
            continue
        for marginals in (
            ff.sparsemap(scores, structure),
            ff.structured.sparsemap_solution(scores, structure).marginals,
        ):
            left = scores - marginals
            allowed = every[feasible(every, scores)]
            own = torch.where(marginals > 0, marginals * left, 0.0).sum()
            torch.testing.assert_close(values(allowed, left).max(), own, **EXACT)
            assert (marginals.sum(0) <= 1 + 1e-12).all()
            assert structure.rows_optional or ((marginals.sum(1) - 1).abs() <= 1e-12).all()


def test_gold_values_and_their_derivatives(path):
    square = wide_tensor([[1.0, 0.2, -0.3], [0.6, 0.5, 0.1], [0.0, 0.4, 0.3]])
    wide = wide_tensor([[1.2, 0.3, 0.1, -0.2], [0.9, 0.8, -0.4, 0.0]])
    cases = [
        (square, [[0.75, 5 / 24, 1 / 24], [0.25, 0.40833333333, 0.34166666667],
                  [0, 0.38333333333, 0.61666666667]], 0.765416667,
         [0.2, -0.1, 0.4, 0.3, -0.5, 0.1, 0.6, -0.2, 0.05],
         [-0.15, 0.05, 0.1, 0.15, -0.15, 0.0, 0.0, 0.1, -0.1]),
        (wide, [[0.685714286, 0.257142857, 0.057142857, 0.0], [0.314285714, 0.685714286, 0, 0]],
         1.182857143, [0.3, -0.2, 0.5, 0.1, -0.4, 0.2, 0.7, -0.1],
         [0.214285714, -0.457142857, 0.242857143, 0.0, -0.214285714, 0.214285714, 0.0, 0.0]),
    ]  # fmt: skip
    for scores, marginals, objective, change, moved in cases:
        expected = wide_tensor(marginals)
        found = ff.sparsemap(scores, Assignment())
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-9)
        solution = ff.structured.sparsemap_solution(scores, Assignment())
        assert abs(float(solution.objective) - objective) < 2e-9
        way = wide_tensor(change).view_as(scores)
        _, push = torch.func.jvp(lambda s: ff.sparsemap(s, Assignment()), (scores,), (way,))
        torch.testing.assert_close(push.flatten(), wide_tensor(moved), rtol=0, atol=2e-9)


@pytest.mark.native
@pytest.mark.parametrize("structure", [Assignment(), Matching()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_newton_reaches_the_end_at_all_sizes(structure, kind):
    """Ties, points on a line and large scores put many solutions on kinks."""
    if not _native.enabled():
        pytest.skip("no kernels")
    for shape in [(6, 6), (20, 20), (15, 20), (30, 31), (12, 50), (40, 40)]:
        scores = drawn((40, *shape), 3, kind)
        found = structure.project(scores)
        assert found is not None
        marginals, gap, turns, converged = found
        assert converged.all()
        assert turns.max() < 150
        assert (gap <= 1e-8 * (1 + scores.nan_to_num(neginf=0).abs().amax((1, 2)))).all()
        certify(scores, marginals, structure, 1e-10)


@pytest.mark.native
def test_three_hundred_by_three_hundred():
    if not _native.enabled():
        pytest.skip("no kernels")
    scores = drawn((300, 300), 0).requires_grad_()
    marginals = ff.sparsemap(scores, Assignment())
    certify(scores.detach(), marginals.detach(), Assignment(), 1e-10)
    way = drawn((300, 300), 1)
    (pulled,) = torch.autograd.grad((marginals * way).sum(), scores)
    positive = marginals.detach() > 0
    assert (pulled[~positive] == 0).all()
    assert pulled.sum(0).abs().max() < 1e-9
    assert pulled.sum(1).abs().max() < 1e-9
    # an orthogonal projection: what it takes away is orthogonal to what is left
    assert abs(float((pulled * (way - pulled)).sum())) < 1e-7


@pytest.mark.parametrize(
    ("structure", "shape"),
    [(Assignment(), (5, 5)), (Assignment(), (4, 6)), (Matching(), (5, 4))],
    ids=str,
)
def test_gradients(structure, shape, path):
    instances, shape = (3, shape) if path == "native" else (1, (shape[0] - 2, shape[1] - 1))
    scores = drawn((instances, *shape), 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: ff.sparsemap(s, structure), (scores,), atol=1e-6)
    if path == "native":
        assert torch.autograd.gradgradcheck(
            lambda s: ff.sparsemap(s, structure), (scores,), fast_mode=True
        )


@pytest.mark.native
@pytest.mark.parametrize("shape", [(7, 7), (5, 9)], ids=str)
@pytest.mark.parametrize("structure", [Assignment(), Matching()], ids=str)
def test_native_and_plain_agree(structure, shape):
    scores = drawn((6, *shape), 7, "masked").requires_grad_()
    way = drawn((6, *shape), 8)
    answers = []
    for plain in (False, True):
        with _native.disabled() if plain else torch.enable_grad():
            marginals = ff.sparsemap(scores, structure)
            (pulled,) = torch.autograd.grad((marginals * way).sum(), scores)
            best = structure.argmax(scores)
            ranked = structure.k_best(scores, 20)
        answers.append((marginals, pulled, best, ranked.scores, ranked.structures))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


@pytest.mark.parametrize("structure", [Assignment(), Matching()], ids=str)
@pytest.mark.parametrize("kind", ["normal", "whole", "equal", "line"])
def test_the_support_is_a_mix_of_structures(structure, kind, path):
    shape = (3, 9, 9) if path == "native" else (3, 4, 4)
    scores = drawn(shape, 9, kind)
    solution = ff.structured.sparsemap_solution(scores, structure)
    assert solution.converged.all()
    atoms, weights = solution.support.atoms, solution.support.weights
    assert (weights > 0).all()
    assert ((atoms == 0) | (atoms == 1)).all()
    assert (atoms.sum(1) <= 1).all()
    assert structure.rows_optional or (atoms.sum(2) == 1).all()
    mean = solution.support.reduce(atoms).view_as(scores)
    torch.testing.assert_close(mean, ff.sparsemap(scores, structure), rtol=0, atol=1e-8)
    sizes = torch.bincount(solution.support.row, minlength=3)
    assert (
        sizes <= (scores[0].numel() if structure.rows_optional else (shape[1] - 1) ** 2) + 1
    ).all()


@pytest.mark.parametrize("structure", [Assignment(), Matching()], ids=str)
def test_a_masked_instance_is_a_smaller_one(structure, path):
    scores = drawn((4, 6, 7), 11)
    mask = torch.ones(4, 6, 7, dtype=torch.bool)
    sizes = [(6, 7), (4, 4), (2, 5), (1, 1)]
    for row, (rows, columns) in enumerate(sizes):
        mask[row, rows:] = False
        mask[row, :, columns:] = False
    found, best = ff.sparsemap(scores, structure, mask=mask), structure.argmax(scores, mask=mask)
    ranked = structure.k_best(scores, 4, mask=mask)
    for row, (rows, columns) in enumerate(sizes):
        small = scores[row, :rows, :columns]
        alone = torch.zeros_like(scores[row])
        alone[:rows, :columns] = ff.sparsemap(small, structure)
        torch.testing.assert_close(found[row], alone, **EXACT)
        alone[:rows, :columns] = structure.argmax(small)
        assert (best[row] == alone).all()
        own = structure.k_best(small, 4)
        torch.testing.assert_close(ranked.scores[row], own.scores, **EXACT)
    nothing = ff.sparsemap(scores, structure, mask=torch.zeros_like(mask))
    assert (nothing == 0).all()


def test_equal_scores_share_equally(path):
    for value in (0.0, -3.0, 1e6):
        scores = torch.full((5, 5), value, dtype=torch.float64)
        found = ff.sparsemap(scores, Assignment())
        torch.testing.assert_close(found, torch.full_like(scores, 0.2), **EXACT)
        wide = ff.sparsemap(torch.full((2, 5), value, dtype=torch.float64), Assignment())
        torch.testing.assert_close(wide, torch.full_like(wide, 0.2), **EXACT)


def test_matching_turned_is_turned(path):
    scores = drawn((3, 4, 6), 12)
    found, turned = ff.sparsemap(scores, Matching()), ff.sparsemap(scores.mT, Matching())
    torch.testing.assert_close(found.mT, turned, **EXACT)
    assert (found.sum((1, 2)) > 0).all()
    assert (ff.sparsemap(-scores.abs(), Matching()) == 0).all()


def test_no_assignment_at_all_is_an_error(path):
    scores = drawn((2, 3, 3), 13)
    scores[1, :2, 1:] = -math.inf  # two rows that want one column
    for ask in (
        lambda: ff.sparsemap(scores, Assignment()),
        lambda: ff.sparsemap_support(scores, Assignment()),
        lambda: Assignment().argmax(scores),
    ):
        with pytest.raises(ValueError, match=r"instance 1 has no structure of Assignment\(\)"):
            ask()
    assert ff.sparsemap(scores, Matching()).isfinite().all()


@pytest.mark.parametrize("structure", [Assignment(), Matching()], ids=str)
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_an_odd_instance_stays_alone(structure, odd, path):
    scores = drawn((3, 4, 5), 14)
    expected, best = ff.sparsemap(scores, structure), structure.argmax(scores)
    ranked = structure.k_best(scores, 3)
    scores[1, 2, 3] = odd
    found = ff.sparsemap(scores, structure)
    assert found[1].isnan().all()
    assert structure.argmax(scores)[1].isnan().all()
    assert not structure.k_best(scores, 3).valid[1].any()
    others = torch.tensor([0, 2])
    torch.testing.assert_close(found[others], expected[others], **EXACT)
    assert (structure.argmax(scores)[others] == best[others]).all()
    again = structure.k_best(scores, 3).scores[others]
    torch.testing.assert_close(again, ranked.scores[others], **EXACT)


def test_what_is_not_offered_says_why():
    with pytest.raises(ValueError, match=r"got \(3, 2\); write scores.mT, or use Matching"):
        ff.sparsemap(torch.zeros(3, 2), Assignment())
    with pytest.raises(ValueError, match=r"at least one row and one column, got \(0, 2\)"):
        ff.sparsemap(torch.zeros(0, 2), Assignment())
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        ff.sparsemap(torch.zeros(3), Matching())
    with pytest.raises(NotImplementedError, match="#P-hard"):
        Assignment().log_partition(torch.zeros(2, 2))
    with pytest.raises(NotImplementedError, match="#P-hard"):
        Matching().sample(torch.zeros(2, 2), 3)


def test_what_is_zero_is_exactly_zero() -> None:
    x = 3 * torch.randn(200, 6, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    marginals = ff.sparsemap(x, Assignment())
    assert not ((marginals > 0) & (marginals < 1e-10)).any()
    assert ((marginals.sum(1) - 1).abs() < 1e-12).all()
