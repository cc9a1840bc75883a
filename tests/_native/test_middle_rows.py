"""Rows of middling length around the thresholds of their kernels, compared with plain torch."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from tests.paths import kernels_only

pytestmark = kernels_only
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
SIZES = pytest.mark.parametrize(
    "size", [64, 65, 66, 79, 80, 127, 128, 129, 1023, 1024, 1025, 2048, 2049]
)
ALPHAS = (2.0, 1.7, 1.5, 1.4, 1.25)


def compare(scores: Tensor, alpha: float, norm: bool = False) -> None:
    """Compare the map and its gradient with those of plain torch in double precision."""
    function = ff.normmax if norm else ff.entmax
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    given = scores.clone().requires_grad_()
    wide = scores.double().requires_grad_()
    probs = function(given, alpha)
    (pulled,) = torch.autograd.grad(probs, given, grad.to(scores.dtype))
    with _native.disabled():
        expected = function(wide, alpha)
        (slope,) = torch.autograd.grad(expected, wide, grad.double())
    torch.testing.assert_close(probs.double(), expected, atol=2e-6, rtol=0)
    # Next to the threshold p^(2 - alpha) is steep: an error of p of 1e-7 is a larger one there.
    torch.testing.assert_close(pulled.double(), slope, atol=2e-3, rtol=0)
    assert float((pulled.double() - slope).abs().mean()) < 2e-6


@SIZES
@DTYPES
def test_normal_rows(size, dtype):
    """Also rows that are too few for a team, and far from zero, of which some are shifted."""
    scores = torch.randn(37, size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    scores[5] += 1000
    scores[17:20] -= 200
    scores[20:24] += 50
    for alpha in ALPHAS:
        compare(scores, alpha)
    for alpha in (2.0, 1.7):
        compare(scores, alpha, norm=True)


@pytest.mark.parametrize("many", [1, 4, 5, 6, 20, 63, 64, 65, 66, 120])
@DTYPES
def test_supports_of_every_size(many, dtype):
    """The largest entries lie side by side, spread out, or all in one part of sixteen."""
    generator = torch.Generator().manual_seed(many)
    scores = torch.full((48, 2000), -9.0, dtype=dtype)
    for row in range(48):
        place = torch.arange(many) * (1, 7, 16)[row % 3] + row
        near = 0.5 / many * torch.rand(many, generator=generator, dtype=dtype)
        scores[row, place] = near + (0.1 * row if row < 24 else 100.0)
    for alpha in ALPHAS:
        assert int((ff.entmax(scores, alpha) > 0).sum()) == 48 * many
        compare(scores, alpha)
    compare(scores, 1.7, norm=True)


@DTYPES
def test_constant_rows_next_to_rows_without_an_answer(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(33, 500, generator=generator, dtype=dtype)
    scores[0] = scores[20] = 0.5
    scores[3, 77] = scores[31, 499] = torch.nan
    scores[4, 3] = scores[4, 300] = torch.inf
    scores[6] = -torch.inf
    scores[7, 10:] = -torch.inf
    scores[8] *= 1e30
    for alpha in ALPHAS:
        with _native.disabled():
            expected = ff.entmax(scores.double(), alpha)
        probs = ff.entmax(scores, alpha).double()
        torch.testing.assert_close(probs, expected, atol=2e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("size", [40, 100, 1024])
@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_gradients_off_the_support_do_not_count(size, alpha):
    scores = torch.randn(19, size, generator=torch.Generator().manual_seed(0), requires_grad=True)
    probs = ff.entmax(scores, alpha)
    grad = torch.randn(19, size, generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.grad(probs, scores, grad, retain_graph=True)
    for other in (torch.nan, torch.inf):
        (pulled,) = torch.autograd.grad(
            probs, scores, grad.masked_fill(probs == 0, other), retain_graph=True
        )
        assert torch.equal(pulled, expected)
