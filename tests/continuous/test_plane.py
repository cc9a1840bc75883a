"""Expectations under densities on the plane: Gaussian functions, boxes, waves."""

import functools
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch import Tensor

from fewfold.continuous import (
    FourierBasis,
    GaussianBasis,
    LineDensity,
    PlaneDensity,
    RectangularBasis,
)
from fewfold.continuous.profile import exponent, normaliser, radius

D = torch.float64
GOLD = json.loads((Path(__file__).parent / "gold_continuous.json").read_text())
legendre = functools.cache(np.polynomial.legendre.leggauss)


def num(*values: float) -> Tensor:
    return torch.tensor(values, dtype=D)


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_published_forms_on_the_plane() -> None:
    gold = GOLD["truncparaboloid_2d"]
    mu, sigma = num(*gold["mu"]), torch.tensor(gold["Sigma"], dtype=D)
    basis = GaussianBasis(
        num(*gold["basis_mu"])[None],
        torch.tensor(gold["basis_Sigma"]).double().diagonal().sqrt()[None],
    )
    density = PlaneDensity(mu, sigma, 2.0)
    close(basis.expect(density), num(gold["E_psi"]), 1e-8)
    close(basis.expect(PlaneDensity(mu, sigma, 1.0)), num(GOLD["gaussian_2d_E_psi"]), 1e-8)
    close(density.covariance, gold["cov_factor(cov=c*Sigma)"] * sigma)


@pytest.mark.parametrize("alpha", [1.0, 10 / 9, 1.05, 1.2, 4 / 3, 1.5, 2.0, 1.7, 3.0, 9.0])
def test_plane_densities_have_their_moments(alpha) -> None:
    covariance = torch.tensor([[0.03, -0.01], [-0.01, 0.02]], dtype=D)
    density = PlaneDensity.from_moments(num(0.3, 0.6), covariance, alpha)
    close(density.covariance, covariance)
    if alpha == 2:  # the rule of visual attention
        close(density.sigma_sq, 9 * math.pi * covariance.det().sqrt() * covariance)
    everything = RectangularBasis([-9.0, 9.0], [-9.0, 9.0])
    close(everything.expect(density), num(1.0))


MU, SIGMA = num(0.3, 0.6), torch.tensor([[0.03, 0.01], [0.01, 0.05]], dtype=D)
PLANE = [
    ([[0.4, 0.5], [0.3, 0.6], [0.0, 0.0]], 0.1),
    ([[0.4, 0.5], [0.3, 0.6], [0.55, 0.6]], 0.02),
    ([[0.4, 0.5], [1.5, 0.6]], 2.0),
    ([[0.4, 0.5], [0.2, 0.4]], [[0.02, 0.4], [0.5, 0.05]]),
]


def by_polar(density: PlaneDensity, basis: GaussianBasis) -> Tensor:
    """The integral over angles, periodic, of integrals along rays from the mean."""
    nodes, weights = (torch.from_numpy(x) for x in legendre(300))
    rho, angle = (1 + nodes) / 2, torch.arange(1200, dtype=D) * (2 * math.pi / 1200)
    ray = torch.stack([angle.cos(), angle.sin()], -1)
    kappa = exponent(density.alpha)
    along = weights / 2 * rho * (1 - rho**2) ** kappa
    psi = basis(density.mu + (rho[:, None, None] * ray) @ density.root.mT)
    return normaliser(2, kappa) * (along @ psi.sum(1)) * (2 * math.pi / 1200)


@pytest.mark.parametrize(
    ("case", "alpha"),
    [*((PLANE[0], alpha) for alpha in (6 / 5, 4 / 3, 1.5, 2.0, 1.7))]
    + [(case, alpha) for case in PLANE[1:] for alpha in (4 / 3, 1.7)],
)
def test_slices_agree_with_rays(case, alpha) -> None:
    centres, widths = case
    widths = [widths] * len(centres) if isinstance(widths, float) else widths
    basis = GaussianBasis(centres, widths)
    for factor in (1e-3, 1.0):
        near = MU + (basis.tensors["centres"] - MU) * factor**0.4
        moved = GaussianBasis(near, basis.tensors["widths"] * factor**0.4)
        density = PlaneDensity(MU, SIGMA * factor, alpha)
        want = by_polar(density, moved)
        torch.testing.assert_close(
            moved.expect(density), want, atol=1e-9 * float(want.max()), rtol=1e-9
        )


def test_slices_of_extreme_shapes() -> None:
    """A density as thin as a line is one on the line; narrow functions see the density itself."""
    thin = torch.tensor([[1e-8, 0.0], [0.0, 0.5]], dtype=D)
    density = PlaneDensity(num(0.4, 0.5), thin, 2.0)
    basis = GaussianBasis([[0.4, 0.3], [0.4, 0.9]], 0.1)
    # what is seen of a paraboloid from the side is a distribution with a power higher by one half
    half = density.root[1, 1]
    side = LineDensity(num(0.5), (half / radius(1, 1 + 1 / 1.5)) ** (2 + 1 / 1.5), 1 + 1 / 1.5)
    want = GaussianBasis([0.3, 0.9], 0.1).expect(side)[0] / (0.1 * math.sqrt(2 * math.pi))
    close(basis.expect(density), want, 1e-5)
    tilted = torch.tensor([[0.1, 0.0999], [0.0999, 0.1]], dtype=D)
    density = PlaneDensity(num(0.5, 0.5), tilted, 1.5)
    spots = num(0.5, 0.5, 0.6, 0.61, 0.4, 0.39).view(3, 2)
    close(GaussianBasis(spots, 1e-5).expect(density), density.pdf(spots), 1e-4)
    close(GaussianBasis(spots, 1e3).expect(density), num(1e-6).expand(3) / (2 * math.pi), 1e-10)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.5, 2.0, 1.7])
