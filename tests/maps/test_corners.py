"""Corner cases of every map: fully masked, one entry, no rows, infinities, NaN, ties."""

import pytest
import torch
from torch import Tensor

import fewfold as ff

from .cases import CASES, Case, every_map, random_scores

pytestmark = pytest.mark.usefixtures("path")

INF, NAN = torch.inf, torch.nan


def gradient(case: Case, scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The gradient of a generic linear function of the answer."""
    leaf = scores.detach().clone().requires_grad_()
    probs = case(leaf, mask=mask)
    weights = random_scores(*probs.shape, seed=99).to(probs)
    (answer,) = torch.autograd.grad((probs * weights).sum(), leaf)
    return answer


@every_map
@pytest.mark.parametrize("n", [1, 5, 40])
def test_a_row_with_nothing_kept_gives_zeros_and_no_gradient(case, n):
    n = max(n, case.smallest)
    for dtype in (torch.float32, torch.float64):
        scores = random_scores(3, n, dtype=dtype)
        alone = case(scores)
        mask = torch.ones(3, n, dtype=torch.bool)
        mask[1] = False
        for got in (
            case(scores, mask=mask),
            case(scores.masked_fill(~mask, -INF)),
        ):
            assert (got[1] == 0).all()
            torch.testing.assert_close(got[0], alone[0], atol=1e-6, rtol=0)
            torch.testing.assert_close(got[2], alone[2], atol=1e-6, rtol=0)
        for slope in (
            gradient(case, scores, mask),
            gradient(case, scores.masked_fill(~mask, -INF)),
        ):
            assert (slope[1] == 0).all()
            assert slope.isfinite().all()
    assert (case(random_scores(n), mask=torch.zeros(n, dtype=torch.bool)) == 0).all()


@every_map
def test_masked_entries_get_no_gradient(case):
    scores = random_scores(6, 9)
    mask = torch.ones(6, 9, dtype=torch.bool)
    mask[:, 3:6] = False
    for slope in (gradient(case, scores, mask), gradient(case, scores.masked_fill(~mask, -INF))):
        assert (slope[:, 3:6] == 0).all()
        assert slope.isfinite().all()
    # and what is behind the mask does not leak into the others
    poisoned = scores.masked_fill(~mask, NAN)
    torch.testing.assert_close(
        gradient(case, poisoned, mask), gradient(case, scores, mask), atol=1e-12, rtol=0
    )


@every_map
def test_a_row_of_one_entry_is_certain(case):
    if case.smallest > 1 or case.at_most:
        pytest.skip("needs more than one entry")
    for value in (0.0, -7.5, 1e6, -1e6, 1e-30):
        scores = torch.full((4, 1), value, dtype=torch.float32)
        assert (case(scores) == 1).all()
        assert (gradient(case, scores) == 0).all()


@every_map
def test_no_rows(case):
    for shape, dim in (((0, 5), -1), ((2, 0, 5), -1), ((5, 0), 0), ((0, 5, 3), 1)):
        scores = torch.zeros(shape, requires_grad=True)
        probs = case(scores, dim=dim, mask=torch.ones(shape, dtype=torch.bool))
        assert probs.shape == scores.shape
        assert probs.dtype == scores.dtype
        probs.sum().backward()
        assert scores.grad.shape == scores.shape


def test_no_entries():
    empty = [
        (ff.softmax, {}),
        (ff.sparsemax, {}),
        (ff.entmax, {"alpha": 1.5}),
        (ff.entmax, {"alpha": 1.25}),
        (ff.normmax, {"alpha": 2.0}),
        (ff.ksubset, {"k": 0}),
        (ff.fusedmax, {}),
        (ff.oscarmax, {}),
        (ff.constrained_sparsemax, {"upper": torch.ones(0)}),
        (ff.maps.constrained_softmax, {"upper": torch.ones(0)}),
    ]
    for function, parameters in empty:
        scores = torch.zeros(3, 0, requires_grad=True)
        probs = function(scores, **parameters)
        assert probs.shape == (3, 0)
        probs.sum().backward()
        assert scores.grad.shape == (3, 0)


@every_map
def test_plus_infinity_takes_all_it_may(case):
    for dtype in (torch.float32, torch.float64):
        scores = random_scores(5, 7, dtype=dtype)
        scores[0, 2] = INF
        scores[1, 1:3] = INF
        scores[2, [0, 3, 4, 6]] = INF
        scores[3, 1], scores[3, 4] = INF, -INF
        probs = case(scores)
        expected = case.expected(scores)
        if case.capped:  # which of four equal entries are the three is not said
            probs, expected = probs.sort(-1).values, expected.sort(-1).values
        torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("function", [ff.sparsemax, ff.entmax, ff.normmax])
def test_plus_infinity_in_a_wide_row(function):
    scores = random_scores(2, 3000, dtype=torch.float32)
    scores[0, 2999] = scores[1, [5, 1500]] = INF
    expected = torch.zeros_like(scores)
    expected[0, 2999], expected[1, [5, 1500]] = 1, 0.5
    torch.testing.assert_close(function(scores), expected, atol=1e-6, rtol=0)


@every_map
def test_plus_infinity_has_no_gradient_and_no_nan(case):
    scores = random_scores(4, 7)
    clean = gradient(case, scores)
    scores[1, 2] = INF
    scores[2, 0:3] = INF
    slope = gradient(case, scores)
    assert slope.isfinite().all()
    torch.testing.assert_close(slope[0], clean[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(slope[3], clean[3], atol=1e-12, rtol=0)
    if case.total == 1 and not case.bounded:
        assert (slope[1:3] == 0).all()
    else:  # the others still share what is left, the infinite ones cannot move
        assert slope[1, 2] == 0
        assert (slope[2, 0:3] == 0).all()


@every_map
def test_nan_stays_in_its_row(case):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scores = random_scores(5, 9, dtype=dtype)
        clean, slope = case(scores), gradient(case, scores)
        bad = scores.clone()
        bad[1, 4] = NAN
        bad[3, 0], bad[3, 1], bad[3, 2] = NAN, INF, -INF
        probs = case(bad)
        assert probs[[1, 3]].isnan().all()
        torch.testing.assert_close(probs[[0, 2, 4]], clean[[0, 2, 4]], atol=1e-6, rtol=0)
        torch.testing.assert_close(
            gradient(case, bad)[[0, 2, 4]], slope[[0, 2, 4]], atol=1e-6, rtol=1e-6
        )


@every_map
def test_ties_and_equal_rows_agree_with_the_twin(case):
    rows = [
        [0.0] * 6,
        [1e6] * 6,
        [-3.5] * 6,
        [1.0, 1.0, 0.0, 0.0, -1.0, -1.0],
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.5, 0.5, 0.5, -0.5],
        [2.0, 2.0, 2.0, 1.0, 1.0, 1.0],
        [1e-6, 0.0, 0.0, 0.0, 0.0, 1e-6],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [0.25, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-9)):
        scores = torch.tensor(rows, dtype=dtype)
        probs, expected = case(scores).double(), case.expected(scores)
        if case.capped:
            probs, expected = probs.sort(-1).values, expected.sort(-1).values
        torch.testing.assert_close(probs, expected, atol=tolerance, rtol=0)
        assert gradient(case, scores).isfinite().all()


@every_map
def test_a_score_exactly_on_the_threshold_gets_zero(case):
    """The margin is reached exactly: one entry takes everything, the next is at the threshold."""
    margins = {
        "sparsemax": 1.0,
        "entmax(1.25)": 4.0,
        "entmax(1.5)": 2.0,
        "entmax(2)": 1.0,
        "entmax(3)": 0.5,
        "entmax(5)": 0.25,
        "normmax(1.5)": 1.0,
        "normmax(2)": 1.0,
        "normmax(5)": 1.0,
        "ksubset(1)": 1.0,
        "topk_sparsemax(3)": 1.0,
    }
    if case.name not in margins:
        pytest.skip("has no margin")
    for dtype in (torch.float32, torch.float64):
        for offset in (0.0, 4.0, -1024.0):
            scores = torch.tensor([[margins[case.name], 0.0, 0.0, -1.0]], dtype=dtype) + offset
            vertex = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=dtype)
            torch.testing.assert_close(case(scores), vertex, atol=1e-6, rtol=0)
            assert gradient(case, scores).isfinite().all()


@every_map
def test_huge_and_tiny_scores(case):
    """Answers stay on the polytope and gradients finite up to the end of the float range."""
    for scale in (1e-40, 1e-30, 1e30, 3e38):
        scores = scale * random_scores(6, 8, dtype=torch.float32).clamp(-1, 1)
        probs = case(scores)
        assert probs.isfinite().all()
        if not case.at_most:
            total = torch.full((6,), float(case.total))
            torch.testing.assert_close(probs.sum(-1), total, atol=3e-6, rtol=0)
        assert gradient(case, scores).isfinite().all()


def test_far_scores_do_not_blur_the_near_ones():
    """One entry is saturated far above; the digits of the others must survive."""
    upper = torch.tensor([0.5, 0.9, 0.9])
    scores = torch.tensor([[1e6, 0.3, 0.2]])
    expected = torch.tensor([[1.0, 0.55, 0.45]])
    torch.testing.assert_close(ff.ksubset(scores, 2), expected, atol=1e-6, rtol=0)
    expected = torch.tensor([[0.5, 0.3, 0.2]])
    torch.testing.assert_close(ff.constrained_sparsemax(scores, upper), expected, atol=1e-6, rtol=0)
    expected = torch.cat([torch.tensor([0.5]), 0.5 * torch.softmax(scores[0, 1:], -1)])[None]
    torch.testing.assert_close(
        ff.maps.constrained_softmax(scores, upper), expected, atol=1e-6, rtol=0
    )
    # and one far below
    scores = torch.tensor([[0.3, 0.2, -1e6]])
    for case in CASES:
        if not case.bounded and case.smallest <= 2:
            near = case(scores)[:, :2]
            torch.testing.assert_close(near, case(scores[:, :2]), atol=1e-6, rtol=0, msg=case.name)
