"""Sampling from a sparse map: support only, with the right frequencies."""

import math

import pytest
import torch

from fewfold.losses import sample, sample_support
from fewfold.maps import Gini, Shannon, Tsallis, entmax
from fewfold.support import Support

from .cases import random_scores


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_frequencies(path):
    """Chi-square with 3 degrees of freedom per row: fails by chance once in 10,000 per row."""
    scores = torch.tensor([[0.5, 0.2, 0.1, 0.4, -9.0], [0.0, 0.0, 0.0, 0.0, -9.0]])
    draws = 20_000
    found = sample(scores, Tsallis(1.5), samples=draws, generator=generator())
    probs = entmax(scores, 1.5)
    for row, p in zip(found, probs, strict=True):
        counts = torch.bincount(row, minlength=5)
        assert counts[4] == 0
        expected = p[:4] * draws
        assert ((counts[:4] - expected) ** 2 / expected).sum() < 21.1


@pytest.mark.parametrize("omega", [Shannon(), Gini(), Tsallis(1.5)], ids=repr)
def test_only_the_support(omega, path):
    scores = 3 * random_scores(50, 200, dtype=torch.float32)
    scores[:, ::7] = -math.inf
    mask = random_scores(50, 200, seed=1) > 0
    found = sample(scores, omega, samples=40, mask=mask, generator=generator())
    assert found.shape == (50, 40)
    assert (omega.argmax(scores, mask=mask).gather(1, found) > 0).all()


def test_shapes_and_repeatability(path):
    scores = random_scores(2, 5, 3)
    found = sample(scores, dim=1, samples=4, generator=generator(7))
    assert found.shape == (2, 3, 4)
    assert torch.equal(found, sample(scores, dim=1, samples=4, generator=generator(7)))
    assert not torch.equal(found, sample(scores, dim=1, samples=4, generator=generator(8)))
    assert sample(scores[0, :, 0], generator=generator()).shape == (1,)
    assert sample(scores, samples=0).shape == (2, 5, 0)
    assert sample(torch.zeros(0, 5), samples=3).shape == (0, 3)


def test_support_in_any_order_with_any_atoms():
    atoms = torch.tensor([[9, 9], [1, 0], [0, 1], [5, 5]])
    support = Support(torch.tensor([0.5, 1.0, 0.5, 0.0]), atoms, torch.tensor([1, 0, 1, 0]), 2)
    found = sample_support(support, 100, generator=generator())
    assert found.shape == (2, 100, 2)
    assert (found[0] == torch.tensor([1, 0])).all()
    assert set(map(tuple, found[1].tolist())) == {(9, 9), (0, 1)}


def test_weights_need_not_sum_to_one():
    support = Support.from_dense(torch.tensor([[3.0, 1.0]]))
    found = sample_support(support, 4000, generator=generator())
    assert 0.2 < found.double().mean() < 0.3  # 0.25, seven deviations each way


def test_errors():
    empty = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])
    with pytest.raises(ValueError, match=r"got 0.0 in row 1; drop fully masked rows"):
        sample(empty)
    with pytest.raises(ValueError, match="samples must be"):
        sample(torch.zeros(2, 3), samples=-1)
    negative = Support(torch.tensor([2.0, -1.0]), torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    with pytest.raises(ValueError, match="at least 0"):
        sample_support(negative)


def test_atoms_in_any_order_of_rows():
    """Descending, and mixed; each row has an atom of its own."""
    for row in ([2, 1, 0], [1, 2, 0], [0, 2, 1]):
        support = Support(torch.ones(3), 10 * torch.tensor(row), torch.tensor(row), 3)
        found = sample_support(support, 20, generator=generator())
        assert (found == torch.tensor([[0], [10], [20]])).all()
