"""Edge cases of continuous attention: heavy tails, alpha close to 1, invalid input, caches."""

import copy
import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn

import fewfold as ff
from fewfold.continuous import (
    AttentionMoments,
    ContinuousAttention,
    ContinuousMemory,
    FourierBasis,
    GaussianBasis,
    LineDensity,
    PlaneDensity,
    PowerBasis,
    QueryHeads,
    RectangularBasis,
    Signal,
    SignalHeads,
    continuous_attention,
)
from fewfold.continuous import signal as signal_module

D = torch.float64
legendre = functools.cache(np.polynomial.legendre.leggauss)
HEAVY = [0.0, 0.3, 0.5, 0.8, 0.99, 0.9999]
heavy = pytest.mark.parametrize("alpha", HEAVY)
SIGMA = torch.tensor([[0.03, 0.01], [0.01, 0.05]], dtype=D)


def num(*values: float) -> Tensor:
    return torch.tensor(values, dtype=D)


def student(density: LineDensity) -> stats.rv_continuous:
    """The same density, as known elsewhere: t with `2 / (1 - alpha) - 1` degrees of freedom."""
    freedom = 2 / (1 - density.alpha) - 1
    # the height at the middle is all that remains to be matched
    scale = stats.t.pdf(0, freedom) / float(density.pdf(density.mu))
    return stats.t(freedom, float(density.mu), scale)


# Heavy tails --------------------------------------------------------------------------------------


@heavy
@pytest.mark.parametrize("sigma_sq", [1e-6, 0.05, 1e3])
def test_heavy_tails_are_those_of_student(alpha, sigma_sq) -> None:
    density = LineDensity(num(0.4)[0], num(sigma_sq)[0], alpha)
    dist = student(density)
    wide = float(density.unit)
    t = num(*(0.4 + wide * np.array([-30, -2.0, -0.5, 0.0, 0.1, 1.0, 5.0, 400.0])))
    torch.testing.assert_close(density.pdf(t), torch.from_numpy(dist.pdf(t)), rtol=1e-8, atol=0)
    want = np.diff(dist.cdf(t))
    torch.testing.assert_close(
        density.mass(t[:-1], t[1:]), torch.from_numpy(want), rtol=0, atol=1e-9
    )
    # the score is quadratic: p^(alpha - 1) is, with the curvature (1 - alpha) / sigma_sq
    t = t[density.pdf(t) > 1e-200]
    power = density.pdf(t) ** (alpha - 1)
    curve = power - density.pdf(density.mu) ** (alpha - 1)
    want = (1 - alpha) * (t - 0.4) ** 2 / (2 * sigma_sq)
    torch.testing.assert_close(curve, want, rtol=1e-6, atol=1e-9 * float(power.max()))


@heavy
@pytest.mark.parametrize("width", [1e-3, 0.1, 10.0])
def test_gaussian_functions_under_heavy_tails(alpha, width) -> None:
    """Against 20 digits, on pieces between which something happens."""
    for sigma_sq in (1e-6, 0.05, 100.0):
        density = LineDensity(num(0.4)[0], num(sigma_sq)[0], alpha)
        a, kappa = mpmath.mpf(float(density.unit)), 1 / (mpmath.mpf(alpha) - 1)
        peak = mpmath.gamma(-kappa) / mpmath.gamma(-kappa - 0.5) / mpmath.sqrt(mpmath.pi) / a
        for centre in (0.4, 0.7):
            near = [centre + j * width for j in (-12, -4, -1, 0, 1, 4, 12)]
            core = [0.4 + j * float(a) for j in (-100, -10, -1, 0, 1, 10, 100)]
            inside = [t for t in core if near[0] < t < near[-1]]
            with mpmath.workdps(20):
                f = lambda t: (  # noqa: E731
                    peak * (1 + ((t - mpmath.mpf(0.4)) / a) ** 2) ** kappa  # noqa: B023
                    * mpmath.npdf(t, centre, width)  # noqa: B023
                )  # fmt: skip
                want = float(mpmath.quad(f, sorted([*near, *inside])))
            found = float(GaussianBasis([centre], width).expect(density))
            assert found == pytest.approx(want, rel=1e-8, abs=1e-10)


