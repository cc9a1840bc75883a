"""A regulariser defined outside the package works everywhere without touching the package."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fewfold as ff


@dataclass(frozen=True)
class Scaled(ff.Omega):
    """`factor (sum p^2 - 1) / 2` on the simplex: sparsemax of scores divided by the factor."""

    factor: float | Tensor = 2.0

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return self.factor * (probs * (probs - 1)).sum(dim) / 2

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return ff.sparsemax(scores / self.factor, dim, mask=mask)


@dataclass(frozen=True)
class Box(ff.Omega):
    """`sum p^2 / 2` on the unit cube: every entry clipped to between 0 and 1 by itself."""

    on_simplex: ClassVar[bool] = False

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return probs.square().sum(dim) / 2

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        held = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        return held.clamp(0, 1)


both = pytest.mark.parametrize("omega", [Scaled(), Scaled(torch.tensor(0.5)), Box()], ids=str)


def scores_of(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@both
def test_module_support_and_conjugate(omega):
    scores = scores_of(4, 3000).requires_grad_()
    probs = ff.Map(omega)(scores)
    support = ff.map_support(scores, omega)
    torch.testing.assert_close(support.to_dense(3000), probs)
    (slope,) = torch.autograd.grad(omega.conjugate(scores).sum(), scores)
    torch.testing.assert_close(slope, probs)


@both
def test_loss_with_every_option_of_cross_entropy(omega):
    scores, index = scores_of(5, 7).requires_grad_(), torch.tensor([0, 3, -1, 6, 2])
    weight = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    hot = torch.nn.functional.one_hot(index.clamp(min=0), 7).double()
    for smoothing in (0.0, 0.1):
        each = ff.fenchel_young_loss(
            scores, index, omega, weight=weight, ignore_index=-1, reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        assert each[2] == 0
        assert bool((each >= 0).all())
        for reduction in ("mean", "sum"):
            loss = ff.FenchelYoungLoss(
                omega, weight=weight, ignore_index=-1, reduction=reduction,
                label_smoothing=smoothing,
            )(scores, index)  # fmt: skip
            total = (
                each.sum() if reduction == "sum" else each.sum() / weight[index[index >= 0]].sum()
            )
            if smoothing == 0:
                torch.testing.assert_close(loss, total)
            assert torch.autograd.gradcheck(
                lambda s, r=reduction, a=smoothing: ff.fenchel_young_loss(
                    s, index, omega, weight=weight, ignore_index=-1, reduction=r, label_smoothing=a
                ),
                scores,
            )
    plain = ff.fenchel_young_loss(scores, hot, omega, reduction="none")
    formula = omega.conjugate(scores) + omega.value(hot) - (scores * hot).sum(-1)
    torch.testing.assert_close(plain, formula)
    (slope,) = torch.autograd.grad(plain.sum(), scores)
    torch.testing.assert_close(slope, omega.argmax(scores) - hot)


@both
def test_chunked_attention_equals_the_plain_formula(omega, monkeypatch):
    monkeypatch.setattr("fewfold.attention.chunks._AT_ONCE", 64)
    monkeypatch.setattr("fewfold.attention.shapes._SMALL", 0)
    query, key, value = (scores_of(2, 9, 4, seed=s).requires_grad_() for s in range(3))
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    found = ff.sparse_attention(query, key, value, omega, is_causal=True)
    weights = omega.argmax(query @ key.mT / 2, mask=causal)
    torch.testing.assert_close(found, weights @ value)
    grads = torch.autograd.grad(found.square().sum(), (query, key, value))
    expected = torch.autograd.grad((weights @ value).square().sum(), (query, key, value))
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other)


@both
def test_hopfield_energy_falls_and_layers_run(omega):
    memory, query = scores_of(6, 4), scores_of(3, 4, seed=1)
    energy = ff.FenchelYoung(omega, beta=2.0)
    before = energy.value(query, memory)
    after = energy.value(ff.hopfield_retrieve(query, memory, energy, max_steps=3).state, memory)
    assert bool((after <= before + 1e-9).all())
    layer = ff.HopfieldPooling(4, omega=omega).double()
    assert layer(memory.unsqueeze(0)).shape == (1, 1, 4)


def test_exact_retrieval_is_predicted_without_a_margin():
    memory = torch.eye(4, dtype=torch.float64)
    ids = torch.arange(4)
    for beta in (1.0, 3.0):
        energy = ff.FenchelYoung(Scaled(), beta=beta)
        stays = (energy.step(memory, memory) == memory).all(-1)
        assert ff.hopfield.retrieved_in_one_step(memory, memory, ids, energy).equal(stays)
    sets = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    energy = ff.FenchelYoung(Box(), beta=2.0)
    assert bool(ff.hopfield.is_stored(memory, energy, sets).all())


def test_what_is_no_regulariser_is_refused():
    class Duck:
        def value(self, probs, dim=-1):
            return probs.sum(dim)

        def argmax(self, scores, dim=-1, *, mask=None):
            return scores

    for wrong in (Duck(), ff.Gini):
        with pytest.raises(TypeError, match=r"omega must be a regulariser.*derive from ff\.Omega"):
            ff.fenchel_young_loss(scores_of(2, 3), torch.tensor([0, 1]), wrong)
