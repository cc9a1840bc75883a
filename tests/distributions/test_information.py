"""Entropy, divergence and mutual information: exact, or estimates with standard errors."""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

import fewfold as ff
from fewfold import distributions as fd
from tests.distributions.cases import TRIPLE, over, real, seeded
from tests.distributions.test_mass import simplex_points


def everywhere(size, count=40):
    """Points of all faces and their weights."""
    rows, weights = [], []
    for corners in range(1, size + 1):
        inside, weight = simplex_points(corners, count)
        for face in itertools.combinations(range(size), corners):
            y = torch.zeros(len(inside), size, dtype=torch.float64)
            y[:, list(face)] = inside
            rows.append(y)
            weights.append(weight)
    return torch.cat(rows), torch.cat(weights)


@over("entropy")
def test_exact_where_a_closed_form_is_known(case):
    found = fd.direct_sum_entropy(case.dist)
    assert found.standard_error == 0
    assert found.value == case.dist.entropy()


@over("kl")
def test_exact_divergence(case):
    found = fd.direct_sum_kl(case.dist, case.rival)
    assert found.standard_error == 0
    assert found.value == kl_divergence(case.dist, case.rival)


@over("kl")
def test_exact_divergences_broadcast_batches(case):
    one = kl_divergence(case.dist, case.rival)
    for p, q in (((), (4,)), ((4,), ()), ((2, 1), (4,))):
        found = fd.direct_sum_kl(case.dist.expand(p), case.rival.expand(q)).value
        torch.testing.assert_close(found, one.expand(torch.broadcast_shapes(p, q)))


def test_estimates_agree_with_quadrature():
    p = fd.GaussianSparsemax(*TRIPLE)
    q = fd.GaussianSparsemax(real(0.0, 0.2, 0.1), real(0.5, 0.4, 0.5))
    y, weight = everywhere(3)
    logs = p.log_prob(y)
    entropy = -(weight * logs.exp() * logs).sum()
    divergence = (weight * logs.exp() * (logs - q.log_prob(y))).sum()
    found = fd.direct_sum_entropy(p, samples=200_000, generator=seeded())
    assert 0 < found.standard_error < 0.01
    assert (found.value - entropy).abs() < 3 * found.standard_error
    found = fd.direct_sum_kl(p, q, samples=200_000, generator=seeded(1))
    assert (found.value - divergence).abs() < 3 * found.standard_error


def test_estimates_broadcast_batches():
    """Each draw is scored under every distribution, not under the one in its place."""
    p = fd.GaussianSparsemax(*TRIPLE)
    loc = torch.stack([TRIPLE[0], real(0.0, 0.2, 0.1), real(1.0, 0.2, 0.1), real(0.0, 0.0, 2.0)])
    q = fd.GaussianSparsemax(loc, TRIPLE[1])
    for samples in (4, 20_000):
        assert fd.direct_sum_kl(p, q, samples=samples).value.shape == (4,)
        assert fd.direct_sum_kl(q, p, samples=samples).value.shape == (4,)
    found = fd.direct_sum_kl(p, q, samples=20_000, generator=seeded())
    assert found.value[0].abs() + found.standard_error[0] < 1e-15
    for row in range(1, 4):
        one = fd.direct_sum_kl(p, fd.GaussianSparsemax(loc[row], TRIPLE[1]), generator=seeded(1))
        apart = (found.value[row] - one.value).abs()
        assert apart < 4 * (found.standard_error[row] + one.standard_error)
    pairs = fd.direct_sum_kl(p.expand((2, 1)), q, samples=4)
    assert pairs.value.shape == pairs.standard_error.shape == (2, 4)
    with pytest.raises(ValueError, match=r"must broadcast, got p \(3,\) and q \(4,\)"):
        fd.direct_sum_kl(p.expand((3,)), q)