def test_gradcheck_on_the_plane(alpha) -> None:
    factor = torch.tensor([[0.2, 0.0], [0.05, 0.3]], dtype=D).requires_grad_()
    basis = GaussianBasis([[0.4, 0.5], [0.3, 0.61], [0.7, 0.1]], [0.1, 0.03, 1.0])
    boxes = RectangularBasis([0.0, 0.31, 0.9], [0.0, 0.2, 0.7])
    mu = MU.clone().requires_grad_()

    for one in (basis, boxes):
        function = lambda m, f, one=one: one.expect(PlaneDensity(m, f @ f.mT, alpha))  # noqa: E731
        assert torch.autograd.gradcheck(function, (mu, factor), check_batched_grad=True)
        if alpha != 1.7 or one is boxes:
            assert torch.autograd.gradgradcheck(function, (mu, factor), atol=1e-4)


def box_mass(density: PlaneDensity, low: float, high: float, left: float, right: float) -> float:
    """Adaptive over one axis, by a distribution function along the other."""
    A, (m, n) = density.root.numpy(), density.mu.tolist()
    limit = 9.0 if density.alpha == 1 else 1.0

    def slice_mass(v: float) -> float:
        ends = [(e - n - A[1, 0] * v) / A[1, 1] for e in (left, right)]
        if density.alpha == 1:
            return (
                math.exp(-v * v / 2)
                / math.sqrt(2 * math.pi)
                * float(np.diff(special.ndtr(ends))[0])
            )
        kappa, h = exponent(density.alpha), math.sqrt(max(1 - v * v, 1e-300))
        x = (1 + np.clip(np.array(ends) / h, -1, 1)) / 2
        share = float(np.diff(special.betainc(kappa + 1, kappa + 1, x))[0])
        return normaliser(2, kappa) / normaliser(1, kappa) * h ** (2 * kappa + 1) * share

    start, end = (min(max((e - m) / A[0, 0], -limit), limit) for e in (low, high))
    cuts = np.linspace(start, end, 40)
    return sum(
        integrate.quad(slice_mass, a, b, epsabs=1e-13, epsrel=1e-11, limit=100)[0]
        for a, b in pairwise(cuts)
    )


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.5, 2.0, 1.7, 3.0])
def test_boxes_agree_with_quadrature(alpha) -> None:
    density = PlaneDensity(MU, SIGMA, alpha)
    rows, columns = [0.0, 0.25, 0.32, 1.0], [-0.5, 0.6, 0.9]  # an edge through the mean
    want = [
        box_mass(density, *rows[i : i + 2], *columns[j : j + 2]) for i in range(3) for j in range(2)
    ]
    close(RectangularBasis(rows, columns).expect(density), num(*want), 1e-8)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 2.0, 1.7])
def test_boxes_of_a_grid_share_the_mass(alpha) -> None:
    edges = torch.linspace(-2, 3, 12, dtype=D)
    mu = torch.stack([num(0.0, 0.0), edges[[3, 4]], num(0.31, 0.77)]).requires_grad_()  # a corner
    sigma = (0.01 * torch.eye(2, dtype=D)).expand(3, 2, 2)
    found = RectangularBasis(edges, edges).expect(PlaneDensity(mu, sigma, alpha))
    close(found.sum(-1), torch.ones(3, dtype=D), 1e-8)
    assert bool((found > -1e-9).all())
    assert torch.autograd.grad(found.square().sum(), mu)[0].isfinite().all()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.01, 13 / 12, 1.1, 4 / 3, 2.0, 1.7])
def test_boxes_far_from_a_narrow_density(alpha) -> None:
    """Sides a thousand radii away, in single precision."""
    mu = torch.tensor([0.14, 0.31], requires_grad=True)
    basis = RectangularBasis(torch.linspace(0, 1, 5), torch.linspace(0, 1, 4))
    found = basis.expect(PlaneDensity(mu, 1e-6 * torch.eye(2), alpha))
    want = basis.expect(PlaneDensity(mu.detach().double(), 1e-6 * torch.eye(2).double(), alpha))
    close(found.detach().double(), want, 1e-4)
    if alpha > 1:
        close(want.sum(), num(1.0)[0], 1e-6)
    assert torch.autograd.grad(found.square().sum(), mu)[0].isfinite().all()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 1.7])
def test_waves_on_the_plane_are_boxes_summed(alpha) -> None:
    density = PlaneDensity(MU, SIGMA, alpha)
    edges = torch.linspace(-0.7, 1.7, 91, dtype=D)
    middle = (edges[1:] + edges[:-1]) / 2
    basis = FourierBasis([[1.0, 0.5], [0.0, 2.0]])
    mass = RectangularBasis(edges, edges).expect(density)
    close(basis.expect(density), mass @ basis(torch.cartesian_prod(middle, middle)), 2e-3)
