"""log_ndtr, expected products and orthants against high precision and brute force."""

import math

import mpmath
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.autograd import gradcheck

from fewfold import distributions as fd
from fewfold.distributions.integrals import expected_edge
from fewfold.distributions.integrals.expected_product import log_expected_product
from fewfold.distributions.integrals.orthant import log_orthant
from fewfold.distributions.integrals.panels import panels
from fewfold.distributions.integrals.plackett import plackett
from tests.distributions.cases import real, seeded


def test_log_ndtr_and_two_derivatives():
    x = torch.linspace(-60, 8, 69, dtype=torch.float64).requires_grad_()
    value = fd.log_ndtr(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    with mpmath.workdps(60):
        for row in zip(x.tolist(), value.tolist(), first.tolist(), second.tolist(), strict=True):
            at = mpmath.mpf(row[0])
            below = mpmath.erfc(-at / mpmath.sqrt(2)) / 2
            hazard = mpmath.exp(-at * at / 2) / mpmath.sqrt(2 * mpmath.pi) / below
            wanted = (mpmath.log(below), hazard, -hazard * (at + hazard))
            for found, exact in zip(row[1:], wanted, strict=True):
                assert abs((found - exact) / exact) < 1e-12


def test_log_ndtr_in_single_precision():
    x = torch.linspace(-100, 20, 1201)
    torch.testing.assert_close(
        fd.log_ndtr(x).double(), fd.log_ndtr(x.double()), rtol=1e-5, atol=1e-37
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_log_ndtr_in_half_precision(dtype):
    x = torch.linspace(-60, 8, 137).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    found, wanted = fd.log_ndtr(x), fd.log_ndtr(exact)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=eps)
    slopes = [
        torch.autograd.grad(value.sum(), at)[0] for value, at in ((found, x), (wanted, exact))
    ]
    torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=2 * eps, atol=eps)


def log_concave(t, shift, slope):
    return torch.special.log_ndtr(shift + slope * t.unsqueeze(-1)).sum(-1) - t.square() / 2


def brute(shift, slope):
    """Panels cut at every factor's own scale and towards the peak, found by thirds."""
    low, high = -1e7, 1e7
    for _ in range(200):
        third = (high - low) / 3
        left, right = log_concave(real(low + third, high - third), shift, slope)
        low, high = (low + third, high) if left < right else (low, high - third)
    marks = 2.0 ** torch.arange(-3, 9, dtype=torch.float64)
    marks = torch.cat([-marks, marks, real(0.0)])
    cuts = ((-shift / slope).unsqueeze(-1) + marks / slope.abs().unsqueeze(-1)).flatten()
    fine = 2.0 ** (torch.arange(-60, 8, dtype=torch.float64) / 2)
    cuts = torch.cat([cuts, low + fine, low - fine]).clamp(low - 12, low + 12).sort().values
    t, weight = panels(cuts.unique())
    logs = torch.cat([log_concave(part, shift, slope) for part in t.split(2000)])
    return (logs + weight.log()).logsumexp(0) - math.log(2 * math.pi) / 2


def hard_cases():
    draw = seeded()
    for trial in range(40):
        n = (1, 2, 5, 20)[trial % 4]
        steep = (0.3, 1.0, 2.0, 4.0, 6.0)[trial % 5]
        slope = (0.8 * steep * torch.randn(n, generator=draw, dtype=torch.float64)).exp()
        if trial % 7 == 0:
            slope = slope * torch.where(torch.rand(n, generator=draw) < 0.5, 1.0, -1.0)
        if trial % 6 == 0:
            slope = slope[:1].expand(n)
        place = (0.3, 1.0, 3.0, 10.0)[trial % 3] * torch.randn(n, generator=draw).double()
        yield -place * slope - (5 if trial % 8 == 0 else 0), slope


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("given", list(hard_cases()), ids=map(str, range(40)))
def test_expected_product_however_steep(given):
    shift, slope = given
    wanted = brute(shift, slope)
    found = log_expected_product(shift[None], slope[None])[0]
    assert (found - wanted).abs() <= 1e-10 * max(1, abs(wanted))
    single = log_expected_product(shift[None].float(), slope[None].float())[0]
    assert (single - wanted).abs() <= 2e-5 * max(1, abs(wanted))


