"""The threshold of rows that are read in chunks, by Newton's method."""

import pytest
import torch

from fewfold.losses.linear.dense_rows import _find_shift, _measure


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 1.5, 2.0])  # alpha - 1
@pytest.mark.parametrize("start", [-3.0, 0.0, 2.0])
def test_the_weights_at_the_shift_sum_to_the_goal(c, start):
    """From either side; for c above 1, steps without a bracket would go back and forth."""
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        scores = scale * torch.randn(64, 12, dtype=torch.float64, generator=generator)
        first = scores.mean(1, keepdim=True) + start * scale

        def measure(at, scores=scores):
            return _measure((scores - at).split(5, dim=1), c)

        shift, found = _find_shift(measure, first, c, 1.0)
        weights = (
            (1 + c * (scores - shift)).clamp(min=0) ** (1 / c) if c else (scores - shift).exp()
        )
        torch.testing.assert_close(weights.sum(1), torch.ones(64).double(), atol=1e-9, rtol=0)
        torch.testing.assert_close(found.total[:, 0], weights.sum(1))
