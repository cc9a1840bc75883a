"""Derivatives: the Jacobian of every map, and gradients of its parameters."""

import pytest
import torch
from torch import Tensor

import fewfold as ff

from . import reference
from .cases import Case, every_map, random_scores, smooth_scores

pytestmark = pytest.mark.usefixtures("path")


def jacobian(case: Case, scores: Tensor) -> Tensor:
    """One (n, n) matrix per row, from n backward passes; entry [i, j] is d p_i / d z_j."""
    leaf = scores.detach().clone().requires_grad_()
    probs = case(leaf)
    columns = [
        torch.autograd.grad(probs[..., i].sum(), leaf, retain_graph=True)[0]
        for i in range(scores.shape[-1])
    ]
    return torch.stack(columns, -2)


def differences(case: Case, scores: Tensor, step: float = 1e-5) -> Tensor:
    """The same by central differences of the twin."""
    columns = []
    for j in range(scores.shape[-1]):
        nudge = torch.zeros_like(scores)
        nudge[..., j] = step
        columns.append((case.expected(scores + nudge) - case.expected(scores - nudge)) / (2 * step))
    return torch.stack(columns, -1)


@every_map
def test_the_jacobian_is_that_of_the_twin(case):
    scores = smooth_scores(case, rows=4, n=6)
    torch.testing.assert_close(
        jacobian(case, scores), differences(case, scores), atol=1e-6, rtol=1e-6
    )


@every_map
def test_the_jacobian_is_symmetric_and_never_points_down(case):
    """It is the Hessian of a convex function, the conjugate of the regulariser."""
    # Top-k is no such gradient where the choice of entries changes, but around smooth points it is.
    scores = smooth_scores(case, rows=8, n=6) if case.capped else random_scores(8, 12)
    matrix = jacobian(case, scores)
    assert matrix.abs().max() > 0.05
    torch.testing.assert_close(matrix, matrix.mT, atol=1e-9, rtol=1e-9)
    assert torch.linalg.eigvalsh(0.5 * (matrix + matrix.mT)).min() > -1e-9
    if not case.at_most:
        rows = matrix.sum(-1)
        torch.testing.assert_close(rows, torch.zeros_like(rows), atol=1e-9, rtol=0)


@every_map
def test_gradients_in_float32_have_float32_digits(case):
    if case.blunt:
        pytest.skip("slopes are unbounded where an entry enters the support")
    scores = torch.cat([smooth_scores(case, rows=4, n=6, seed=s) for s in (0, 100, 200)]).float()
    got = jacobian(case, scores)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), jacobian(case, scores.double()), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("alpha", [2.5, 3.0, 5.0])
@pytest.mark.parametrize("least", [3e-2, 1e-2, 1e-3, 1e-4])
def test_steep_gradients_keep_their_digits(alpha, least):
    """Above alpha = 2 the slope of a small probability is huge, and must cancel exactly.

    J = Diag(s) - s s^T / sum(s) with s = p^(2 - alpha): off the diagonal nothing cancels, and the
    diagonal is what makes rows sum to zero.
    """
    probs = torch.tensor([0.4, 0.35, 0.25, 0.0], dtype=torch.float64) * (1 - least)
    probs[-1] = least
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        scores = (probs ** (alpha - 1) / (alpha - 1)).to(dtype)
        exact = torch.from_numpy(reference.entmax(scores[None].double().numpy(), alpha))[0]
        s = exact ** (2 - alpha)
        expected = (-s[:, None] * s / s.sum()).fill_diagonal_(0)
        expected = expected - torch.diag(expected.sum(-1))
        leaf = scores.clone().requires_grad_()
        got = torch.stack(
            [torch.autograd.grad(p, leaf, retain_graph=True)[0] for p in ff.entmax(leaf, alpha)]
        )
        torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


@every_map
def test_no_gradient_is_asked_no_graph_is_kept(case):
    assert not case(random_scores(3, 6)).requires_grad
    with torch.no_grad():
        assert not case(random_scores(3, 6).requires_grad_()).requires_grad
    with torch.inference_mode():
        probs = case(random_scores(3, 6))
    torch.testing.assert_close(probs.clone(), case(random_scores(3, 6)), atol=1e-12, rtol=0)


@every_map
def test_the_same_graph_twice(case):
    scores = random_scores(3, 6).requires_grad_()
    value = (case(scores) * random_scores(3, 6, seed=1)).sum()
    value.backward(retain_graph=True)
    first = scores.grad.clone()
    value.backward()
    torch.testing.assert_close(scores.grad, 2 * first)