@heavy
def test_other_functions_under_heavy_tails(alpha) -> None:
    density = LineDensity(num(0.4)[0], num(0.05)[0], alpha)
    dist, freedom = student(density), 2 / (1 - alpha) - 1
    edges = np.array([-3.0, 0.0, 0.3, 0.41, 0.9, 50.0])
    torch.testing.assert_close(
        RectangularBasis(edges).expect(density),
        torch.from_numpy(np.diff(dist.cdf(edges))), rtol=0, atol=1e-9,
    )  # fmt: skip
    degree = min(math.ceil(freedom) - 1, 4)
    want = [dist.moment(j) if j else 1.0 for j in range(degree + 1)]
    torch.testing.assert_close(
        PowerBasis(degree).expect(density), num(*map(float, want)), rtol=1e-8, atol=1e-10
    )
    wave = FourierBasis([0.7]).expect(LineDensity(num(0.0)[0], density.sigma_sq, alpha))[0]
    x = 2 * math.pi * 0.7 * float(density.unit)
    kappa = 1 / (1 - alpha) - 0.5
    if kappa < 100:  # the characteristic function of t is one of Bessel's
        with mpmath.workdps(30):
            want = (mpmath.mpf(x) / 2) ** kappa * mpmath.besselk(kappa, x) * 2 / mpmath.gamma(kappa)
        assert float(wave) == pytest.approx(float(want), abs=1e-9)


def test_alpha_zero_is_cauchy() -> None:
    """p(t) = 1 / (C + (t - mu)^2 / (2 sigma_sq)), whose integral is one for this C."""
    t, sigma_sq = num(-3.0, 0.4, 0.6, 90.0), 0.05
    density = LineDensity(num(0.4)[0], num(sigma_sq)[0], 0)
    cauchy = torch.distributions.Cauchy(num(0.4)[0], 2 * math.pi * sigma_sq)
    torch.testing.assert_close(density.pdf(t), cauchy.log_prob(t).exp())
    curve = 1 / density.pdf(t) - (t - 0.4) ** 2 / (2 * sigma_sq)
    torch.testing.assert_close(curve, curve[1].expand(4), atol=1e-8, rtol=1e-8)
    assert density.variance.isinf()
    layer = ContinuousAttention(4, alpha=0.0, heads=2)
    found = layer(torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_moments_that_do_not_exist() -> None:
    one = num(0.5)
    assert LineDensity(one, one, 0.3).variance.isinf().all()
    assert PlaneDensity(torch.rand(2), torch.eye(2), 0.5).covariance.isinf().all()
    assert LineDensity(one, one, 0.3).half_width.isinf().all()
    for call, words in [
        (lambda: LineDensity.from_moments(one, one, 1 / 3), "above 0.3333"),
        (lambda: PlaneDensity.from_moments(torch.rand(2), torch.eye(2), 0.5), "above 0.5"),
        (lambda: PowerBasis(2).expect(LineDensity(one, one, 0.3)), "above 0.3333"),
        (lambda: PowerBasis(3).expect(LineDensity(one, one, 0.5)), "above 0.5"),
        (lambda: PowerBasis(1).expect(LineDensity(one, one, 0.0)), r"above 0 for t\^1 .* got 0"),
        (lambda: LineDensity.from_moments(one, one, 0.0), "above 0.3333"),
        (lambda: LineDensity.from_attention(one, one, 0), "above 0.3333"),
        (
            lambda: ContinuousAttention(4, alpha=0.0, locator=AttentionMoments()),
            "above 0.3333 .* give sigma_sq instead",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.99])
def test_heavy_tails_have_their_moments(alpha) -> None:
    density = LineDensity.from_moments(num(0.3), num(0.02), alpha)
    torch.testing.assert_close(density.variance, num(0.02))
    assert student(LineDensity(num(0.3)[0], density.sigma_sq[0], alpha)).var() == pytest.approx(
        0.02
    )
    plane = PlaneDensity.from_moments(num(0.3, 0.6), SIGMA, alpha)
    torch.testing.assert_close(plane.covariance, SIGMA)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.7, 0.95])
