"""Rows wide enough to be filtered before they are solved: spikes in every lane, Zipf scores."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold import _native
from tests.paths import on_path

pytestmark = pytest.mark.native

SAMPLED = 16384  # from here on the first bound comes from sampled entries: 8 PIECEs of stream.h
MAPS = {
    "sparsemax": (ff.sparsemax, 0.6),
    "entmax 1.5": (lambda z: ff.entmax(z, 1.5), 1.1),
    "entmax 1.25": (lambda z: ff.entmax(z, 1.25), 2.0),
    "normmax 2": (lambda z: ff.normmax(z, 2.0), 0.6),
}
every_map = pytest.mark.parametrize("name", MAPS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@every_map
@dtypes
@pytest.mark.parametrize("n", [SAMPLED - 1, SAMPLED, SAMPLED + 77])
def test_two_spikes_share_a_row_wherever_they_are(name, dtype, n):
    """The larger one at each of the first places, so that it falls into each SIMD lane once."""
    function, lead = MAPS[name]
    top = torch.arange(72)  # 64 lanes at most
    scores = torch.full((len(top), n), -50.0, dtype=dtype)
    scores[torch.arange(len(top)), top] = 0.0
    second = (n // 2 + 7 * top) % n
    scores[torch.arange(len(top)), second] = -lead
    with on_path("native"):
        probs = function(scores)
    pair = torch.tensor([0.0, -lead], dtype=dtype)
    expected = torch.zeros_like(scores).scatter_(
        1, torch.stack([top, second], 1), function(pair).expand(len(top), 2)
    )
    torch.testing.assert_close(probs, expected, atol=1e-6, rtol=1e-5)


def zipf_scores(rows: int, n: int, seed: int) -> Tensor:
    """Scores of a vocabulary sorted by frequency, as an output layer gives them."""
    generator = torch.Generator().manual_seed(seed)
    frequency = -torch.log(torch.arange(1, n + 1, dtype=torch.float64))
    return frequency + 1.5 * torch.randn(rows, n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", [32_000, 50_257])
@pytest.mark.parametrize("omega", [ff.Gini(), ff.Tsallis(1.5), ff.Norm(2.0)], ids=str)
def test_vocabularies_sorted_by_frequency(n, omega):
    """The map, its support, its loss and its gradient against plain torch in double precision."""
    scores = zipf_scores(40, n, seed=n)
    target = torch.arange(len(scores))
    with _native.disabled():
        expected = omega.argmax(scores)
        loss = ff.fenchel_young_loss(scores, target, omega=omega, reduction="none")
    slopes = expected.scatter_add(1, target[:, None], expected.new_full((len(scores), 1), -1.0))
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        rows = scores.to(dtype).requires_grad_()
        with on_path("native"):
            probs = omega.argmax(rows)
            support = ff.map_support(rows, omega).to_dense(n)
            losses = ff.fenchel_young_loss(rows, target, omega=omega, reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), rows)
        for got, want in ((probs, expected), (support, expected), (losses, loss), (slope, slopes)):
            torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)
