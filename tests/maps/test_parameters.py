"""alpha and k as numbers, as tensors, one per head, and learned."""

import pytest
import torch
from torch import Tensor

import fewfold as ff

from . import reference
from .cases import random_scores

pytestmark = pytest.mark.usefixtures("path")


def per_row(function, scores: Tensor, values: Tensor) -> Tensor:
    """One call per value with a plain number, for scores (B, H, T, n) and values (H, 1, 1)."""
    parts = [function(scores[:, h], float(values[h])) for h in range(scores.shape[1])]
    return torch.stack(parts, 1)


ALPHAS = torch.tensor([0.6, 1.0, 1.0 + 1e-7, 1.2, 1.5, 2.0, 2.5, 4.0], dtype=torch.float64)
NORMS = torch.tensor([1.1, 1.5, 2.0, 2.7, 5.0], dtype=torch.float64)
SIZES = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.7, 7.0], dtype=torch.float64)
KINDS = [
    pytest.param(ff.entmax, ALPHAS, id="entmax"),
    pytest.param(ff.normmax, NORMS, id="normmax"),
    pytest.param(ff.ksubset, SIZES, id="ksubset"),
]


@pytest.mark.parametrize(("function", "values"), KINDS)
def test_one_value_per_head(function, values):
    scores = random_scores(2, len(values), 3, 7)
    expected = per_row(function, scores, values)
    got = function(scores, values[:, None, None])
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    got = function(scores, values[None, :, None, None].expand(2, -1, 3, 1))
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    along = function(scores.movedim(-1, 1), values[:, None], dim=1).movedim(1, -1)
    torch.testing.assert_close(along, expected, atol=1e-10, rtol=0)
    single = function(scores.float(), values[:, None, None].float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize(("function", "values"), KINDS)
def test_a_number_and_a_tensor_of_it_agree(function, values):
    scores = random_scores(6, 9)
    for value in values:
        torch.testing.assert_close(
            function(scores, value), function(scores, float(value)), atol=1e-11, rtol=0
        )
        column = value.expand(6, 1)
        torch.testing.assert_close(
            function(scores, column), function(scores, float(value)), atol=1e-11, rtol=0
        )


@pytest.mark.parametrize(("function", "values"), KINDS)
def test_a_batch_of_values_is_not_an_outer_product(function, values):
    scores = random_scores(len(values), 8)
    got = function(scores, values[:, None])
    assert got.shape == scores.shape
    for row, value in enumerate(values):
        expected = function(scores[row], float(value))
        torch.testing.assert_close(got[row], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        pytest.param(ff.entmax, [0.7, 1.2, 1.5, 1.8, 2.0, 2.6], id="entmax"),
        pytest.param(ff.normmax, [1.4, 2.0, 2.6], id="normmax"),
        pytest.param(ff.ksubset, [0.4, 1.0, 1.5, 2.3], id="ksubset"),
    ],
)
def test_the_parameter_learns(function, values):
    for value in values:
        # Rows whose support does not change within the step of the check.
        scores = torch.tensor([[0.9, 0.1, 0.55, -2.5], [0.3, 0.2, 0.6, 0.05]]).double()
        scores.requires_grad_()
        learnt = torch.full((2, 1), value, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (scores, learnt))
        assert torch.autograd.gradgradcheck(function, (scores, learnt))
        alone = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a, s=scores: function(s, a), (alone,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_of_alpha_is_continuous_at_one(dtype):
    """Where the general formula is 0/0: compared with differences of the float64 twin."""
    tolerance = {torch.float32: 2e-4, torch.float64: 1e-6}[dtype]
    scores = random_scores(3, 6)
    weights = random_scores(3, 6, seed=1)
    for near in (0.0, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, -1e-9, -1e-5, -1e-4, -1e-3, -1e-2):
        alpha = torch.tensor(1 + near, dtype=dtype, requires_grad=True)
        value = (ff.entmax(scores.to(dtype), alpha) * weights.to(dtype)).sum()
        (got,) = torch.autograd.grad(value, alpha)
        here, step = float(alpha.detach()), 1e-2
        # Richardson: the step is large because the twin itself cancels near one.
        wide, narrow = (
            (weighted(scores, weights, here + h) - weighted(scores, weights, here - h)) / (2 * h)
            for h in (step, step / 2)
        )
        expected = (4 * narrow - wide) / 3
        assert abs(float(got) - expected) < tolerance, (near, float(got), expected)


def weighted(scores: Tensor, weights: Tensor, alpha: float) -> float:
    return float((torch.from_numpy(reference.entmax(scores.numpy(), alpha)) * weights).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_entmax_becomes_softmax(dtype):
    scores = random_scores(5, 40, dtype=dtype)
    soft = torch.softmax(scores, -1)
    assert torch.equal(ff.entmax(scores, 1.0), ff.softmax(scores))
    torch.testing.assert_close(ff.softmax(scores), soft, atol=1e-7, rtol=0)
    for near in (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        for sign in (1, -1):
            probs = ff.entmax(scores, 1 + sign * near)
            # First order in alpha - 1; the slope for scores like these is about 1.
            torch.testing.assert_close(probs, soft, atol=2 * near + 1e-6, rtol=0)
            expected = torch.from_numpy(reference.entmax(scores.double().numpy(), 1 + sign * near))
            if near >= 1e-4:  # below, the twin's own power loses its digits
                torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)


def test_entmax_passes_two_and_goes_to_the_vertex():
    scores = random_scores(5, 12)
    torch.testing.assert_close(ff.entmax(scores, 2.0), ff.sparsemax(scores), atol=1e-12, rtol=0)
    for alpha in (2 - 1e-9, 2 + 1e-9):
        torch.testing.assert_close(
            ff.entmax(scores, alpha), ff.sparsemax(scores), atol=1e-7, rtol=0
        )
    for alpha in (1.5 - 1e-9, 1.5 + 1e-9):
        torch.testing.assert_close(
            ff.entmax(scores, alpha), ff.entmax(scores, 1.5), atol=1e-7, rtol=0
        )
    hard = ff.entmax(scores, 1e4)
    assert torch.equal(hard.argmax(-1), scores.argmax(-1))
    assert hard.amax(-1).min() > 0.999


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.9, 1.01, 1.1, 1.9, 2.1, 4.0, 8.0, 20.0])
def test_any_alpha_against_the_twin(alpha):
    for scale in (0.01, 1.0, 100.0):
        scores = scale * random_scores(8, 20)
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-8)):
            cast = scores.to(dtype)
            expected = torch.from_numpy(reference.entmax(cast.double().numpy(), alpha))
            torch.testing.assert_close(
                ff.entmax(cast, alpha).double(), expected, atol=tolerance, rtol=0
            )


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.8, 3.0, 10.0, 50.0])
def test_any_norm_against_the_twin(alpha):
    for scale in (0.01, 1.0, 100.0):
        scores = scale * random_scores(8, 20)
        expected = torch.from_numpy(reference.normmax(scores.numpy(), alpha))
        torch.testing.assert_close(ff.normmax(scores, alpha), expected, atol=1e-7, rtol=0)