def test_heavy_tails_on_the_plane(alpha) -> None:
    """Against integrals in polar coordinates, around the mean, of the density itself."""
    density = PlaneDensity(num(0.3, 0.6), SIGMA, alpha)
    nodes, weights = (torch.from_numpy(x) for x in legendre(400))
    angle = torch.arange(400, dtype=D) * (2 * math.pi / 400)
    ray = torch.stack([angle.cos(), angle.sin()], -1)
    rho = 3.5 * (1 + nodes) / 2  # functions of width 0.2 and 0.4 have ended there
    points = num(0.3, 0.6) + rho[:, None, None] * ray
    mass = density.pdf(points) * (weights * 1.75 * rho)[:, None] * (2 * math.pi / 400)
    basis = GaussianBasis(
        [[0.3, 0.6], [0.5, 0.2], [0.0, 0.9]], [[0.2, 0.4], [0.2, 0.2], [0.4, 0.2]]
    )
    want = torch.einsum("ra,ran->n", mass, basis(points))
    torch.testing.assert_close(basis.expect(density), want, rtol=1e-8, atol=1e-10)
    round_one = PlaneDensity(num(0.0, 0.0), 0.04 * torch.eye(2, dtype=D), alpha)
    box = RectangularBasis([-0.3, 0.1, 0.4], [-0.2, 0.5])
    for j, (low, high) in enumerate([(-0.3, 0.1), (0.1, 0.4)]):
        f = lambda y, x: float(round_one.pdf(num(x, y)))  # noqa: E731
        found = integrate.dblquad(f, low, high, -0.2, 0.5, epsabs=1e-7, epsrel=1e-7)[0]
        assert float(box.expect(round_one)[j]) == pytest.approx(found, abs=1e-6)


@heavy
def test_gradients_under_heavy_tails(alpha) -> None:
    mu, sigma_sq = num(0.4, 0.9).requires_grad_(), num(0.05, 1e-3).requires_grad_()
    for basis in (GaussianBasis.grid(3), RectangularBasis([0.0, 0.3, 1.0]), FourierBasis([1.0])):
        f = lambda m, s, basis=basis: basis.expect(LineDensity(m, s, alpha))  # noqa: E731
        assert torch.autograd.gradcheck(f, (mu, sigma_sq))
    factor = num(0.2, 0.0, 0.05, 0.3).view(2, 2).requires_grad_()
    basis = GaussianBasis([[0.4, 0.5], [0.3, 0.61]], [0.1, 1.0])
    g = lambda m, f: basis.expect(PlaneDensity(m, f @ f.mT, alpha or 0.05))  # noqa: E731
    assert torch.autograd.gradcheck(g, (num(0.3, 0.6).requires_grad_(), factor))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95])
def test_heavy_tails_in_lower_precision(alpha, dtype) -> None:
    basis = GaussianBasis.grid(6, [0.1])
    mu, sigma_sq = torch.linspace(0, 1, 5).to(dtype), torch.logspace(-3, 2, 5).to(dtype)
    found = basis.expect(LineDensity(mu, sigma_sq, alpha))
    want = basis.expect(LineDensity(mu.double(), sigma_sq.double(), alpha))
    assert found.dtype == dtype
    rounding = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), want, atol=rounding * float(want.max()), rtol=0)


# Close to the Gaussian ----------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [1e-3, -1e-3, 1e-5, -1e-5, 1e-7, -1e-7, 1e-9, -1e-9])
@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_alpha_close_to_one_is_close_to_the_gaussian(gap, dtype) -> None:
    """The difference shrinks with the gap, whatever powers of 1e9 that takes."""
    mu, sigma_sq = torch.tensor([0.4, 0.9], dtype=dtype), torch.tensor([0.05, 1e-3], dtype=dtype)
    plane = torch.diag_embed(torch.stack([sigma_sq, 2 * sigma_sq], -1))
    least = 1e-8 if dtype == D else 2e-5
    for line in (GaussianBasis.grid(5), RectangularBasis([0.0, 0.3, 1.0]), FourierBasis([0.5])):
        one, other = (line.expect(LineDensity(mu, sigma_sq, a)) for a in (1 + gap, 1.0))
        bound = (2 * abs(gap) + least) * float(other.abs().max())
        assert float((one - other).abs().max()) < bound
    for basis in (GaussianBasis.grid(3, [0.05, 0.4], dim=2), RectangularBasis([0, 0.3], [0, 0.9])):
        where = torch.stack([mu, mu], -1)
        one, other = (basis.expect(PlaneDensity(where, plane, a)) for a in (1 + gap, 1.0))
        bound = (4 * abs(gap) + least) * float(other.abs().max())
        assert float((one - other).abs().max()) < bound
    t = mu + 0.1
    one, other = (LineDensity(mu, sigma_sq, a).pdf(t) for a in (1 + gap, 1.0))
    assert float((one - other).abs().max()) < (20 * abs(gap) + least) * float(other.max())


# What comes in ------------------------------------------------------------------------------------


def test_small_variances_of_low_precision_on_the_plane() -> None:
    """1e-4 exists in half precision, its square does not; 1e-25 does in single, its square not."""
    basis = GaussianBasis.grid(3, [0.2], dim=2)
    for dtype, variance in ((torch.float16, 1e-4), (torch.bfloat16, 1e-25), (torch.float32, 1e-25)):
        density = PlaneDensity(
            torch.full((2,), 0.5, dtype=dtype), variance * torch.eye(2).to(dtype)
        )
        want = basis(torch.full((2,), 0.5, dtype=D))
        got = basis.expect(density).double()
        torch.testing.assert_close(got, want, rtol=0.05, atol=1e-2)


