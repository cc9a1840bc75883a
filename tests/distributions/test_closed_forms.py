"""Closed forms of single distributions compared with quadrature and enumeration."""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

import fewfold as ff
from fewfold import distributions as fd
from tests.distributions.cases import PAIR, TRIL2, TRIPLE, real, seeded


def close(found, wanted, atol=1e-8):
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64),
        torch.as_tensor(wanted, dtype=torch.float64),
        rtol=0,
        atol=atol,
    )


def points(dist, at):
    return dist.log_prob(torch.tensor(at, dtype=torch.float64)).exp().item()


# Two coordinates, between which there is one number.

PAIRS = {
    "gaussian": fd.GaussianSparsemax(*PAIR),
    "full gaussian": fd.GaussianSparsemax(PAIR[0], scale_tril=TRIL2),
    "narrow": fd.GaussianSparsemax(real(0.5, 0.1), real(0.02, 0.03)),
    "hard concrete": fd.HardConcrete(real(0.5, 0.1), 0.7, 1.2),
    "cold": fd.HardConcrete(real(0.5, 0.1), 0.05, 1.1),
    "hot": fd.HardConcrete(real(0.5, 0.1), 6.0, 1.4),
    "hardly stretched": fd.HardConcrete(real(0.5, 0.1), 1.5, 1.0001),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_by_quadrature(name):
    dist, other = PAIRS[name], fd.HardConcrete(real(0.1, 0.2), 0.9, 1.3)
    other = (
        fd.GaussianSparsemax(real(0.1, 0.2), 0.7) if "full" in name or "gaussian" in name else other
    )
    density = lambda y: points(dist, [y, 1 - y])  # noqa: E731

    def over(function):
        cuts = [
            0,
            1e-6,
            1e-4,
            0.01,
            0.1,
            0.3,
            0.5,
            0.65,
            0.7,
            0.75,
            0.9,
            0.99,
            1 - 1e-4,
            1 - 1e-6,
            1,
        ]
        parts = itertools.pairwise(cuts)
        tight = {"epsabs": 1e-13, "epsrel": 1e-12, "limit": 200}
        return sum(integrate.quad(function, a, b, **tight)[0] for a, b in parts)

    ends = [points(dist, [1.0, 0.0]), points(dist, [0.0, 1.0])]
    plogp = lambda p: p * math.log(p) if p > 0 else 0.0  # noqa: E731
    close(sum(ends) + over(density), 1.0)
    close(dist.mean[0], ends[0] + over(lambda y: y * density(y)))
    second = ends[0] + over(lambda y: y * y * density(y))
    close(dist.variance[0], second - dist.mean[0].item() ** 2)
    close(dist.entropy(), -sum(map(plogp, ends)) - over(lambda y: plogp(density(y))))
    if type(dist) is type(other):
        there = [points(other, [1.0, 0.0]), points(other, [0.0, 1.0])]
        cross = sum(p * math.log(q) for p, q in zip(ends, there, strict=True) if p > 0)
        inside = over(lambda y: density(y) * math.log(points(other, [y, 1 - y])))
        close(kl_divergence(dist, other), -dist.entropy().item() - cross - inside)


def test_no_closed_form_beyond_two():
    dist = fd.GaussianSparsemax(*TRIPLE)
    for ask in (
        dist.entropy,
        lambda: dist.mean,
        lambda: dist.variance,
        lambda: kl_divergence(dist, dist),
    ):
        with pytest.raises(NotImplementedError, match=r"two coordinates, got 3; write direct_sum"):
            ask()
    hard = fd.HardConcrete(torch.zeros(3), 0.5)
    for ask in (hard.entropy, lambda: hard.mean, lambda: hard.log_prob(torch.eye(3))):
        with pytest.raises(
            NotImplementedError, match="no closed form beyond two coordinates, got 3"
        ):
            ask()


def test_gaussian_sparsemax_ignores_a_common_shift():
    loc, scale = TRIPLE
    y = fd.GaussianSparsemax(loc, scale).sample((50,), generator=seeded())
    for shift in (3.0, -100.0):
        moved = fd.GaussianSparsemax(loc + shift, scale).log_prob(y)
        close(moved, fd.GaussianSparsemax(loc, scale).log_prob(y), 1e-9)


def test_limits_of_the_noise():
    loc, scale = TRIPLE
    drawn = fd.GaussianSparsemax(loc, 1e-9 * scale).sample((5,), generator=seeded())
    close(drawn, ff.sparsemax(loc).expand(5, 3), 1e-7)
    corners = fd.GaussianSparsemax(0 * loc, 1e6 * torch.ones(3).double()).log_prob(
        torch.eye(3).double()
    )
    close(corners.exp(), real(1, 1, 1) / 3, 1e-5)


def test_a_small_scale_beside_a_large_one():
    """An edge a million times narrower than the Gaussian it cuts."""
    dist = fd.GaussianSparsemax(real(0.0, 0.3, 0.1), real(1.0, 1e-6, 1e-4))
    y = dist.sample((100,), generator=seeded())
    assert dist.log_prob(y).isfinite().all()
    # x_1 above 1.3 takes everything, as the second is at 0.3
    close(dist.log_prob(real(1.0, 0.0, 0.0)).exp(), 0.5 * math.erfc(1.3 / math.sqrt(2)), 1e-6)


def test_value_gradient_inside_a_face():
    loc, scale = TRIPLE
    for dist in (
        fd.GaussianSparsemax(loc, scale, validate_args=False),
        fd.Concrete(loc, 0.7, validate_args=False),
        fd.LogisticNormal(loc, scale, validate_args=False),
        fd.MixedDirichlet(loc, scale + 1, validate_args=False),
    ):
        assert gradcheck(dist.log_prob, (real(0.5, 0.3, 0.2).requires_grad_(),))
    inside = fd.BinaryHardConcrete(real(0.5)[0], 0.7, 1.2)
    assert gradcheck(inside.log_prob, (real(0.2, 0.8).requires_grad_(),))
    bounded = fd.QGaussian(real(0.3, 0.6), TRIL2, 1.5)
    assert gradcheck(bounded.log_prob, (real(0.35, 0.5).requires_grad_(),))


# q-Gaussians

ALPHAS = [0.0, 0.5, 0.9, 1 - 1e-6, 1.0, 1 + 1e-6, 1.01, 4 / 3, 1.5, 2.0, 3.0, 10.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_q_gaussian_by_quadrature(alpha):
    dist = fd.QGaussian(real(0.4), real([0.3]), alpha)
    half = min(dist.radius.item() * 0.3, math.inf)
    density = lambda t: points(dist, [0.4 + t])  # noqa: E731

    def over(function):
        if math.isinf(half):
            return 2 * integrate.quad(function, 0, math.inf, epsabs=1e-13, limit=400)[0]
        # t = half (1 - s^2): the density may have a root or a corner at its end
        inner = lambda s: function(half * (1 - s * s)) * 2 * half * s  # noqa: E731
        return 2 * integrate.quad(inner, 0, 1, epsabs=1e-13, limit=400)[0]

    log = lambda p: p * math.log(p) if p > 0 else 0.0  # noqa: E731
    close(over(density), 1)
    if alpha > 0.5:
        close(dist.variance[0], over(lambda t: t * t * density(t)))
    close(dist.entropy(), -over(lambda t: log(density(t))))
    if alpha and abs(alpha - 1) > 1e-3:
        power = over(lambda t: density(t) ** alpha)
        close(dist.tsallis_entropy(), (1 - power) / (alpha * (alpha - 1)))


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0])
def test_q_gaussian_from_its_covariance(alpha):
    covariance = real([0.5, 0.1], [0.1, 0.3])
    dist = fd.QGaussian.from_covariance(real(1.0, 2.0), covariance, alpha)
    close(dist.covariance_matrix, covariance, 1e-9)
    if alpha > 1:
        drawn = dist.sample((1000,), generator=seeded())
        assert (dist._square(drawn).sqrt() <= dist.radius).all()
        assert (dist._square(drawn).sqrt() > 0.8 * dist.radius).any()
    assert dist.log_prob(dist.loc + 1e3) == -math.inf if alpha > 1 else True


