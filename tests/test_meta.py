"""Tensors on device "meta", for every module and function."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._torch import autocast_dtype, autocasts
from tests.structured.cases import CASES as STRUCTURES


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def keep(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool, device="meta")


OMEGAS = [
    ff.Shannon(), ff.Gini(), ff.Tsallis(1.5), ff.Tsallis(meta(4, 1, 1)), ff.Norm(2.0), ff.Subset(2),
    ff.maps.Bounded(0.5), ff.maps.Fused(0.1), ff.maps.Oscar(0.1),
    ff.SparseMAP(ff.structures.SequentialSubset(2, torch.ones(()))),
]  # fmt: skip


@pytest.mark.parametrize("omega", OMEGAS, ids=str)
def test_sparse_attention(omega: ff.Omega) -> None:
    query, key, value = meta(2, 4, 5, 8), meta(2, 4, 7, 8), meta(2, 4, 7, 6)
    out = ff.sparse_attention(query, key, value, omega, mask=keep(5, 7), dropout_p=0.5)
    assert out.is_meta
    assert out.shape == (2, 4, 5, 6)


def test_sparse_attention_of_a_long_sequence() -> None:
    long = meta(2, 1500, 8).requires_grad_()
    out = ff.sparse_attention(long, long, long, is_causal=True)
    assert out.shape == (2, 1500, 8)
    out.sum().backward()
    assert long.grad.shape == long.shape


PLANE = ff.continuous.GaussianBasis.grid(6, [0.03], dim=2)
MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[tuple[int, ...], ...]]] = {
    "heads that learn": (lambda: ff.MultiheadAttention(8, 4), ((2, 5, 8),)),
    "fixed heads": (lambda: ff.MultiheadAttention(8, 4, ff.Subset(2)), ((2, 5, 8), (2, 9, 8))),
    "fewer key heads": (lambda: ff.MultiheadAttention(8, 4, key_heads=2), ((2, 5, 8),)),
    "Hopfield": (lambda: ff.Hopfield(8, heads=2, steps=3), ((2, 5, 8), (2, 90, 8))),
    "few queries": (lambda: ff.Hopfield(8, ff.Gini()), ((2, 5, 8), (2, 400, 8))),
    "HopfieldLayer": (lambda: ff.HopfieldLayer(8, patterns=90), ((2, 5, 8),)),
    "continuous": (lambda: ff.ContinuousAttention(8, heads=2), ((2, 5, 8), (2, 9, 8))),
    "continuous, plane": (lambda: ff.ContinuousAttention(8, PLANE), ((2, 5, 8), (2, 4, 4, 8))),
    **{
        f"continuous, alpha={alpha}, {locator}": (
            lambda alpha=alpha, locator=locator: ff.ContinuousAttention(
                8, None, alpha, 2, locator, ff.continuous.Ridge(0.01, True)
            ),
            ((2, 5, 8), (2, 9, 8)),
        )
        for alpha in (0.8, 1.0, 1.3)
        for locator in (
            ff.continuous.QueryHeads(2), ff.continuous.SignalHeads(),
            ff.continuous.AttentionMoments(ff.Gini()),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    build, shapes = MODULES[name]
    out = build().to("meta")(*(meta(*shape) for shape in shapes))
    assert out.is_meta
    assert out.shape == (2, 5, 8)


def test_pooling() -> None:
    pool = ff.HopfieldPooling(8, heads=2, queries=3).to("meta")
    assert pool(meta(2, 50, 8), mask=keep(2, 50)).shape == (2, 3, 8)


@pytest.mark.parametrize("dim", [1, 2])
def test_masked_continuous_attention(dim: int) -> None:
    layer = ff.ContinuousAttention(8, PLANE if dim == 2 else None).to("meta")
    places = (4, 4) if dim == 2 else (9,)
    out = layer(meta(2, 5, 8), meta(2, *places, 8), mask=keep(2, *places))
    assert out.shape == (2, 5, 8)


ENERGIES = [
    ff.FenchelYoung(ff.Gini(), psi=ff.hopfield.Sphere()),
    ff.FenchelYoung(psi=ff.hopfield.LayerNormed()),
    ff.hopfield.Classical(), ff.hopfield.DenseAssociative(), ff.hopfield.Exponential(),
]  # fmt: skip


@pytest.mark.parametrize("energy", ENERGIES, ids=str)
def test_retrieval(energy: ff.hopfield.Energy) -> None:
    found = ff.hopfield_retrieve(meta(3, 5, 8), meta(7, 8), energy, max_steps=4)
    assert found.state.shape == (3, 5, 8)
    assert found.steps.shape == found.energy.shape == found.converged.shape == (3, 5)


def test_what_a_memory_holds() -> None:
    energy = ff.FenchelYoung(ff.Gini())
    assert ff.hopfield.separation(meta(2, 7, 8)).shape == (2, 7)
    assert ff.hopfield.is_stored(meta(2, 7, 8), energy).shape == (2, 7)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
def test_sparsemap(case) -> None:
    scores = case.scores(2, 3).to("meta").requires_grad_()
    structure = case.structure.with_additional(
        [value.to("meta").requires_grad_() for value in case.structure.additional]
    )
    found = ff.sparsemap(scores, structure, mask=keep(*scores.shape), temperature=0.5)
    assert found.is_meta
    assert (found.shape, found.dtype) == (scores.shape, scores.dtype)
    found.sum().backward()
    assert scores.grad.shape == scores.shape
    for value in structure.additional:
        assert value.grad.shape == value.shape


def test_sparsemap_checks_shapes_on_meta_too() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        ff.sparsemap(meta(4), ff.structures.Assignment())


def cost(atoms: Tensor, row: Tensor) -> Tensor:
    return atoms.reshape(len(atoms), -1).float().sum(1) * row


ESTIMATORS = [
    (ff.Dense(), None), (ff.ScoreFunction(2), None), (ff.Gumbel(), None),
    (ff.expectation.VIMCO(3), None),
    (ff.expectation.REBAR(), None), (ff.Dense(), ff.structures.Bits()),
    (ff.expectation.DisARM(), ff.structures.Bits()),
    (ff.Dense(), ff.structures.KSubset(2)),
    (ff.expectation.StraightThrough(), None), (ff.expectation.MuProp(), ff.structures.Bits()),
    (ff.expectation.RELAX(torch.nn.Linear(5, 1, device="meta")), None),
]  # fmt: skip


@pytest.mark.parametrize(("estimator", "over"), ESTIMATORS, ids=str)
def test_expect(estimator: ff.expectation.Estimator, over: ff.structures.Structure | None) -> None:
    scores = meta(2, 3, 5).requires_grad_()
    out = ff.expect(cost, scores, estimator, over, mask=keep(5))
    assert out.surrogate.shape == out.entropy.shape == out.kl().shape == (2, 3)
    assert out.surrogate.is_meta
    out.loss.backward()
    assert scores.grad.shape == scores.shape


def test_dense_visits_everything() -> None:
    scores = meta(2, 3, 5)
    real = ff.expect(cost, torch.zeros(2, 3, 5), ff.Dense())
    out = ff.expect(cost, scores, ff.Dense())
    assert out.support.weights.shape == real.support.weights.shape == (30,)
    assert out.support.atoms.shape == real.support.atoms.shape


DATA_DEPENDENT: dict[str, Callable[[], object]] = {
    "attention_support": lambda: ff.attention.attention_support(meta(2, 5, 8), meta(2, 7, 8)),
    "map_support": lambda: ff.map_support(meta(2, 5)),
    "Support.from_dense": lambda: ff.Support.from_dense(meta(2, 5)),
    "sparsemap_support": lambda: ff.sparsemap_support(meta(2, 5), ff.structures.KSubset(2)),
    "sparsemap_solution": lambda: ff.structured.sparsemap_solution(
        meta(2, 5), ff.structures.KSubset(2)
    ),
    "topk_support": lambda: ff.structured.topk_support(meta(2, 5), ff.structures.KSubset(2), 3),
    "SparseMarginal": lambda: ff.expect(cost, meta(2, 5), ff.SparseMarginal()),
    "SumAndSample": lambda: ff.expect(cost, meta(2, 5), ff.SumAndSample(2)),
    "UnorderedSet": lambda: ff.expect(cost, meta(2, 5), ff.expectation.UnorderedSet(2)),
    "additional scores": lambda: ff.expect(
        cost, meta(4, 3), ff.Dense(), ff.structures.Sequence(torch.zeros(3, 3))
    ),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_what_depends_on_values_says_so(name: str) -> None:
    with pytest.raises(ValueError, match=r"value.*meta"):
        DATA_DEPENDENT[name]()


def test_autocast_of_a_device_it_does_not_know() -> None:
    assert autocast_dtype(meta(2)) is None
    assert not autocasts(torch.ones(2))
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_dtype(torch.ones(2)) == torch.bfloat16
        assert not autocasts(meta(2))