@every_map
def test_second_derivatives_have_no_nan_where_answers_are_zero(case):
    scores = random_scores(8, 9).requires_grad_()
    weights = random_scores(8, 9, seed=1).requires_grad_()
    (first,) = torch.autograd.grad((case(scores) * weights).sum(), scores, create_graph=True)
    # Piecewise linear maps have a constant Jacobian: no graph leads back to their scores.
    second = torch.autograd.grad((first**2).sum(), (scores, weights), materialize_grads=True)
    for slope in second:
        assert slope.isfinite().all()
    assert second[1].abs().max() > 1e-3


def test_bounds_learn():
    for function in (ff.constrained_sparsemax, ff.maps.constrained_softmax):
        scores = random_scores(3, 5).requires_grad_()
        upper = torch.tensor([0.35, 0.8, 0.3, 0.6, 0.5], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (scores, upper))
        assert torch.autograd.gradgradcheck(function, (scores, upper))
        wide = upper.detach().repeat(3, 1).requires_grad_()
        (shared,) = torch.autograd.grad(function(scores, upper)[:, 0].sum(), upper)
        (apart,) = torch.autograd.grad(function(scores, wide)[:, 0].sum(), wide)
        torch.testing.assert_close(apart.sum(0), shared)


def test_a_bound_may_be_one_number():
    scores = random_scores(3, 5)
    for function in (ff.constrained_sparsemax, ff.maps.constrained_softmax):
        torch.testing.assert_close(function(scores, 0.3), function(scores, torch.full((5,), 0.3)))
        torch.testing.assert_close(function(scores, torch.inf), function(scores, 1.0))


def test_a_bound_that_is_nan_stays_in_its_row():
    scores, upper = random_scores(3, 5), torch.full((3, 5), 0.5)
    upper[1, 2] = torch.nan
    for function in (ff.constrained_sparsemax, ff.maps.constrained_softmax):
        probs = function(scores, upper)
        assert probs[1].isnan().all()
        torch.testing.assert_close(probs[[0, 2]], function(scores[[0, 2]], 0.5))


def test_strength_learns():
    for function in (ff.fusedmax, ff.oscarmax):
        scores = torch.tensor([[0.61, 0.5, 0.17, 0.14], [0.1, 0.3, 0.45, 0.2]]).double()
        scores.requires_grad_()
        strength = torch.tensor([[0.05], [0.02]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (scores, strength))
        alone = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (scores, alone))
        torch.testing.assert_close(function(scores, alone), function(scores, 0.05))


def test_loose_bounds_are_no_bounds():
    scores, upper = random_scores(5, 9), torch.ones(9).double()
    torch.testing.assert_close(ff.constrained_sparsemax(scores, upper), ff.sparsemax(scores))
    torch.testing.assert_close(ff.maps.constrained_softmax(scores, upper), ff.softmax(scores))
    for function in (ff.constrained_sparsemax, ff.maps.constrained_softmax):
        loose = function(scores, torch.full((9,), 50.0).double())
        torch.testing.assert_close(loose, function(scores, upper))


def test_tight_bounds_are_the_answer():
    upper = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for function in (ff.constrained_sparsemax, ff.maps.constrained_softmax):
        torch.testing.assert_close(function(random_scores(4, 3), upper), upper.expand(4, 3))
        shut = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
        assert (function(random_scores(4, 3), shut)[:, 0] == 0).all()


def test_no_strength_is_sparsemax_and_much_strength_is_uniform():
    scores = random_scores(5, 9)
    for function in (ff.fusedmax, ff.oscarmax):
        torch.testing.assert_close(function(scores, 0.0), ff.sparsemax(scores))
        flat = torch.full((5, 9), 1 / 9).double()
        torch.testing.assert_close(function(scores, 1e3), flat)


def test_topk_of_everything_is_sparsemax():
    scores = random_scores(5, 9)
    for k in (9, 10, 1000):
        torch.testing.assert_close(ff.topk_sparsemax(scores, k), ff.sparsemax(scores))
    one = ff.topk_sparsemax(scores, 1)
    assert torch.equal(one, torch.nn.functional.one_hot(scores.argmax(-1), 9).double())
    for k in (1, 2, 3, 9):
        assert ((ff.topk_sparsemax(0.01 * scores, k) > 0).sum(-1) == k).all()


def test_the_certificate_is_right_on_every_row():
    scores = random_scores(200, 12)
    for k in (1, 2, 3, 6, 12):
        answer = ff.maps.topk_sparsemax_certified(scores, k)
        same = (answer.probs - ff.sparsemax(scores)).abs().amax(-1) < 1e-12
        assert torch.equal(answer.certified, same)
        assert torch.equal(answer.probs, ff.topk_sparsemax(scores, k))
    columns = ff.maps.topk_sparsemax_certified(scores.t(), 2, dim=0)
    assert columns.certified.shape == (200,)
    hole = torch.full((1, 12), -torch.inf).double()
    assert ff.maps.topk_sparsemax_certified(hole, 2).certified.all()