def test_ksubset_from_none_to_all():
    scores = random_scores(4, 6)
    assert (ff.ksubset(scores, 0) == 0).all()
    assert (ff.ksubset(scores, 6) == 1).all()
    torch.testing.assert_close(ff.ksubset(scores, 1), ff.sparsemax(scores))
    assert (ff.ksubset(scores, 6, at_most=True) <= 1).all()
    for k in (0.0, 1e-6, 0.3, 1.0, 2.5, 5.999, 6.0):
        sums = ff.ksubset(scores, k).sum(-1)
        torch.testing.assert_close(
            sums, torch.full((4,), k, dtype=torch.float64), atol=1e-12, rtol=0
        )


def test_ksubset_with_fewer_kept_than_k_keeps_them_all():
    scores = random_scores(2, 6)
    mask = torch.tensor([[True, True, False, False, False, False], [True] * 6])
    probs = ff.ksubset(scores, 3, mask=mask)
    assert torch.equal(probs[0], mask[0].double())
    torch.testing.assert_close(probs[1], ff.ksubset(scores[1], 3))


def test_maps_that_project_leave_what_is_already_there():
    inside = torch.softmax(random_scores(5, 9), -1)
    torch.testing.assert_close(ff.sparsemax(inside), inside, atol=1e-12, rtol=0)
    boxed = torch.tensor([[0.9, 0.6, 0.3, 0.75, 0.45]], dtype=torch.float64)
    torch.testing.assert_close(ff.ksubset(boxed, 3), boxed, atol=1e-12, rtol=0)
    probs = ff.ksubset(random_scores(5, 9), 3)
    torch.testing.assert_close(ff.ksubset(probs, 3), probs, atol=1e-12, rtol=0)