def test_information_of_many_distributions_has_their_precision():
    """A seventh is not the same number in single precision."""
    dist = fd.GaussianSparsemax(torch.zeros(3, 3).double(), 1.0)
    found = fd.mutual_information(dist, samples=50)
    assert found.value.dtype == found.standard_error.dtype == torch.float64
    many = fd.BinaryHardConcrete(torch.linspace(-30, 30, 7).double(), 0.05, 1.5)
    exact = fd.mutual_information(
        many, torch.full((7,), 1 / 7, dtype=torch.float64), generator=seeded()
    )
    assert fd.mutual_information(many, generator=seeded()).value == exact.value
    table = fd.SparseCategorical(ff.Gini(), 5 * torch.eye(7).double())
    torch.testing.assert_close(
        fd.mutual_information(table).value, real(math.log(7))[0], rtol=0, atol=1e-14
    )


def test_gradient_of_an_estimated_entropy():
    """That of the integral, although the density jumps between faces."""
    loc, scale = (value.clone().requires_grad_() for value in TRIPLE)
    dist = fd.GaussianSparsemax(loc, scale)
    found = fd.direct_sum_entropy(dist, samples=100_000, generator=seeded())
    ours = torch.autograd.grad(found.value, [loc, scale])
    y, weight = everywhere(3)
    logs = dist.log_prob(y)
    exact = torch.autograd.grad(-(weight * logs.exp() * logs).sum(), [loc, scale])
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.03)
    assert abs(ours[0].sum()) < 1e-6  # a common shift changes nothing


def test_mutual_information_of_two_distributions():
    loc = real([0.8, 0.0], [0.0, 0.3])
    dist = fd.GaussianSparsemax(loc, 0.5)
    weights = real(0.3, 0.7)
    y, weight = everywhere(2, 60)
    each = dist.log_prob(y.unsqueeze(1))
    mixed = (each + weights.log()).logsumexp(-1)
    exact = (weight * (weights * each.exp() * (each - mixed.unsqueeze(-1))).sum(-1)).sum()
    found = fd.mutual_information(dist, weights, samples=100_000, generator=seeded())
    assert (found.value - exact).abs() < 3 * found.standard_error
    assert found.standard_error < 0.01


def test_mutual_information_of_categories():
    dist = fd.SparseCategorical(ff.Gini(), real([3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]))
    found = fd.mutual_information(dist)
    mixed = dist.probs.mean(0)
    exact = torch.special.entr(mixed).sum() - dist.entropy().mean()
    torch.testing.assert_close(found.value, exact)
    assert found.standard_error == 0
    same = fd.SparseCategorical(ff.Gini(), torch.zeros(4, 3))
    assert fd.mutual_information(same).value.abs() < 1e-6


def test_any_distribution_with_a_density():
    found = fd.direct_sum_entropy(Normal(0.0, 1.0))
    torch.testing.assert_close(found.value, Normal(0.0, 1.0).entropy())
    assert math.isclose(float(fd.direct_sum_kl(Normal(0.0, 1.0), Normal(1.0, 1.0)).value), 0.5)


def test_missing_faces_cost_everything():
    """A distribution inside the simplex has no density on the faces of the other."""
    p, q = fd.GaussianSparsemax(torch.zeros(3), 1.0), fd.Concrete(torch.zeros(3), 0.5)
    assert fd.direct_sum_kl(p, q, samples=100, generator=seeded()).value == math.inf
    assert fd.direct_sum_kl(q, p, samples=100, generator=seeded()).value.isfinite()


def test_what_is_asked_must_make_sense():
    with pytest.raises(ValueError, match="samples must be at least 2, got 1"):
        fd.direct_sum_entropy(fd.GaussianSparsemax(torch.zeros(3), 1.0), samples=1)
    with pytest.raises(ValueError, match=r"one for each x, got batch shape \(\)"):
        fd.mutual_information(fd.GaussianSparsemax(torch.zeros(3), 1.0))
