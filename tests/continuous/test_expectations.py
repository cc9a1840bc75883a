"""Expectations of basis functions under densities: exact, smooth and stable."""

import functools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor

from fewfold.continuous import (
    FourierBasis,
    GaussianBasis,
    LineDensity,
    PlaneDensity,
    PowerBasis,
    RectangularBasis,
)
from fewfold.continuous.profile import exponent, radius

D = torch.float64
GOLD = json.loads((Path(__file__).parent / "gold_continuous.json").read_text())
KINDS = {"gaussian": 1.0, "triweight": 4 / 3, "biweight": 1.5, "truncparabola": 2.0}
ALPHAS = [1.0, 10 / 9, 6 / 5, 4 / 3, 1.5, 2.0, 1.7, 1.05, 3.0, 9.0]
SIGMAS = [1e-9, 1e-6, 1e-3, 0.05, 1.0, 1e3]
alphas = pytest.mark.parametrize("alpha", ALPHAS, ids=lambda a: f"{a:.3g}")


legendre = functools.cache(np.polynomial.legendre.leggauss)


def num(*values: float) -> Tensor:
    return torch.tensor(values, dtype=D)


def line(mu: float, sigma_sq: float, alpha: float) -> LineDensity:
    return LineDensity(torch.tensor(mu, dtype=D), torch.tensor(sigma_sq, dtype=D), alpha)


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


# What is known ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_published_forms_on_the_line(name) -> None:
    gold, alpha = GOLD[name], KINDS[name]
    mu, sigma_sq = num(gold["mu"]).requires_grad_(), num(gold["sigma_sq"]).requires_grad_()
    basis = GaussianBasis([one["mu"] for one in GOLD["psi"]], [o["sigma"] for o in GOLD["psi"]])
    density = LineDensity(mu, sigma_sq, alpha)
    found = basis.expect(density)[0]
    close(found, num(*gold["E_psi"]))
    assert density.variance.item() == pytest.approx(gold["variance"], rel=1e-9)
    if alpha > 1:
        assert density.half_width.item() == pytest.approx(gold["half_support"], rel=1e-12)
    for j in (0, 1):
        slopes = torch.autograd.grad(found[j], [mu, sigma_sq], retain_graph=True)
        close(slopes[0], num(gold["dE_psi/dmu"][j]), 1e-5)
        close(slopes[1], num(gold["dE_psi/dsigma_sq"][j]), 1e-5)
        # theta = (mu / sigma_sq, -1 / (2 sigma_sq)) is what the gradient is published for
        by_theta = torch.stack(
            [slopes[0] * sigma_sq, 2 * mu * sigma_sq * slopes[0] + 2 * sigma_sq**2 * slopes[1]]
        )
        close(by_theta.flatten(), num(*gold["dE_psi/dtheta"][j]), 1e-5)


def test_published_radii() -> None:
    for key, value in GOLD["R_table"].items():
        dim, name = key.split(",")
        assert radius(int(dim[2:]), KINDS[name[6:]]) == pytest.approx(value, rel=1e-13)


# Densities ----------------------------------------------------------------------------------------


@alphas
def test_densities_have_mass_one_and_their_moments(alpha) -> None:
    density = LineDensity.from_moments(num(0.3), num(0.02), alpha)
    close(density.variance, num(0.02))
    reach = 3.0 if alpha == 1 else float(density.half_width)
    nodes, weights = legendre(400)
    y = math.pi / 2 * nodes  # t = mu + reach sin y: gentle to a steep edge
    t = torch.from_numpy(0.3 + reach * np.sin(y))
    mass = density.pdf(t) * torch.from_numpy(weights * reach * np.cos(y)) * math.pi / 2
    moments = [float((mass * (t - 0.3) ** k).sum()) for k in (0, 2)]
    assert moments == pytest.approx([1, 0.02], rel=1e-6)
    close(density.mass(num(-50.0), num(50.0)), num(1.0))


# Gaussian functions on the line -------------------------------------------------------------------


