"""Error messages: what was expected, what was given, and what to write."""

import pytest
import torch

from fewfold.losses import (
    FenchelYoungLoss,
    entmax_loss,
    fenchel_young_loss,
    ksubset_loss,
    linear_entmax_loss,
    normmax_loss,
    sparsemax_loss,
)
from fewfold.maps import Gini, Subset, sparsemax

SCORES = torch.zeros(4, 5)
INDEX = torch.tensor([0, 1, 2, 3])


def test_scores():
    with pytest.raises(TypeError, match=r"got torch.int64; write scores.float\(\)"):
        sparsemax_loss(SCORES.long(), INDEX)
    with pytest.raises(TypeError, match=r"must be a torch.Tensor, got list"):
        sparsemax_loss([[0.0, 1.0]], INDEX)
    with pytest.raises(ValueError, match="at least one class"):
        sparsemax_loss(torch.zeros(4, 0), INDEX)
    with pytest.raises(ValueError, match="at least one dimension"):
        sparsemax_loss(torch.tensor(0.0), torch.tensor(0))


def test_targets():
    with pytest.raises(ValueError, match=r"between 0 and 4 .* got 5 at position \(2,\)"):
        sparsemax_loss(SCORES, torch.tensor([0, 1, 5, 7]))
    with pytest.raises(ValueError, match=r"ignore_index=-100, got -1 at position \(0, 1\)"):
        sparsemax_loss(torch.zeros(1, 5, 2), torch.tensor([[-100, -1]]))
    with pytest.raises(ValueError, match=r"class indices of shape \(4,\) .* got \(3,\)"):
        sparsemax_loss(SCORES, INDEX[:3])
    with pytest.raises(ValueError, match=r"target.float\(\) for probabilities"):
        sparsemax_loss(SCORES, torch.ones(4, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"probabilities of shape \(4, 5\).* target.long\(\)"):
        sparsemax_loss(SCORES, INDEX.float())
    with pytest.raises(TypeError, match=r"write torch.as_tensor\(target\)"):
        sparsemax_loss(SCORES, [0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"ignore_index=2 needs class indices"):
        sparsemax_loss(SCORES, SCORES, ignore_index=2)
    with pytest.raises(TypeError, match=r"ignore_index must be an int, got None"):
        sparsemax_loss(SCORES, INDEX, ignore_index=None)
    with pytest.raises(TypeError, match=r"probabilities \(float\), got torch.complex64"):
        sparsemax_loss(SCORES, SCORES.to(torch.complex64))


def test_options():
    with pytest.raises(ValueError, match=r"'none', 'mean' or 'sum', got 'average'"):
        sparsemax_loss(SCORES, INDEX, reduction="average")
    with pytest.raises(ValueError, match=r"label_smoothing must be between 0 and 1, got 1.5"):
        sparsemax_loss(SCORES, INDEX, label_smoothing=1.5)
    with pytest.raises(ValueError, match=r"weight must have shape \(5,\), .* got \(4,\)"):
        sparsemax_loss(SCORES, INDEX, weight=torch.ones(4))
    with pytest.raises(TypeError, match="weight must be a floating-point tensor"):
        sparsemax_loss(SCORES, INDEX, weight=torch.ones(5, dtype=torch.long))
    with pytest.raises(ValueError, match="reduction"):
        FenchelYoungLoss(reduction="max")


def test_parameters():
    with pytest.raises(ValueError, match="alpha must be finite and greater than 0, got -1"):
        entmax_loss(SCORES, INDEX, alpha=-1.0)
    with pytest.raises(ValueError, match=r"alpha must be finite and greater than 1, got 1.0"):
        normmax_loss(SCORES, INDEX, alpha=1.0)
    with pytest.raises(ValueError, match="alpha must"):
        entmax_loss(SCORES, INDEX, alpha=torch.full((4,), 1.5))
    with pytest.raises(ValueError, match="alpha must"):
        entmax_loss(SCORES, INDEX, alpha=torch.full((4, 5), 1.5))


@pytest.mark.parametrize("omega", [Gini, "Gini", sparsemax], ids=["class", "string", "function"])
def test_omega(omega):
    with pytest.raises(TypeError, match=r"such as Gini\(\) or Tsallis\(1.5\), got '?(Gini|sparse)"):
        fenchel_young_loss(SCORES, INDEX, omega)


def test_subsets():
    with pytest.raises(ValueError, match=r"Subset\(k=2\) needs a target of the shape"):
        fenchel_young_loss(SCORES, INDEX, Subset(2))
    with pytest.raises(ValueError, match=r"with k ones in every row, got \(4,\)"):
        ksubset_loss(SCORES, INDEX, k=2)
    target = torch.zeros(4, 5)
    target[:, :2] = 1.0
    target[2, 2] = 1.0
    with pytest.raises(ValueError, match=r"sum to k=2, got 3 at position \(2,\)"):
        ksubset_loss(SCORES, target, k=2)
    with pytest.raises(ValueError, match=r"sum to at most k=2, got 3 at position \(2,\)"):
        ksubset_loss(SCORES, target, k=2, at_most=True)
    target[2] = 0.0
    target[2, 0] = 1.0
    with pytest.raises(ValueError, match=r"sum to k=2, got 1 at position \(2,\)"):
        ksubset_loss(SCORES, target, k=2)
    assert ksubset_loss(SCORES, target, k=2, at_most=True).isfinite()
    with pytest.raises(TypeError, match=r"scores must be a torch.Tensor, got list"):
        ksubset_loss([[0.0, 1.0]], target, k=2)
    with pytest.raises(ValueError, match="k must be"):
        ksubset_loss(SCORES, torch.full((4, 5), 1.2), k=6)


def test_linear():
    hidden, table = torch.zeros(4, 3), torch.zeros(5, 3)
    with pytest.raises(ValueError, match=r"linear_weight must have shape \(classes, 3\)"):
        linear_entmax_loss(hidden, table.T, INDEX)
    with pytest.raises(TypeError, match=r"same dtype, got torch.float32 and torch.float64"):
        linear_entmax_loss(hidden, table.double(), INDEX)
    with pytest.raises(ValueError, match=r"linear_bias must have shape \(5,\), got \(3,\)"):
        linear_entmax_loss(hidden, table, INDEX, linear_bias=torch.zeros(3))
    with pytest.raises(ValueError, match=r"target must have shape \(4,\) .* got \(3,\)"):
        linear_entmax_loss(hidden, table, INDEX[:3])
    with pytest.raises(ValueError, match=r"got 5 at position \(1,\)"):
        linear_entmax_loss(hidden, table, torch.tensor([0, 5, 1, 2]))
    with pytest.raises(ValueError, match="write sparse_grad=False"):
        linear_entmax_loss(hidden, table, INDEX, sparse_grad=True, label_smoothing=0.1)
    with pytest.raises(ValueError, match="alpha must be finite"):
        linear_entmax_loss(hidden, table, INDEX, alpha=0.0)
    with pytest.raises(ValueError, match="chunk_size must be"):
        linear_entmax_loss(hidden, table, INDEX, chunk_size=0)
    with pytest.raises(ValueError, match="chunk_size must be an int"):
        linear_entmax_loss(hidden, table, INDEX, chunk_size=2.5)
    with pytest.raises(TypeError, match=r"write linear_bias.to\(linear_weight.dtype\)"):
        linear_entmax_loss(hidden, table, INDEX, linear_bias=torch.zeros(5).double())
    with pytest.raises(TypeError, match=r"linear_bias must .* got torch.int64"):
        linear_entmax_loss(hidden, table, INDEX, linear_bias=torch.zeros(5).long())
    with pytest.raises(ValueError, match=r"target must have shape \(4, 5\) .* of dtype torch.bool"):
        linear_entmax_loss(hidden, table, INDEX > 1)
    with pytest.raises(TypeError, match=r"write torch.as_tensor\(target\)"):
        linear_entmax_loss(hidden, table, [0, 1, 2, 3])
    made = (2 * table).requires_grad_()
    linear_entmax_loss(hidden, made, INDEX, sparse_grad=True).backward()
    with pytest.raises(ValueError, match=r"leaf, .* through MulBackward0; write sparse_grad=False"):
        linear_entmax_loss(hidden, 2 * made, INDEX, sparse_grad=True)