@pytest.mark.usefixtures("path")
def test_steep_rows_are_summed_together(monkeypatch):
    """Rows of very different steepness: each as if alone, and not one after the other."""
    draw = seeded(4)
    scale = (4 * torch.randn(300, 6, generator=draw, dtype=torch.float64)).exp()
    shift = scale * torch.randn(300, 6, generator=draw, dtype=torch.float64)
    calls = []
    crowded = expected_edge._graded_sum
    count = lambda *given: calls.append(1) or crowded(*given)  # noqa: E731
    monkeypatch.setattr(expected_edge, "_graded_sum", count)
    together = log_expected_product(shift, scale)
    assert 0 < len(calls) < 10
    alone = torch.cat(
        [log_expected_product(*pair) for pair in zip(shift.split(1), scale.split(1), strict=True)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-11, atol=1e-11)


def test_gradients_of_the_expected_product():
    draw = seeded(1)
    shift = torch.randn(3, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    for steep in (1.0, 300.0):
        slope = steep * (0.2 + torch.rand(3, 4, generator=draw, dtype=torch.float64))
        slope = slope.requires_grad_()
        near = (shift * steep, slope)
        assert gradcheck(
            lambda a, b, s=steep: log_expected_product(a * s, b), (near[0] / steep, slope)
        )
    assert torch.autograd.gradgradcheck(
        log_expected_product, (shift, torch.ones(3, 4).double().requires_grad_())
    )


@pytest.mark.parametrize("rho", [-0.99, -0.5, 0.0, 1e-6, 0.3, 0.9, 0.999])
def test_orthant_of_two(rho):
    matrix = real([1.0, rho], [rho, 1.0])
    found = log_orthant(torch.zeros(1, 2).double(), matrix[None]).exp()
    assert (found - (0.25 + math.asin(rho) / (2 * math.pi))).abs() < 1e-11
    mean = real([0.7, -0.2])
    wanted = multivariate_normal(mean[0].numpy(), matrix.numpy()).cdf([0, 0])
    assert (log_orthant(mean, matrix[None]).exp() - wanted).abs() < 1e-7


def independent(size, rows, draw):
    """Orthants that are integrals: of independent scores less a common Gaussian."""
    loc = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    scale = 0.3 + torch.rand(rows, size, generator=draw, dtype=torch.float64)
    matrix = torch.diag_embed(scale.square()) + 1
    return loc, matrix, log_expected_product(-loc / scale, 1 / scale)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_orthant_of_a_few(size):
    loc, matrix, wanted = independent(size, 100, seeded(size))
    found = log_orthant(loc, matrix)
    assert (wanted > math.log(1e-5)).all()  # below, the lattice
    torch.testing.assert_close(found.exp(), wanted.exp(), rtol=0, atol=1e-8)
    single = log_orthant(loc.float(), matrix.float())
    torch.testing.assert_close(single.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_orthant_of_any_correlation(size):
    draw = seeded(size)
    factor = torch.randn(20, size, size, generator=draw, dtype=torch.float64)
    matrix = factor @ factor.mT + torch.eye(size)
    mean = torch.randn(20, size, generator=draw, dtype=torch.float64)
    found = log_orthant(mean, matrix).exp()
    deviation = matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    scaled = matrix / (deviation[:, :, None] * deviation[:, None])
    torch.testing.assert_close(found, plackett(-mean / deviation, scaled, 32), rtol=0, atol=1e-8)
    dist = multivariate_normal(mean[0].numpy(), matrix[0].numpy())
    dist.maxpts, dist.abseps = 2_000_000, 1e-7
    assert (found[0] - dist.cdf([0] * size)).abs() < 1e-5


def test_orthant_far_out():
    """A probability too small for an absolute error."""
    loc, matrix, _ = independent(4, 20, seeded(7))
    scale = matrix.diagonal(dim1=-2, dim2=-1).sub(1).sqrt()
    wanted = log_expected_product(-(loc + 9) / scale, 1 / scale)
    assert wanted.max() < math.log(1e-5)
    torch.testing.assert_close(log_orthant(loc + 9, matrix), wanted, rtol=0, atol=5e-3)


def test_orthant_of_more():
    draw = seeded(2)
    factor = torch.randn(8, 8, generator=draw, dtype=torch.float64)
    matrix = factor @ factor.T + torch.eye(8)
    mean = torch.randn(8, generator=draw, dtype=torch.float64)
    found = log_orthant(mean[None], matrix[None]).exp()
    dist = multivariate_normal(mean.numpy(), matrix.numpy(), seed=2)  # it integrates at random
    dist.maxpts, dist.abseps = 2_000_000, 1e-7
    assert (found / dist.cdf([0] * 8) - 1).abs() < 2e-3


@pytest.mark.parametrize("size", [3, 4, 6])
def test_gradients_of_the_orthant(size):
    draw = seeded(size)
    mean = torch.randn(1, size, generator=draw, dtype=torch.float64).requires_grad_()
    factor = 0.4 * torch.randn(1, size, size, generator=draw, dtype=torch.float64)
    factor = (factor + torch.eye(size)).requires_grad_()
    # the lattice sorts its coordinates, so that it is smooth only as far as they keep their order
    assert gradcheck(lambda m, f: log_orthant(m, f @ f.mT), (mean, factor))


def test_full_covariance_agrees_with_the_integral():
    draw = seeded(3)
    loc = 0.5 * torch.randn(6, generator=draw, dtype=torch.float64)
    scale = 0.3 + torch.rand(6, generator=draw, dtype=torch.float64)
    one, two = (
        fd.GaussianSparsemax(loc, scale),
        fd.GaussianSparsemax(loc, scale_tril=torch.diag(scale)),
    )
    y = torch.cat([one.sample((200,), generator=draw), torch.eye(6, dtype=torch.float64)])
    likely = one.log_prob(y) > -7
    assert likely.sum() > 150
    torch.testing.assert_close(one.log_prob(y)[likely], two.log_prob(y)[likely], rtol=0, atol=1e-6)
    torch.testing.assert_close(one.log_prob(y), two.log_prob(y), rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [3, 8, 64])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5, 5.0])
def test_a_shared_grid_agrees_with_each_its_own(size, spread):
    """Many points under one distribution, and the same points under as many copies of it."""
    draw = seeded(size)
    loc = torch.randn(size, generator=draw, dtype=torch.float64).requires_grad_()
    noise = torch.randn(size, generator=draw, dtype=torch.float64)
    scale = (spread * noise).exp().requires_grad_()
    y = fd.GaussianSparsemax(loc, scale).sample((200,), generator=draw)
    shared = fd.GaussianSparsemax(loc, scale).log_prob(y)
    each = fd.GaussianSparsemax(loc.expand(200, size), scale.expand(200, size)).log_prob(y)
    torch.testing.assert_close(shared, each, rtol=1e-10, atol=1e-10)
    ours, theirs = (torch.autograd.grad(found.sum(), [loc, scale]) for found in (shared, each))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-7)
    dist = fd.GaussianSparsemax(loc.float(), scale.float(), validate_args=False)
    single = dist.log_prob(y.float())
    torch.testing.assert_close(single.double(), each, rtol=1e-4, atol=1e-4)
