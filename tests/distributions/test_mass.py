"""The densities of all faces integrate to one."""

import itertools

import pytest
import torch

from fewfold import distributions as fd
from fewfold.distributions.integrals.panels import gauss_legendre
from tests.distributions.cases import TRIL3, real, seeded


def simplex_points(corners: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points inside a simplex, (m, corners), and weights that sum to its volume."""
    points, weights = gauss_legendre(count)
    points, weights = (points + 1) / 2, weights / 2
    left = torch.ones(1, dtype=torch.float64)
    rows, total = torch.zeros(1, 0, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for _ in range(corners - 1):  # each takes a part of what is left
        size = len(left)
        rows = rows.repeat_interleave(count, 0)
        part = points.repeat(size)
        whole = left.repeat_interleave(count)
        rows = torch.cat([rows, (whole * part).unsqueeze(-1)], -1)
        total = total.repeat_interleave(count) * weights.repeat(size) * whole
        left = whole * (1 - part)
    return torch.cat([rows, left.unsqueeze(-1)], -1), total


def mass(dist, count=lambda corners: 12) -> torch.Tensor:
    size = dist.event_shape[0]
    total = torch.zeros((), dtype=torch.float64)
    for corners in range(1, size + 1):
        inside, weights = simplex_points(corners, count(corners))
        for face in itertools.combinations(range(size), corners):
            y = torch.zeros(len(inside), size, dtype=torch.float64)
            y[:, list(face)] = inside
            total += (weights * dist.log_prob(y).exp()).sum()
    return total


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_gaussian_sparsemax(size):
    draw = seeded(size)
    loc = 0.4 * torch.randn(size, generator=draw, dtype=torch.float64)
    scale = 0.5 + 0.4 * torch.rand(size, generator=draw, dtype=torch.float64)
    found = mass(fd.GaussianSparsemax(loc, scale), lambda corners: 7 if corners > 4 else 10)
    assert (found - 1).abs() < 1e-6


def test_full_gaussian_sparsemax():
    dist = fd.GaussianSparsemax(real(0.5, 0.2, 0.0), scale_tril=TRIL3)
    assert (mass(dist, lambda corners: 30) - 1).abs() < 1e-6


@pytest.mark.parametrize("size", [4, 5, 6])
def test_full_gaussian_sparsemax_of_more(size):
    draw = seeded(size)
    noise = torch.randn(size, size, generator=draw, dtype=torch.float64)
    factor = 0.25 * noise.tril(-1) + 0.6 * torch.eye(size, dtype=torch.float64)
    loc = 0.3 * torch.randn(size, generator=draw, dtype=torch.float64)
    dist = fd.GaussianSparsemax(loc, scale_tril=factor)
    assert (mass(dist, lambda corners: 10 if corners > 4 else 14) - 1).abs() < 1e-6


def test_mixed_dirichlet():
    dist = fd.MixedDirichlet(real(0.5, -0.3, 0.1, 0.0), real(1.0, 2.0, 3.0, 2.0))
    assert (mass(dist) - 1).abs() < 1e-10


def test_longest_code():
    assert (
        mass(fd.MaxEntropyMixed(5, 1, dtype=torch.float64), lambda corners: 4) - 1
    ).abs() < 1e-10


def test_hard_concrete_of_two():
    dist = fd.HardConcrete(real(0.5, 0.1), 0.9, 1.3)
    assert (mass(dist, lambda corners: 60) - 1).abs() < 1e-10


@pytest.mark.parametrize("dist", [
    fd.Concrete(real(0.2, -0.1, 0.4), 0.9),
    fd.LogisticNormal(real(0.2, -0.1, 0.4), real(0.9, 0.8, 1.1)),
])  # fmt: skip
def test_inside_only(dist):
    """In scores that are 0 in the last place, where the integrand is smooth and decays."""
    axis = torch.linspace(-14, 14, 400, dtype=torch.float64)
    x = torch.cartesian_prod(axis, axis)
    y = torch.cat([x, torch.zeros(len(x), 1, dtype=torch.float64)], -1).softmax(-1)
    dist._validate_args = False
    density = dist.log_prob(y) + y.log().sum(-1)
    assert (density.exp().sum() * (axis[1] - axis[0]) ** 2 - 1).abs() < 1e-4