def test_q_gaussians_tend_to_the_gaussian():
    gauss = torch.distributions.MultivariateNormal(real(0.3, 0.6), scale_tril=TRIL2)
    at = real(0.5, 0.2)
    for alpha in (1 - 1e-7, 1.0, 1 + 1e-7):
        dist = fd.QGaussian(real(0.3, 0.6), TRIL2, alpha)
        close(dist.log_prob(at), gauss.log_prob(at), 1e-5)
        close(dist.entropy(), gauss.entropy(), 1e-6)
        close(dist.tsallis_entropy(), gauss.entropy(), 1e-6)
        close(dist.covariance_matrix, gauss.covariance_matrix, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1 - 1e-6, 1.0, 1 + 1e-6, 1 + 1e-4])
def test_alpha_learns_at_the_gaussian(alpha, dtype):
    """Draws and closed forms have the slope of the covariance; fails by chance once in 10^4."""
    factor, n = TRIL2.to(dtype), 2
    order = torch.tensor(alpha, dtype=dtype, requires_grad=True)
    dist = fd.QGaussian(torch.zeros(n, dtype=dtype), factor, order)
    exact = fd.QGaussian(torch.zeros(n).double(), TRIL2, order.detach().double().requires_grad_())
    at = torch.tensor([0.3, -0.2], dtype=dtype)
    for ask in (
        lambda dist: dist.log_prob(at.to(dist.loc)), lambda dist: dist.entropy(),
        lambda dist: dist.tsallis_entropy(), lambda dist: dist.variance.sum(),
        lambda dist: dist.log_peak,
    ):  # fmt: skip
        found, wanted = (torch.autograd.grad(ask(one), one.alpha)[0] for one in (dist, exact))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    each = order.detach().expand(20_000).clone().requires_grad_()
    drawn = fd.QGaussian(torch.zeros(n, dtype=dtype), factor, each).rsample(generator=seeded())
    slopes = torch.autograd.grad(drawn.square().sum(), each)[0].double()
    wanted = torch.autograd.grad(exact.variance.sum(), exact.alpha)[0]
    assert slopes.std() < 2 * wanted.abs() if alpha < 1 + 1e-5 else True
    assert (slopes.mean() - wanted).abs() < 4 * slopes.std() / 20_000**0.5


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("gap", [-1e-6, 1e-6, 9e-5, -9e-5, 1.1e-4])
def test_draws_beside_the_gaussian(n, gap):
    """Entropy and variance; fails by chance once in 10^4."""
    dist = fd.QGaussian(torch.zeros(n).double(), torch.eye(n).double(), 1 + gap / n)
    drawn = dist.sample((50_000,), generator=seeded())
    logs = dist.log_prob(drawn)
    assert (-logs.mean() - dist.entropy()).abs() < 4 * logs.std() / 50_000**0.5
    squares = drawn.square().sum(-1)
    wanted = dist.variance.sum()
    assert (squares.mean() - wanted).abs() < 4 * squares.std() / 50_000**0.5