def exact_line(density: LineDensity, centre: float, width: float) -> float:
    """By adaptive quadrature in 20 digits, on pieces between which something happens."""
    mu, alpha = float(density.mu), density.alpha
    with mpmath.workdps(20):
        if alpha == 1:
            sigma = mpmath.sqrt(float(density.sigma_sq) + mpmath.mpf(width) ** 2)
            return float(mpmath.npdf(mu, centre, sigma))
        a, kappa = mpmath.mpf(float(density.half_width)), exponent(alpha)
        c = mpmath.gamma(kappa + 1.5) / mpmath.gamma(kappa + 1) / mpmath.sqrt(mpmath.pi) / a
        steps = [mpmath.mpf(centre) + j * mpmath.mpf(width) for j in (-30, -9, -3, 0, 3, 9, 30)]
        inner = [-0.9, -0.3, 0, 0.3, 0.9]
        cuts = [
            mu - a,
            *sorted([s for s in steps if abs(s - mu) < a] + [mu + x * a for x in inner]),
            mu + a,
        ]
        p = lambda t: c * max(1 - ((t - mu) / a) ** 2, 0) ** kappa  # noqa: E731
        return float(mpmath.quad(lambda t: p(t) * mpmath.npdf(t, centre, width), cuts))


HARD = [
    (0.4, 0.05, [0.3, 0.7, 0.4], [0.1, 0.2, 1e-3]),  # what is usual, and a narrow function
    (0.4, 0.05, [-0.2, 1.5, 0.83], [0.05, 0.3, 0.01]),  # centres outside and next to the edge
    (0.9, 1e-6, [0.9, 0.5, 0.91], [0.1, 0.5, 0.003]),  # a narrow density
    (0.5, 1e-14, [0.5, 0.55], [0.1, 0.05]),
    (0.5, 1e4, [0.5, 0.0], [0.1, 1e-2]),  # a wide one
    (0.5, 0.1, [0.5, 3.0], [30.0, 10.0]),  # wide functions
]


@pytest.mark.parametrize(
    ("alpha", "case"),
    [
        pytest.param(alpha, case, id=f"{alpha:.3g}-{place}")
        for place, case in enumerate(HARD)
        for alpha in (ALPHAS if place < 2 else (1.0, 1.5, 1.7))
    ],
)
def test_gaussian_functions_agree_with_quadrature(alpha, case) -> None:
    mu, sigma_sq, centres, widths = case
    density = line(mu, sigma_sq, alpha)
    want = num(*[exact_line(density, c, w) for c, w in zip(centres, widths, strict=True)])
    found = GaussianBasis(centres, widths).expect(density)
    torch.testing.assert_close(found, want, atol=1e-12, rtol=1e-9)


@alphas
def test_limits(alpha) -> None:
    basis = GaussianBasis.grid(8, [0.05, 0.3])
    narrow = LineDensity.from_moments(num(0.37), num(1e-16), alpha)
    close(basis.expect(narrow), basis(num(0.37)))
    if alpha < 3:
        assert float(basis.expect(line(0.37, 1e12, alpha)).max()) < 1e-2
    far = GaussianBasis([1e3, -1e6, 1e8], 1e-3).expect(line(0.5, 0.01, alpha))
    assert not far.any()


@alphas
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_close_and_finite(alpha, dtype) -> None:
    basis = GaussianBasis.grid(16, [0.02, 0.3])
    mu = torch.linspace(0, 1, 9).to(dtype).requires_grad_()
    sigma_sq = torch.logspace(-4, 1, 9).to(dtype).requires_grad_()
    found = basis.expect(LineDensity(mu, sigma_sq, alpha))
    assert found.dtype == dtype
    want = basis.expect(LineDensity(mu.detach().double(), sigma_sq.detach().double(), alpha))
    rounding = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), want, atol=rounding * float(want.max()), rtol=0)
    for slope in torch.autograd.grad(found.float().square().mean() / 1e3, [mu, sigma_sq]):
        assert slope.isfinite().all()


# Their gradients ----------------------------------------------------------------------------------


def slopes(basis: GaussianBasis, mu: Tensor, sigma_sq: Tensor, alpha: float) -> tuple[Tensor, ...]:
    f = lambda m, s: basis.expect(LineDensity(m, s, alpha))  # noqa: E731
    return torch.func.jacrev(f, argnums=(0, 1))(mu, sigma_sq)


