"""Associative memories: energies fall, patterns are retrieved exactly when they should be."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.attention import (
    Classical,
    DenseAssociative,
    Exponential,
    FenchelYoung,
    LayerNormed,
    Sphere,
    hopfield_retrieve,
    is_stored,
    retrieved_in_one_step,
    separation,
    storage_bound,
)

D = torch.float64
GOLD = json.loads((Path(__file__).parent / "gold.json").read_text())
OMEGAS = {
    "softmax": ff.Shannon(),
    "entmax15": ff.Tsallis(1.5),
    "sparsemax": ff.Gini(),
    "normmax2": ff.Norm(2.0),
    "normmax5": ff.Norm(5.0),
    "ksubset2": ff.Subset(2),
    "2 as structures": ff.SparseMAP(ff.structures.KSubset(2)),
    "2 in a row": ff.SparseMAP(ff.structures.SequentialSubset(2, 0.5)),
}
SIGNED = {"classical": Classical(), "dense": DenseAssociative(3), "exponential": Exponential()}
ENERGIES = {name: FenchelYoung(omega, beta=2.0) for name, omega in OMEGAS.items()}


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


@pytest.mark.parametrize("name", [name for name in OMEGAS if name in GOLD])
def test_gold(name) -> None:
    gold = GOLD[name]
    memory, query = (torch.tensor(GOLD[what], dtype=D) for what in ("X", "q"))
    energy = FenchelYoung(OMEGAS[name], GOLD["beta"])
    query = query.unsqueeze(0)
    for found, want in (
        (energy.probs(query, memory), gold["p"]),
        (energy.step(query, memory), gold["q_next"]),
    ):
        torch.testing.assert_close(found[0], torch.tensor(want, dtype=D), atol=1e-12, rtol=0)
    if "energy" in gold:
        value = energy.value(query, memory)
        assert float(value) == pytest.approx(gold["energy"], abs=1e-12)
        shifted = float(value + energy.offset(memory))
        assert shifted == pytest.approx(gold["energy_shifted_nonneg"], abs=1e-12)


@pytest.mark.parametrize("beta", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("name", OMEGAS)
def test_energy_never_rises(name, beta) -> None:
    memory, query = _random(7, 5), _random(40, 5, seed=1)
    for psi in (ff.Quadratic(), Sphere(2.0), LayerNormed()):
        energy = FenchelYoung(OMEGAS[name], beta, psi)
        state = psi.settle(query)  # where the energy is finite
        value = energy.value(state, memory)
        for _ in range(20):
            state = energy.step(state, memory)
            after = energy.value(state, memory)
            assert bool((after <= value + 1e-10).all())
            value = after


@pytest.mark.parametrize("name", SIGNED)
def test_energy_of_signs_never_rises(name) -> None:
    memory, state = _random(6, 30).sign(), _random(50, 30, seed=1).sign()
    energy = SIGNED[name]
    value = energy.value(state, memory)
    for _ in range(10):
        state = energy.step(state, memory)
        assert bool((state.abs() == 1).all())
        after = energy.value(state, memory)
        assert bool((after <= value + 1e-10).all())
        value = after


@pytest.mark.parametrize("name", SIGNED)
def test_signs_are_repaired(name) -> None:
    memory = _random(4, 200).sign()
    query = memory.clone()
    query[:, :40] *= -1
    assert torch.equal(hopfield_retrieve(query, memory, SIGNED[name]).state, memory)


def test_offset_bounds_the_energy_from_below() -> None:
    memory = _random(7, 5)
    weights = torch.rand(200, 7, generator=torch.Generator().manual_seed(1), dtype=D)
    inside = (weights / weights.sum(1, keepdim=True)) @ memory
    for omega in (ff.Shannon(), ff.Tsallis(1.5), ff.Gini(), ff.Norm(2.0)):
        energy = FenchelYoung(omega, 1.5)
        assert bool((energy.value(inside, memory) + energy.offset(memory) >= 0).all())


@pytest.mark.parametrize("name", ["entmax15", "sparsemax", "normmax2", "normmax5"])
def test_exact_retrieval_is_predicted(name) -> None:
    """10,000 queries around random patterns: those predicted arrive, at distance 0; no others."""
    memory = torch.nn.functional.normalize(_random(100, 20), dim=1)
    target = torch.arange(10_000) % 100
    far = torch.linspace(0, 0.5, 10_000, dtype=D).unsqueeze(1)
    query = memory[target] + far * _random(10_000, 20, seed=1) / 20**0.5
    energy = FenchelYoung(OMEGAS[name], beta=3.0 * OMEGAS[name].margin)
    found = energy.step(query, memory)
    arrived = (found - memory[target]).norm(dim=1) == 0
    predicted = retrieved_in_one_step(query, memory, target, energy)
    assert torch.equal(arrived, predicted)
    assert 1_000 < int(arrived.sum()) < 9_000


@pytest.mark.parametrize("name", ["ksubset2", "2 as structures", "2 in a row"])
def test_exact_retrieval_of_several(name) -> None:
    memory = torch.nn.functional.normalize(_random(12, 20), dim=1)
    first = torch.arange(10_000) % 11
    chosen = torch.zeros(10_000, 12, dtype=D)
    chosen[torch.arange(10_000), first] = 1
    chosen[torch.arange(10_000), first + 1] = 1
    far = torch.linspace(0, 1.5, 10_000, dtype=D).unsqueeze(1)
    query = chosen @ memory + far * _random(10_000, 20, seed=1) / 20**0.5
    energy = FenchelYoung(OMEGAS[name], beta=3.0)
    arrived = (energy.probs(query, memory) == chosen).all(1)
    predicted = retrieved_in_one_step(query, memory, chosen, energy)
    assert torch.equal(arrived, predicted)
    assert 1_000 < int(arrived.sum()) < 9_500


def test_softmax_is_never_exact() -> None:
    memory = torch.eye(3, dtype=D)
    energy = FenchelYoung(ff.Shannon(), beta=5.0)
    assert not retrieved_in_one_step(memory, memory, torch.arange(3), energy).any()
    assert not is_stored(memory, energy).any()


@pytest.mark.parametrize("name", ["sparsemax (m=1)", "entmax15 (m=2)", "normmax (m=1)"])
def test_thresholds_of_gold(name) -> None:
    """Just below the beta of the table the pattern is not stored, just above it is."""
    memory = torch.tensor(GOLD["X"], dtype=D)
    beta = GOLD["min_beta_for_x0_fixed_point"][name]
    omega = {"s": ff.Gini(), "e": ff.Tsallis(1.5), "n": ff.Norm(2.0)}[name[0]]
    for factor, stays in ((0.999, False), (1.001, True)):
        energy = FenchelYoung(omega, beta * factor)
        assert bool(is_stored(memory, energy)[0]) == stays
        moved = (energy.step(memory[:1], memory) - memory[:1]).norm()
        assert (float(moved) == 0) == stays


def test_separation() -> None:
    found = separation(torch.tensor(GOLD["X"], dtype=D))
    torch.testing.assert_close(found, torch.tensor(GOLD["separation_Delta"], dtype=D))


def test_retrieval_ends() -> None:
    memory, query = _random(6, 4), _random(3, 5, 4, seed=1)
    found = hopfield_retrieve(query, memory, FenchelYoung(ff.Gini(), 5.0))
    assert bool(found.converged.all())
    after = FenchelYoung(ff.Gini(), 5.0).step(found.state, memory)
    assert float((after - found.state).norm(dim=-1).max()) <= 1e-6
    one = hopfield_retrieve(query, memory, FenchelYoung(ff.Gini(), 5.0), max_steps=1)
    assert not bool(one.converged.all())
    assert bool((one.steps == 1).all())
    few = torch.zeros(3, 5, 6, dtype=torch.bool)
    few[..., 2] = True
    masked = hopfield_retrieve(query, memory, FenchelYoung(ff.Gini(), 5.0), mask=few)
    torch.testing.assert_close(masked.state, memory[2].expand(3, 5, 4))


def test_storage_bound() -> None:
    assert storage_bound(ff.Shannon(), 5.0, dim=10) == 0
    assert storage_bound(ff.Gini(), 0.4, dim=10) == 0
    low, high = (storage_bound(ff.Gini(), beta, dim=32) for beta in (5.0, 50.0))
    assert 0 < low < high
    assert storage_bound(ff.Tsallis(1.5), 10.0, dim=32) == pytest.approx(low)
    assert storage_bound(ff.Gini(), 50.0, dim=32, noise=0.2) < high


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: FenchelYoung(beta=0.0), "beta must be finite and greater than 0"),
        (lambda: DenseAssociative(1), "power must be at least 2"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(4, 5)), "one size, got 3 and 5"),
        (lambda: hopfield_retrieve(_random(3), _random(4, 3)), r"query must be .* vectors"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(4, 3), max_steps=0), "max_steps must"),
        (lambda: storage_bound(ff.Gini(), 1.0, dim=4, failure=0.0), "failure must be above 0"),
    ],
)
def test_errors(call, says) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_an_energy_is_a_value() -> None:
    with pytest.raises(TypeError, match="energy must be a value such as"):
        hopfield_retrieve(_random(2, 3), _random(4, 3), ff.Gini())