def test_tsallis_entropy_that_does_not_exist():
    """Up to alpha = n / (n + 2) the integral of p^alpha diverges, as the covariance does."""
    for n, alpha in ((1, 0.0), (1, 0.2), (1, 0.33), (2, 0.4), (2, 0.5), (3, 0.55)):
        order = real(alpha)[0].requires_grad_()
        dist = fd.QGaussian(torch.zeros(n).double(), torch.eye(n).double(), order)
        assert dist.tsallis_entropy() == math.inf
        assert dist.fenchel_young_loss(torch.zeros(n).double()) == math.inf
        assert dist.entropy().isfinite()
        assert torch.autograd.grad(dist.tsallis_entropy(), order)[0] == 0
    close(fd.QGaussian(real(0.0), real([1.0]), 0.34).tsallis_entropy(), 508.6405440444103, 1e-6)


def test_heavy_tails_are_those_of_student():
    dist = fd.QGaussian(real(0.4), real([0.3]), 0.5)  # alpha = 1 - 2 / (freedom + 1)
    student = torch.distributions.StudentT(real(3.0)[0], 0.4, 1.0)
    scale = ((student.log_prob(real(0.4)) - dist.log_peak).exp()).item()
    at = real(-3.0, 0.4, 7.0)
    peer = torch.distributions.StudentT(real(3.0)[0], 0.4, scale)
    close(dist.log_prob(at.unsqueeze(-1)), peer.log_prob(at))