def panels(density: LineDensity, basis: GaussianBasis) -> tuple[Tensor, Tensor]:
    """Points and weights of the rule of Legendre on 200 pieces of the support."""
    a, nodes = float(density.half_width), np.polynomial.legendre.leggauss(20)
    edges = float(density.mu) + a * np.sin(np.linspace(-np.pi / 2, np.pi / 2, 201))
    half = np.diff(edges)[:, None] / 2
    points = edges[:-1, None] + half * (1 + nodes[0])
    return torch.from_numpy(points.ravel()), torch.from_numpy((half * nodes[1]).ravel())


@pytest.mark.parametrize("alpha", [1.2, 4 / 3, 1.5, 2.0, 1.7])
@pytest.mark.parametrize("sigma_sq", [1e-5, 0.05, 2.0])
def test_gradients_are_those_of_the_escort_and_of_the_reparametrisation(alpha, sigma_sq) -> None:
    density = line(0.4, sigma_sq, alpha)
    basis = GaussianBasis([0.3, 0.4, 0.7, 0.45], [0.1, 0.02, 0.2, 2.0])
    by_mu, by_sigma = slopes(basis, density.mu, density.sigma_sq, alpha)
    t, w = panels(density, basis)
    psi, p = basis(t), density.pdf(t)
    # escort: p^(2 - alpha), of mass Z; covariances with (t - mu, (t - mu)^2) around the mean
    escort = w * p ** (2 - alpha)
    dist, away = escort / escort.sum(), t - density.mu
    powers = torch.stack([away, away**2])
    covariance = (dist * (powers - (dist * powers).sum(1, keepdim=True))) @ psi * escort.sum()
    size = float(by_mu.abs().max()), float(by_sigma.abs().max())
    assert float((by_mu - covariance[0] / sigma_sq).abs().max()) < 1e-6 * size[0]
    assert float((by_sigma - covariance[1] / (2 * sigma_sq**2)).abs().max()) < 1e-6 * size[1]
    # t = mu + a u, u of a fixed distribution
    change = -(t.unsqueeze(-1) - basis.tensors["centres"]) / basis.tensors["widths"] ** 2 * psi
    mass = (w * p).unsqueeze(-1)
    scale = away.unsqueeze(-1) / ((alpha + 1) * sigma_sq)
    assert float((by_mu - (mass * change).sum(0)).abs().max()) < 1e-8 * size[0]
    assert float((by_sigma - (mass * change * scale).sum(0)).abs().max()) < 1e-8 * size[1]


@alphas
def test_gradcheck_on_the_line(alpha) -> None:
    mu = num(0.4, 0.5, 0.9).requires_grad_()
    sigma_sq = num(0.05, 1e-3, 1.0).requires_grad_()
    centres, widths = num(0.3, 0.5, 1.2).requires_grad_(), num(0.1, 0.02, 1.0).requires_grad_()

    def function(*given: Tensor) -> Tensor:
        return GaussianBasis(*given[2:]).expect(LineDensity(*given[:2], alpha))

    given = (mu, sigma_sq, centres, widths)
    assert torch.autograd.gradcheck(function, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, given, atol=1e-4)


# Intervals ----------------------------------------------------------------------------------------


@alphas
def test_intervals_agree_with_the_incomplete_beta_function(alpha) -> None:
    edges = np.array([-3.0, -0.2, 0.0, 0.02, 0.3, 0.4, 0.41, 0.8, 0.9, 2.0])
    for mu, sigma_sq in ((0.4, 0.05), (0.4, 1e-6), (-0.5, 0.02), (0.5, 100.0)):
        density = line(mu, sigma_sq, alpha)
        if alpha == 1:
            want = np.diff(special.ndtr((edges - mu) / math.sqrt(sigma_sq)))
        else:
            u = np.clip((edges - mu) / float(density.half_width), -1, 1)
            kappa = exponent(alpha)
            want = np.diff(special.betainc(kappa + 1, kappa + 1, (1 + u) / 2))
        close(RectangularBasis(edges).expect(density), torch.from_numpy(want))
    assert torch.autograd.gradcheck(
        lambda m, s: RectangularBasis(edges).expect(LineDensity(m, s, alpha)),
        (num(0.45).requires_grad_(), num(0.06).requires_grad_()),
    )


