"""Reference values computed independently in high precision."""

import math

import pytest
import torch

from fewfold.losses import (
    entmax_loss,
    epsilon_perplexity,
    fenchel_young_loss,
    jensen_shannon,
    ksubset_loss,
    normmax_loss,
    optimal_epsilon,
    softmax_loss,
    sparsemax_loss,
    sparsemax_score,
)
from fewfold.maps import Gini, Norm, Shannon, Subset, Tsallis

SCORES = torch.tensor([1.0716, -1.1221, -0.3288, 0.3368, 0.0425], dtype=torch.float64)
SOFT = torch.tensor([0.5, 0.0, 0.0, 0.25, 0.25], dtype=torch.float64)

# name: (generic, by name, against class 0, against class 3, against SOFT)
GOLD = {
    "softmax": (
        Shannon(),
        softmax_loss,
        (0.7861508605178956, 1.5209508605178956, 0.18740508967797767),
    ),
    "entmax 1.25": (
        Tsallis(1.25),
        lambda s, y: entmax_loss(s, y, 1.25),
        (0.34263171190180924, 1.0774317119018093, 0.06041182620622853),
    ),
    "entmax 1.5": (
        Tsallis(1.5),
        entmax_loss,
        (0.14279934745561493, 0.877599347455615, 0.05517886824664661),
    ),
    "sparsemax": (Gini(), sparsemax_loss, (0.01758276, 0.75238276, 0.14605776)),
    "entmax 2": (
        Tsallis(2.0),
        lambda s, y: entmax_loss(s, y, 2.0),
        (0.01758276, 0.75238276, 0.14605776),
    ),
    "entmax 3": (Tsallis(3.0), lambda s, y: entmax_loss(s, y, 3.0), (0.0, 0.7348, 0.30035)),
    "normmax 2": (
        Norm(2.0),
        normmax_loss,
        (0.028433433563226706, 0.7632334335632267, 0.08178086925902123),
    ),
    "normmax 5": (
        Norm(5.0),
        lambda s, y: normmax_loss(s, y, 5.0),
        (0.09105691482591695, 0.8258569148259169, 0.03813127945088821),
    ),
}


@pytest.mark.parametrize("name", GOLD)
def test_class_and_soft_targets(name, path):
    omega, member, expected = GOLD[name]
    targets = (torch.tensor(0), torch.tensor(3), SOFT)
    for target, value in zip(targets, expected, strict=True):
        for loss in (fenchel_young_loss(SCORES, target, omega), member(SCORES, target)):
            assert float(loss) == pytest.approx(value, abs=1e-13)


@pytest.mark.parametrize(
    ("chosen", "value"), [((0, 3), 0.1245031225), ((1, 2), 2.9838031225)], ids=["near", "far"]
)
def test_two_of_five(chosen, value, path):
    target = torch.zeros_like(SCORES)
    target[list(chosen)] = 1.0
    assert float(ksubset_loss(SCORES, target, k=2)) == pytest.approx(value, abs=1e-13)
    assert float(fenchel_young_loss(SCORES, target, Subset(2))) == pytest.approx(value, abs=1e-13)
    assert float(ksubset_loss(SCORES, target.bool(), k=2)) == pytest.approx(value, abs=1e-13)


PROBS = torch.tensor([[0.7, 0.3, 0.0, 0.0]], dtype=torch.float64)


def test_metrics():
    def at(metric, target, *more):
        return float(metric(PROBS, torch.tensor([target]), *more))

    assert at(epsilon_perplexity, 1, 0.01) == pytest.approx(3.3548387096774195, rel=1e-13)
    assert at(epsilon_perplexity, 2, 0.01) == pytest.approx(104.0, rel=1e-13)
    assert at(sparsemax_score, 0) == pytest.approx(0.91, rel=1e-13)
    assert at(sparsemax_score, 2) == pytest.approx(0.21, rel=1e-13)
    assert at(jensen_shannon, 0) == pytest.approx(0.11727693677854414, rel=1e-13)
    assert at(jensen_shannon, 2) == pytest.approx(0.6931471805599453, rel=1e-13)


def test_optimal_epsilon():
    given = torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64)
    epsilon = optimal_epsilon(given, classes=4)
    # The slope vanishes where 0.0675 lam^2 - 0.34 lam + 0.21 = 0.
    lam = (0.34 - math.sqrt(0.34**2 - 4 * 0.0675 * 0.21)) / 0.135
    assert lam == pytest.approx(0.7207909, abs=1e-7)
    assert epsilon == pytest.approx(lam / (4 * (1 - lam)), rel=1e-12)
    rows = PROBS.expand(3, 4)
    perplexity = epsilon_perplexity(rows, torch.tensor([0, 2, 1]), epsilon)
    assert float(perplexity) == pytest.approx(3.825120202954745, rel=1e-12)
