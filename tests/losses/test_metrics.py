"""Metrics of sparse language models against their definitions."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fewfold.losses import (
    epsilon_perplexity,
    jensen_shannon,
    optimal_epsilon,
    sparsemax_loss,
    sparsemax_score,
)
from fewfold.maps import sparsemax

from .cases import close, random_scores


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def test_definitions():
    probs = sparsemax(random_scores(20, 6))
    target = torch.arange(20) % 6
    one_hot = F.one_hot(target, 6).double()
    middle = (probs + one_hot) / 2
    want = (divergence(probs, middle) + divergence(one_hot, middle)) / 2
    close(jensen_shannon(probs, target, reduction="none"), want, 1e-12)
    want = 1 - (one_hot - probs).square().sum(-1) / 2
    close(sparsemax_score(probs, target, reduction="none"), want, 1e-12)
    smoothed = (probs + 0.1) / (1 + 0.1 * 6)
    chosen = smoothed[torch.arange(20), target]
    close(epsilon_perplexity(probs, target, 0.1), (-chosen.log().mean()).exp(), 1e-12)


def test_divergence_of_two_distributions():
    """Also where both, or one of them, are exactly zero."""
    probs, other = (sparsemax(random_scores(20, 6, seed=seed)) for seed in (0, 1))
    middle = (probs + other) / 2
    want = (divergence(probs, middle) + divergence(other, middle)) / 2
    close(jensen_shannon(probs, other, reduction="none"), want, 1e-12)
    close(jensen_shannon(other, probs), want.mean(), 1e-12)
    assert jensen_shannon(probs, probs) == 0
    assert jensen_shannon(torch.tensor([math.nan, 0.5]), torch.tensor([0.5, 0.5])).isnan()
    index = torch.arange(20) % 6
    close(jensen_shannon(probs, F.one_hot(index, 6).double()), jensen_shannon(probs, index), 1e-12)
    close(
        jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])),
        torch.tensor(math.log(2)),
        1e-6,
    )


def test_divergence_of_two_distributions_has_a_gradient():
    probs, other = (random_scores(3, 4, seed=seed).softmax(-1) for seed in (0, 1))
    assert torch.autograd.gradcheck(
        jensen_shannon, (probs.requires_grad_(), other.requires_grad_())
    )
    sparse = torch.tensor([0.0, 0.25, 0.75, 0.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.5, 0.0, 0.5, 0.0], dtype=torch.float64)
    jensen_shannon(sparse, target).backward()
    assert bool(sparse.grad.isfinite().all())


def test_sparsemax_score_is_one_less_the_loss():
    """Against a class in the support; elsewhere the loss is unbounded and the score is not."""
    scores = torch.tensor([[1.0, 0.4, 0.1], [3.0, 0.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([1, 0])
    score = sparsemax_score(sparsemax(scores), target, reduction="none")
    loss = sparsemax_loss(scores, target, reduction="none")
    close(score, 1 - loss, 1e-12)


def test_limits():
    probs = torch.tensor([[1.0, 0.0, 0.0]])
    assert epsilon_perplexity(probs, torch.tensor([0]), 0.0) == 1
    assert epsilon_perplexity(probs, torch.tensor([1]), 0.0) == math.inf
    assert float(epsilon_perplexity(probs, torch.tensor([1]), math.inf)) == pytest.approx(3.0)
    assert jensen_shannon(probs, torch.tensor([0])) == 0
    assert sparsemax_score(probs, torch.tensor([1])) == 0


def test_ignored_rows_and_shapes():
    probs = torch.softmax(random_scores(2, 3, 5), -1)
    target = torch.tensor([[0, 1, -100], [4, -100, 2]])
    kept = target != -100
    for metric in (epsilon_perplexity, sparsemax_score, jensen_shannon):
        close(metric(probs, target), metric(probs[kept], target[kept]))
    assert jensen_shannon(probs, target, reduction="none").shape == (2, 3)


@given(
    st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.25, 0.3, 0.9, 1.0]), min_size=1, max_size=12),
    st.integers(2, 50),
)
def test_no_other_epsilon_is_better(given_probs, classes):
    chosen = torch.tensor(given_probs, dtype=torch.float64)
    best = optimal_epsilon(chosen, classes)

    def perplexity(epsilon: float) -> float:
        share = 1.0 if epsilon == math.inf else epsilon * classes / (1 + epsilon * classes)
        return float((-((1 - share) * chosen + share / classes).log().mean()).exp())

    at = perplexity(best)
    others = [0.0, 1e-8, 1e-4, 0.01, 0.1, 1.0, 100.0, math.inf, best * 1.01, best * 0.99]
    assert all(at <= perplexity(other) * (1 + 1e-9) for other in others)


def test_errors():
    probs = torch.full((2, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"epsilon must be at least 0, got -1"):
        epsilon_perplexity(probs, torch.tensor([0, 1]), -1.0)
    with pytest.raises(ValueError, match=r"target must have shape \(2,\)"):
        sparsemax_score(probs, torch.tensor([0]))
    for metric in (sparsemax_score, epsilon_perplexity):
        with pytest.raises(TypeError, match=r"got probabilities.*target.argmax\(-1\)"):
            metric(probs, probs)
    with pytest.raises(TypeError, match=r"float32 of shape \(2,\); write target.long\(\)"):
        jensen_shannon(probs, torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"target must have shape.*write target.argmax\(-1\)"):
        jensen_shannon(probs, F.one_hot(torch.tensor([0, 1]), 3))
    with pytest.raises(ValueError, match=r"classes last.*probs.movedim\(1, -1\)"):
        jensen_shannon(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"ignore_index=0 needs class indices"):
        jensen_shannon(probs, probs, ignore_index=0)
    with pytest.raises(ValueError, match=r"got 3 at position \(1,\)"):
        jensen_shannon(probs, torch.tensor([0, 3]))
    with pytest.raises(TypeError, match=r"got torch.bool of shape \(2,\); write target.long\(\)"):
        jensen_shannon(probs, torch.tensor([True, False]))
    with pytest.raises(TypeError, match=r"write torch.as_tensor\(target_probs\)"):
        optimal_epsilon([0.5], 4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        optimal_epsilon(torch.tensor([1.5]), 4)
    with pytest.raises(ValueError, match="at least one"):
        optimal_epsilon(torch.tensor([]), 4)
    with pytest.raises(ValueError, match="positive int"):
        optimal_epsilon(torch.tensor([0.5]), 0)
