"""The interval of a paired difference against the normal approximation and a plain loop."""

import numpy as np
import pytest
import torch

from fewfold.recommender.evaluation.paired_interval import PairedInterval, paired_interval


def test_it_agrees_with_the_standard_error() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = torch.rand(4000, generator=generator, dtype=torch.float64)
    gain = 0.02 + 0.1 * torch.randn(4000, generator=generator, dtype=torch.float64)
    found = paired_interval(shared + gain, shared)
    error = 1.96 * float(gain.std()) / 4000**0.5
    assert found.mean == pytest.approx(float(gain.mean()))
    assert found.low == pytest.approx(found.mean - error, abs=0.1 * error)
    assert found.high == pytest.approx(found.mean + error, abs=0.1 * error)
    assert not found.contains_zero
    wide = paired_interval(shared + gain, shared, level=0.99)
    assert wide.low < found.low < found.high < wide.high
    swapped = paired_interval(shared, shared + gain)
    assert swapped == PairedInterval(-found.mean, -found.high, -found.low)


def test_it_is_the_bootstrap_over_users() -> None:
    first, second = torch.tensor([0.3, 0.9, 0.1]), torch.tensor([0.2, 1.0, 0.4])
    rng = np.random.default_rng(5)
    means = []
    for _ in range(50):
        users = rng.integers(0, 3, 3)
        means.append(np.mean([float(first[u]) - float(second[u]) for u in users]))
    found = paired_interval(first, second, resamples=50, seed=5)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert found.contains_zero


def test_errors_say_what_to_pass() -> None:
    one = torch.zeros(3)
    for other in (torch.zeros(2), torch.zeros(3, 1)):
        with pytest.raises(ValueError, match="scores of the same users"):
            paired_interval(one, other)
    with pytest.raises(ValueError, match="scores of the same users"):
        paired_interval(one[:0], one[:0])
    with pytest.raises(ValueError, match=r"level must be between 0 and 1, got 95; write 0\.95"):
        paired_interval(one, one, level=95)
