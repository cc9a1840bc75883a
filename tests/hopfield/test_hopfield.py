"""Associative memories: energies decrease, and patterns are retrieved as predicted."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.hopfield import (
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
SIGNED = {
    "classical": Classical(),
    "classical with itself": Classical(self_coupling=True),
    "dense": DenseAssociative(3),
    "exponential": Exponential(),
}
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
    for psi in (ff.hopfield.Quadratic(), Sphere(2.0), LayerNormed()):
        energy = FenchelYoung(OMEGAS[name], beta, psi)
        state = psi.conjugate_grad(query)  # where the energy is finite
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


@pytest.mark.parametrize(("share", "stays"), [(0.05, True), (0.3, False)])
def test_classical_memory_collapses_beyond_its_capacity(share: float, stays: bool) -> None:
    """About .14 d random patterns are stored; overlaps are those with the pattern one starts at."""
    d = 400
    memory = _random(round(share * d), d).sign()
    found = hopfield_retrieve(memory, memory, Classical())
    overlap = (found.state * memory).mean(-1)
    assert bool(found.converged.all())
    if stays:
        assert float(overlap.min()) > 0.97
    else:
        assert float(overlap.mean()) < 0.6
        coupled = hopfield_retrieve(memory, memory, Classical(self_coupling=True))
        assert float((coupled.state * memory).mean()) > 0.9  # each sign holds itself


def test_classical_step_is_one_sign_after_the_other() -> None:
    memory, query = _random(2, 6, 9).sign(), _random(2, 5, 9, seed=1).sign()
    found = Classical().step(query, memory)
    for b in range(2):
        weights = memory[b].mT @ memory[b]
        weights.fill_diagonal_(0.0)
        for one, want in zip(query[b], found[b], strict=True):
            state = one.clone()
            for i in range(9):
                field = weights[i] @ state
                state[i] = state[i] if field == 0 else field.sign()
            assert torch.equal(state, want)
        value = -((query[b] @ weights) * query[b]).sum(-1) / 2
        torch.testing.assert_close(Classical().value(query[b], memory[b]), value)


@pytest.mark.parametrize("power", [2, 3, 5])
def test_dense_associative_step_is_its_definition(power: int) -> None:
    memory, query = _random(6, 15).sign(), _random(50, 15, seed=1).sign()
    overlaps = (query @ memory.mT).clamp(min=0)
    field = overlaps ** (power - 1) @ memory
    want = torch.where(field == 0, query, field.sign())
    found = DenseAssociative(power).step(query, memory)
    clear = (field == 0).logical_not() | (overlaps.sum(-1, keepdim=True) == 0)  # no ties
    assert torch.equal(found[clear.expand_as(found)], want[clear.expand_as(found)])
    value = -(overlaps**power).sum(-1)
    torch.testing.assert_close(DenseAssociative(power).value(query, memory), value)


def test_high_powers_do_not_overflow() -> None:
    """Of patterns that are alike, so that several have a power too large to add up."""
    memory = torch.where(_random(4, 200) > 1, -1.0, 1.0)
    query = memory.clone()
    query[:, :20] *= -1
    assert torch.equal(DenseAssociative(30).step(query, memory), memory)


def test_offset_bounds_the_energy() -> None:
    memory = _random(7, 5)
    weights = torch.rand(200, 7, generator=torch.Generator().manual_seed(1), dtype=D)
    inside = (weights / weights.sum(1, keepdim=True)) @ memory
    for omega in (ff.Shannon(), ff.Tsallis(1.5), ff.Gini(), ff.Norm(2.0)):
        energy = FenchelYoung(omega, 1.5)
        value = energy.value(inside, memory) + energy.offset(memory)
        largest = memory.square().sum(1).max()
        highest = torch.minimum(2 * largest, energy.offset(memory))
        assert bool((value >= 0).all())
        assert bool((value <= highest + 1e-12).all())


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


@pytest.mark.parametrize("energy", [*SIGNED.values(), *ENERGIES.values()], ids=repr)
def test_masked_patterns_are_as_if_absent(energy) -> None:
    memory, query = _random(6, 9).sign(), _random(5, 9, seed=1).sign()
    mask = torch.tensor([True, False, True, True, False, True]).expand(5, 6)
    some = memory[[0, 2, 3, 5]]
    if "bonus" in repr(energy):  # a masked one stays between its neighbours
        some, mask = memory[:4], torch.arange(6).expand(5, 6) < 4
    torch.testing.assert_close(energy.step(query, memory, mask=mask), energy.step(query, some))
    torch.testing.assert_close(energy.value(query, memory, mask=mask), energy.value(query, some))


@pytest.mark.parametrize(
    "psi", [ff.hopfield.Quadratic(), ff.hopfield.Sphere(), ff.hopfield.LayerNormed()], ids=repr
)
@pytest.mark.parametrize("omega", [ff.Gini(), ff.Shannon(), ff.Norm(2.0)], ids=repr)
def test_without_any_pattern_there_is_nothing(omega, psi) -> None:
    memory, query = _random(6, 9), _random(5, 9, seed=1).requires_grad_()
    none = torch.zeros(5, 6, dtype=torch.bool)
    found = FenchelYoung(omega, 2.0, psi).step(query, memory, mask=none)
    assert not found.any()
    (grad,) = torch.autograd.grad(found.sum(), query)
    assert not grad.any()
    value = FenchelYoung(omega, 2.0).value(query, memory, mask=none)
    torch.testing.assert_close(value, ff.hopfield.Quadratic().value(query))


@pytest.mark.parametrize("name", SIGNED)
def test_signs_without_any_pattern_stay(name) -> None:
    memory, query = _random(6, 9).sign(), _random(5, 9, seed=1).sign()
    none = torch.zeros(5, 6, dtype=torch.bool)
    assert torch.equal(SIGNED[name].step(query, memory, mask=none), query)
    assert not SIGNED[name].value(query, memory, mask=none).any()
    assert torch.equal(SIGNED[name].step(query, memory[:0]), query)
    assert not SIGNED[name].value(query, memory[:0]).any()


def test_retrieval_has_a_gradient_through_its_steps() -> None:
    memory, query = _random(5, 3), _random(2, 3, seed=1)
    energy = FenchelYoung(ff.Tsallis(1.5), 0.8)

    def state(query: Tensor, memory: Tensor) -> Tensor:
        return hopfield_retrieve(query, memory, energy, max_steps=3).state

    assert torch.autograd.gradcheck(state, (query.requires_grad_(), memory.requires_grad_()))


def test_every_query_has_a_memory_of_its_own_in_a_batch() -> None:
    memory, query = _random(3, 6, 4), _random(5, 4, seed=1)
    energy = FenchelYoung(ff.Gini(), 3.0)
    found = hopfield_retrieve(query, memory, energy)
    for i in range(3):
        alone = hopfield_retrieve(query, memory[i], energy)
        torch.testing.assert_close(found.state[i], alone.state)
        assert torch.equal(found.steps[i], alone.steps)


def test_storage_bound() -> None:
    assert storage_bound(ff.Shannon(), 5.0, dim=10) == 0
    assert storage_bound(ff.Gini(), 0.4, dim=10) == 0
    low, high = (storage_bound(ff.Gini(), beta, dim=32) for beta in (5.0, 50.0))
    assert 0 < low < high
    assert storage_bound(ff.Tsallis(1.5), 10.0, dim=32) == pytest.approx(low)
    assert storage_bound(ff.Gini(), 50.0, dim=32, noise=0.2) < high
    # patterns and noise twice as long are the same at a quarter of beta
    scaled = storage_bound(ff.Gini(), 12.5, dim=32, noise=0.4, radius=2.0)
    assert scaled == pytest.approx(storage_bound(ff.Gini(), 50.0, dim=32, noise=0.2))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: FenchelYoung(beta=0.0), "beta must be finite and greater than 0"),
        (lambda: DenseAssociative(1), "power must be at least 2"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(4, 5)), "same size, got 3 and 5"),
        (lambda: hopfield_retrieve(_random(3), _random(4, 3)), r"query must be .* vectors"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(4, 3), max_steps=0), "max_steps must"),
        (lambda: hopfield_retrieve(_random(2, 3, 3), _random(4, 5, 3)), "must broadcast, got"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(4, 3), tol=-1.0), "tol must be finite"),
        (lambda: FenchelYoung(ff.SparseMAP(ff.structures.Assignment())), "maps a matrix"),
        (lambda: hopfield_retrieve(_random(2, 3), _random(3)), r"memory must be .* vectors"),
        (lambda: FenchelYoung(ff.Gini()).offset(_random(0, 3)), r"a pattern, got shape \(0, 3\)"),
        (lambda: Sphere(0.0), "radius must be finite and greater than 0"),
        (lambda: storage_bound(ff.Gini(), 1.0, dim=4, failure=0.0), "failure must be above 0"),
    ],
)
def test_errors(call, says) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_an_energy_is_a_value() -> None:
    with pytest.raises(TypeError, match="omega must be a regulariser such as"):
        FenchelYoung(ff.Gini)
    with pytest.raises(TypeError, match="omega must be a regulariser such as"):
        storage_bound(ff.Gini, 10.0, dim=8)
    with pytest.raises(TypeError, match="psi must be a value such as"):
        FenchelYoung(psi=Sphere)
    with pytest.raises(TypeError, match=r"beta must be a number, got a tensor; write float.beta."):
        FenchelYoung(beta=torch.tensor(2.0))
    with pytest.raises(TypeError, match=r"same dtype, got torch.float64 and torch.float32"):
        hopfield_retrieve(_random(2, 3), _random(4, 3).float())
    with pytest.raises(TypeError, match="energy must be a value such as"):
        hopfield_retrieve(_random(2, 3), _random(4, 3), ff.Gini())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("psi", [Sphere(), Sphere(3.0), LayerNormed()], ids=repr)
def test_normalised_queries_in_low_precision(psi, dtype) -> None:
    """What is settled is where the energy is finite; without any pattern there is no NaN."""
    memory, query = _random(6, 16).to(dtype), _random(50, 16, seed=1).to(dtype)
    energy = FenchelYoung(ff.Shannon(), 2.0, psi)
    after = energy.step(query, memory)
    assert bool(energy.value(after, memory).isfinite().all())
    assert bool(energy.value(2 * after, memory).isinf().all())
    assert not energy.step(query, memory, mask=torch.zeros(50, 6, dtype=torch.bool)).any()


def test_what_is_no_number_does_not_rest() -> None:
    query = torch.tensor([[torch.nan, 0.0], [1.0, 0.0]], dtype=D)
    found = hopfield_retrieve(query, torch.eye(2, dtype=D), FenchelYoung(ff.Gini(), 5.0))
    assert found.converged.tolist() == [False, True]