def test_alpha_zero_is_cauchy():
    """Draws are compared by the distribution of their ranks; fails by chance once in 10^4."""
    factor, alpha = real([0.3]).requires_grad_(), real(0.0)[0].requires_grad_()
    dist = fd.QGaussian(real(0.4), factor, alpha)
    peer = torch.distributions.Cauchy(real(0.4), 2 * math.pi * 0.3**2)
    at = real(-3.0, 0.4, 7.0, 1e6)
    close(dist.log_prob(at.unsqueeze(-1)), peer.log_prob(at))
    close(dist.entropy(), peer.entropy()[0])
    assert dist.mean.isnan()
    assert dist.variance.isinf()
    assert dist.radius == math.inf
    ranks = peer.cdf(dist.sample((4000,), generator=seeded()))
    assert stats.kstest(ranks.flatten().numpy(), "uniform").pvalue > 1e-4
    drawn = dist.rsample((3,), generator=seeded())
    for value in (dist.log_prob(drawn).sum(), dist.entropy()):
        slopes = torch.autograd.grad(value, (factor, alpha), retain_graph=True)
        assert all(slope.isfinite().all() for slope in slopes)
    assert gradcheck(
        lambda f, a: fd.QGaussian(real(0.4), f, a, validate_args=False).log_prob(real(1.3)),
        (factor, alpha),
    )


def test_fenchel_young_loss_matches_moments():
    draw = seeded()
    data = torch.randn(500, 2, generator=draw, dtype=torch.float64) @ TRIL2.T + real(1.0, -1.0)
    covariance = (data - data.mean(0)).T @ (data - data.mean(0)) / len(data)
    best = fd.QGaussian.from_covariance(data.mean(0), covariance, 1.5)
    loc, factor = best.loc.clone().requires_grad_(), best.scale_tril.clone().requires_grad_()
    loss = fd.QGaussian(loc, factor, 1.5, validate_args=False).fenchel_young_loss(data).mean()
    slopes = torch.autograd.grad(loss, [loc, factor])
    for slope in slopes:
        close(slope.tril() if slope.dim() == 2 else slope, torch.zeros_like(slope))
    assert gradcheck(
        lambda m, f, a: fd.QGaussian(m, f.tril(), a).fenchel_young_loss(data[:3]),
        (
            best.loc.clone().requires_grad_(),
            TRIL2.clone().requires_grad_(),
            real(1.4)[0].requires_grad_(),
        ),
    )


def test_wasserstein_distance():
    a, b = real([0.5, 0.1], [0.1, 0.3]), real([0.2, -0.1], [-0.1, 0.6])
    p = fd.QGaussian.from_covariance(real(0.0, 0.0), a, 2.0)
    q = fd.QGaussian.from_covariance(real(3.0, 4.0), b, 2.0)

    def root(m):
        values, vectors = torch.linalg.eigh(m)
        return vectors @ torch.diag(values.sqrt()) @ vectors.T

    bures = torch.trace(a + b - 2 * root(root(a) @ b @ root(a)))
    close(fd.wasserstein2(p, q), (25 + bures).sqrt())
    close(fd.wasserstein2(p, p), 0.0, 1e-6)
    with pytest.raises(ValueError, match="same alpha, got"):
        fd.wasserstein2(p, fd.QGaussian.from_covariance(real(0.0, 0.0), a, 1.5))


def test_scaled_draws_of_q_gaussians_are_differentiable():
    loc, factor = real(0.3, 0.6).requires_grad_(), TRIL2.clone().requires_grad_()
    for alpha in (0.8, 1.0, 2.0):
        assert gradcheck(
            lambda m, f, a=alpha: fd.QGaussian(m, f.tril(), a).rsample((3,), generator=seeded()),
            (loc, factor),
        )