# Other bases --------------------------------------------------------------------------------------


@alphas
def test_powers_and_waves(alpha) -> None:
    density = line(0.3, 0.05, alpha)
    reach = 3.0 if alpha == 1 else float(density.half_width)
    nodes, weights = legendre(400)
    y = math.pi / 2 * nodes
    t = torch.from_numpy(0.3 + reach * np.sin(y))
    mass = density.pdf(t) * torch.from_numpy(weights * reach * np.cos(y)) * math.pi / 2
    for basis in (PowerBasis(5), FourierBasis([0.0, 1.0, 4.0])):
        close(basis.expect(density), mass @ basis(t), 1e-5 if alpha > 3 else 1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.7, 3.0])
def test_waves_too_short_to_matter(alpha) -> None:
    """Averages are Bessel functions, precise up to a limit and left out beyond."""
    half = float(line(0.0, 0.05, alpha).half_width)
    kappa = exponent(alpha) + 0.5
    for x in (0.5, 50.0, 150.0, 190.0, 193.0, 400.0):
        want = special.gamma(kappa + 1) * (2 / x) ** kappa * special.jv(kappa, x)
        found = FourierBasis([x / (2 * math.pi * half)]).expect(line(0.0, 0.05, alpha))[0]
        if x < 192:
            assert float(found) == pytest.approx(want, abs=1e-12)
        else:
            assert float(found) == 0
            assert alpha > 2 or abs(want) < 1e-4


def test_mixtures_are_sums() -> None:
    mu, sigma_sq = torch.rand(2, 3, 4, dtype=D), 0.1 + torch.rand(2, 3, 4, dtype=D)
    weights = torch.rand(2, 3, 4, dtype=D).softmax(-1)
    basis = GaussianBasis.grid(5)
    each = basis.expect(LineDensity(mu, sigma_sq))
    mixture = LineDensity(mu, sigma_sq, weights=weights)
    close(basis.expect(mixture), (each * weights.unsqueeze(-1)).sum(-2))
    t = torch.rand(2, 3, dtype=D)
    want = (LineDensity(mu, sigma_sq).pdf(t.unsqueeze(-1)) * weights).sum(-1)
    close(mixture.pdf(t), want)
    plane = PlaneDensity(
        torch.rand(2, 4, 2, dtype=D),
        (0.1 * torch.eye(2, dtype=D)).expand(2, 4, 2, 2),
        2.0,
        weights[:, 0],
    )
    found = GaussianBasis.grid(3, [0.1], dim=2).expect(plane)
    assert found.shape == (2, 9)
    assert plane.pdf(torch.rand(2, 2, dtype=D)).shape == (2,)


def test_what_is_wrong_is_said() -> None:
    one = torch.tensor([0.5])
    for given, words in [
        ((one, -one), "must be positive"),
        ((one, 0 * one), "must be positive"),
        ((one, one, -1.0), "not negative"),
        ((one, one, math.inf), "finite"),
        ((torch.rand(3), torch.rand(2) + 1), "same shape"),
        ((torch.rand(3), torch.ones(3), 2.0, torch.ones(2)), "one number per component"),
    ]:
        with pytest.raises(ValueError, match=words):
            LineDensity(*given)
    with pytest.raises(TypeError, match="floating"):
        LineDensity(torch.tensor([1]), one)
    with pytest.raises(TypeError, match="a number"):
        LineDensity(one, one, torch.tensor(2.0))
    with pytest.raises(ValueError, match=r"\(\.\.\., 2, 2\)"):
        PlaneDensity(torch.rand(2), torch.rand(2))
    with pytest.raises(ValueError, match="positive definite"):
        PlaneDensity(torch.rand(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="needs a PlaneDensity"):
        GaussianBasis.grid(3, [0.1], dim=2).expect(LineDensity(one, one))
    with pytest.raises(ValueError, match="widths must be positive"):
        GaussianBasis([0.1, 0.2], [0.1, -0.1])
    with pytest.raises(ValueError, match="increase"):
        RectangularBasis([0.0, 0.5, 0.5])
    with pytest.raises(ValueError, match="centres must be"):
        GaussianBasis(torch.rand(3, 3), 0.1)
