"""Item vectors predicted from features."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from fewfold.recommender import warm_vectors
from fewfold.recommender.warm_vectors import ridge_predictions, shrunk


def _case(items: int, features: int) -> tuple[csr_array, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(items)
    matrix = torch.randn(items, features, generator=generator)
    matrix *= torch.rand(items, features, generator=generator) < 0.4
    vectors = torch.randn(items, 3, generator=generator)
    counts = torch.randint(0, 30, (items,), generator=generator)
    counts[0] = 0
    return csr_array(matrix.numpy()), vectors, counts


@pytest.mark.parametrize("direct", [4096, 5])
@pytest.mark.parametrize(("items", "features"), [(40, 7), (8, 30), (30, 30)])
def test_ridge_equals_least_squares_of_the_extended_system(
    monkeypatch: pytest.MonkeyPatch, items: int, features: int, direct: int
) -> None:
    monkeypatch.setattr(warm_vectors, "_DIRECT", direct)
    matrix, vectors, counts = _case(items, features)
    found = list(ridge_predictions(matrix, vectors, counts, [0.3, 5.0]))
    known, dense = counts > 0, torch.from_numpy(np.asarray(matrix.todense())).double()
    weight = (counts[known] / (counts[known] + 10.0)).double().unsqueeze(1)
    mean = (weight * vectors[known]).sum(0) / weight.sum()
    for l2, prediction in zip([0.3, 5.0], found, strict=True):
        left = torch.cat([weight.sqrt() * dense[known], l2**0.5 * torch.eye(features).double()])
        right = torch.cat([weight.sqrt() * (vectors[known] - mean), torch.zeros(features, 3)])
        expected = mean + dense @ torch.linalg.lstsq(left, right.double()).solution
        torch.testing.assert_close(prediction.vectors.double(), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(prediction.mean.double(), mean)


def test_learned_vectors_are_drawn_to_predicted_ones_by_their_counts() -> None:
    learned, predicted = torch.ones(3, 2), torch.zeros(3, 2)
    counts = torch.tensor([0, 2, 6])
    found = shrunk(learned, predicted, counts, 2.0)
    torch.testing.assert_close(found[:, 0], torch.tensor([0.0, 0.5, 0.75]))
    assert shrunk(learned, predicted, counts, 0.0).tolist() == [[0, 0], [1, 1], [1, 1]]


def test_errors() -> None:
    matrix, vectors, counts = _case(8, 3)
    with pytest.raises(ValueError, match="same items, got 8, 7"):
        next(ridge_predictions(matrix, vectors[:7], counts, [1.0]))
    with pytest.raises(ValueError, match="no item has interactions"):
        next(ridge_predictions(matrix, vectors, 0 * counts, [1.0]))
    with pytest.raises(ValueError, match="strength"):
        shrunk(vectors, vectors, counts, -1.0)