def test_moments_of_attention_in_half_precision() -> None:
    """All weight on one place: the least variance is still one."""
    probs, places = torch.tensor([0.0, 1.0, 0.0]).half(), torch.tensor([0.1, 0.5, 0.9]).half()
    assert float(LineDensity.from_attention(probs, places).variance) == pytest.approx(
        1e-6, rel=1e-3
    )
    plane = PlaneDensity.from_attention(probs, torch.stack([places, places], -1))
    torch.testing.assert_close(plane.covariance, 1e-6 * torch.eye(2), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("basis", [GaussianBasis.grid(4), GaussianBasis.grid(3, [0.3], dim=2)])
@pytest.mark.parametrize("locator", [QueryHeads(2), SignalHeads(), AttentionMoments()], ids=repr)
def test_empty_batches_and_single_values(basis, locator) -> None:
    layer = ContinuousAttention(4, basis, heads=2, locator=locator)
    cells = (1, 1) if basis.dim == 2 else (1,)
    assert layer(torch.randn(0, 3, 4), torch.randn(0, *cells, 4)).shape == (0, 3, 4)
    query, memory = torch.randn(2, 3, 4), torch.randn(2, *cells, 4)
    one = layer(query, memory)
    one.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    if basis.dim == 1:  # of which one is kept, that is all there is
        more = torch.cat([torch.full((2, 3, 4), math.nan), memory], 1)
        mask = torch.arange(4).expand(2, 4) == 3
        same = layer(query, torch.where(mask[..., None], more, 7.0), mask=mask)
        torch.testing.assert_close(same, one, atol=1e-5, rtol=1e-4)


def test_what_is_wrong_is_said_by_name() -> None:
    half, basis = torch.tensor([0.5]), GaussianBasis.grid(4)
    plane, eye = torch.rand(2), torch.eye(2)
    layer = ContinuousAttention(4, basis)
    for call, words in [
        (lambda: LineDensity(half, half * math.inf), "sigma_sq must be finite, got inf"),
        (lambda: LineDensity(half * math.nan, half), "mu must be finite, got nan"),
        (lambda: LineDensity(half, half, -0.1), "alpha must be finite and not negative, got -0.1"),
        (lambda: PlaneDensity(plane, eye, 0.0), "alpha must be above 0 on the plane"),
        (
            lambda: ContinuousAttention(4, GaussianBasis.grid(3, [0.3], dim=2), alpha=0.0),
            "alpha must be above 0 on the plane",
        ),
        (lambda: LineDensity(half, half, math.nan), "alpha must be"),
        (lambda: LineDensity(half, half, 2.0, -half), "weights must not be negative, got -0.5"),
        (lambda: LineDensity(half[0], half[0], 2.0, half[0]), "weights must have"),
        (
            lambda: LineDensity(torch.zeros(2), torch.ones(2), 2.0, torch.tensor([3.0, 4.0])),
            r"weights must sum to 1, got a sum of 7; write weights / weights.sum\(-1, True\)",
        ),
        (
            lambda: PlaneDensity(plane[None], eye[None], 2.0, half),
            "weights must sum to 1, got a sum of 0.5",
        ),
        (lambda: LineDensity.from_moments(half, -half), "variance must be positive, got -0.5"),
        (lambda: LineDensity.from_attention(torch.rand(5), torch.rand(4)), "positions must be"),
        (
            lambda: PlaneDensity.from_attention(torch.rand(5), torch.rand(4, 2)),
            r"positions \(L, 2\)",
        ),
        (lambda: PlaneDensity.from_moments(plane, -eye), "covariance must be positive definite"),
        (lambda: PlaneDensity(plane, torch.tensor([[1.0, 0.9], [0.0, 1.0]])), "must be symmetric"),
        (lambda: GaussianBasis([0.1], []), "widths must be one or as many"),
        (lambda: GaussianBasis([0.1, math.nan], 0.1), "centres must be finite, got nan"),
        (lambda: GaussianBasis([0.1], math.inf), "widths must be finite, got inf"),
        (lambda: GaussianBasis.grid(0), "count must be at least 1, got 0"),
        (lambda: GaussianBasis.grid(3, [0.1], dim=3), "dim must be 1, the line, or 2"),
        (lambda: RectangularBasis([0.0, 1.0], [0.0, 0.0]), r"edges_across must be.*\[0.0, 0.0\]"),
        (lambda: RectangularBasis([0.0, math.inf]), "edges must be finite, got inf"),
        (lambda: FourierBasis([]), "frequencies must be"),
        (
            lambda: continuous_attention(
                torch.rand(2, 5, 3), torch.rand(4, 3), torch.ones(4, 3), basis
            ),
            r"batch of the signal \(2,\), got \(4, 3\)",
        ),
        (
            lambda: layer(torch.rand(2, 3, 4), torch.rand(5, 6, 4)),
            "query and memory must have the same",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    for call, words in [
        (lambda: LineDensity(half, half, 2.0, [1.0]), "weights must be a torch.Tensor"),
        (lambda: GaussianBasis.grid(3, 0.1), "widths must be a non-empty list of numbers, got 0.1"),
        (lambda: GaussianBasis.grid(2.5), "count must be an int"),
        (lambda: ContinuousMemory(basis, sticky=True), "sticky must be"),
    ]:
        with pytest.raises(TypeError, match=words):
            call()


# What is kept -------------------------------------------------------------------------------------


def learning() -> ContinuousAttention:
    torch.manual_seed(0)
    centres, widths = nn.Parameter(torch.linspace(0, 1, 4)), nn.Parameter(torch.full((4,), 0.2))
    return ContinuousAttention(4, GaussianBasis(centres, widths))


def test_a_functional_call_reaches_the_basis() -> None:
    layer, query, memory = learning(), torch.randn(2, 3, 4), torch.randn(2, 7, 4)
    given = {name: value.detach() for name, value in layer.named_parameters()}
    moved = given | {"basis_centres": given["basis_centres"] + 0.1}
    found = torch.func.functional_call(layer, moved, (query, memory))
    other = copy.deepcopy(layer)
    other.load_state_dict(moved)
    torch.testing.assert_close(found, other(query, memory))
    assert not torch.allclose(found, layer(query, memory))
    loss = lambda p: torch.func.functional_call(layer, p, (query, memory)).square().sum()  # noqa: E731
    slopes = torch.func.grad(loss)(given)
    layer(query, memory).square().sum().backward()
    for name, value in layer.named_parameters():
        torch.testing.assert_close(slopes[name], value.grad, atol=1e-4, rtol=1e-3)


def test_nothing_stale_is_kept_of_a_frozen_basis() -> None:
    layer, query, memory = (
        learning().requires_grad_(False),
        torch.randn(2, 3, 4),
        torch.randn(2, 7, 4),
    )
    layer(query, memory)
    assert len(layer.basis.fits) == 1
    state = layer.state_dict() | {"basis_centres": torch.linspace(0.1, 0.8, 4)}
    layer.load_state_dict(state)
    other = learning()
    other.load_state_dict(state)
    torch.testing.assert_close(layer(query, memory), other(query, memory))
    with torch.inference_mode():
        basis = GaussianBasis(torch.linspace(0, 1, 4), 0.2)
        Signal.fit(torch.randn(5, 2), basis)


def test_what_is_kept_stays_small(monkeypatch) -> None:
    monkeypatch.setattr(signal_module, "_MOST", 4 * 200)
    basis = GaussianBasis.grid(4, [0.1])
    for length in range(1, 100):
        Signal.fit(torch.randn(length, 1, requires_grad=True), basis)
    assert sum(one.numel() for one in basis.fits.values()) <= 800
    assert not any(one.requires_grad for one in basis.fits.values())
    Signal.fit(torch.randn(500, 1), basis)  # more than allowed: this one alone
    assert [tuple(one.shape) for one in basis.fits.values()] == [(500, 4)]


@pytest.mark.parametrize("locator", [QueryHeads(2), SignalHeads(), AttentionMoments(ff.Gini())])
def test_a_state_dict_comes_back(locator) -> None:
    layers = [ContinuousAttention(8, heads=2, locator=locator) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    query, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    found = [layer(query, memory) for layer in [*layers, copy.deepcopy(layers[0])]]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_moments_of_attention_under_autocast() -> None:
    """Products of matrices there have three digits, which are not enough for a small variance."""
    probs = torch.tensor([0.2, 0.5, 0.3])
    points = torch.tensor([[0.801, 0.503], [0.804, 0.501], [0.802, 0.505]])
    want = PlaneDensity.from_attention(probs, points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = PlaneDensity.from_attention(probs, points)
    torch.testing.assert_close(found.mu, want.mu)
    torch.testing.assert_close(found.covariance, want.covariance)
