"""Densities of Gaussian-sparsemax and the expected products inside them."""

import numpy as np
import torch

import fewfold as ff
from fewfold.distributions.integrals.expected_product import log_expected_product
from tests.fuzz.compare import close, native, plain
from tests.fuzz.values import length, normal, pick, threads


def products(rng: np.random.Generator) -> int:
    """log E prod Phi(shift + slope x) of rows of every steepness."""
    threads(rng)
    n, rows = max(2, length(rng, 300)), int(rng.integers(1, 40))
    reach = float(pick(rng, (0.5, 5.0, 60.0)))
    slope = float(pick(rng, (0.0, 1e-30, 1e-3, 0.1, 1.0, 2.0, 6.0)))
    dtype = pick(rng, (torch.float32, torch.float64))
    shift, slopes = reach * normal(rng, rows, n), slope * normal(rng, rows, n)
    if rng.random() < 0.3:
        slopes = slopes.abs()
    given = shift.to(dtype), slopes.to(dtype)
    found, want = native(log_expected_product, *given), plain(log_expected_product, *given)
    tight = 1e-10 if dtype == torch.float64 else max(2e-5, 2e-7 * n)
    close(found, want, tight, relative=tight)
    return rows


def densities(rng: np.random.Generator) -> int:
    """log_prob of points on every kind of face."""
    threads(rng)
    n, rows = max(2, length(rng, 130)), int(rng.integers(1, 60))
    dtype = pick(rng, (torch.float32, torch.float64))
    own = bool(rng.random() < 0.5)
    loc = normal(rng, *((rows,) if own else ()), n, dtype=dtype)
    scale = (0.5 * normal(rng, *loc.shape)).exp().to(dtype)
    points = ff.sparsemax(float(pick(rng, (0.1, 1.0, 5.0))) * normal(rng, rows, n, dtype=dtype))

    def log_prob(y: torch.Tensor, at: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        dist = ff.GaussianSparsemax(at, by, validate_args=False)
        return dist.log_prob(y)

    found, want = native(log_prob, points, loc, scale), plain(log_prob, points, loc, scale)
    tight = 1e-7 if dtype == torch.float64 else 2e-3
    close(found, want, tight, relative=tight)
    return rows


TRIALS = {"products": products, "densities": densities}
