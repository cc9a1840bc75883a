"""Predicted storage and retrieval compared with actual retrieval."""

import pytest
import torch
from torch import Tensor

import fewfold as ff

D = torch.float64


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def _memory(n: int, d: int) -> Tensor:
    return torch.nn.functional.normalize(_random(n, d), dim=1)


SINGLE = {
    "entmax 1.25": ff.Tsallis(1.25),
    "entmax 1.5": ff.Tsallis(1.5),
    "entmax 3": ff.Tsallis(3.0),
    "sparsemax": ff.Gini(),
    "normmax 2": ff.Norm(2.0),
    "normmax 5": ff.Norm(5.0),
    "an alpha in a tensor": ff.Tsallis(torch.tensor(1.5, dtype=D)),
}


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("name", SINGLE)
def test_exact_retrieval_is_predicted(name, dtype, path) -> None:
    """10,000 queries around random patterns: those predicted arrive, at distance 0; no others."""
    omega = SINGLE[name]
    memory = _memory(100, 20).to(dtype)
    target = torch.arange(10_000) % 100
    far = torch.linspace(0, 0.7, 10_000, dtype=D).unsqueeze(1)
    query = memory[target] + (far * _random(10_000, 20, seed=1) / 20**0.5).to(dtype)
    energy = ff.FenchelYoung(omega, beta=2.8 * float(omega.margin))
    # in single precision a weight may be lost in the sum with 1, or a score beside the margin
    margin = float(omega.margin)
    lost = 4 * margin * 2.0 ** (-23 / margin) + 1e-5 if dtype == torch.float32 else 0.0
    clear = (_lead(energy.scores(query, memory), target) - margin).abs() >= lost
    arrived = (energy.step(query, memory) - memory[target]).norm(dim=1) == 0
    predicted = ff.hopfield.retrieved_in_one_step(query, memory, target, energy)
    assert torch.equal(arrived[clear], predicted[clear])
    assert int(clear.sum()) > (8_000 if lost else 9_999)
    assert 1_000 < int(arrived.sum()) < 9_000


@pytest.mark.parametrize(
    ("omega", "beta"), [(ff.Tsallis(1.05), 56.0), (ff.Tsallis(1.1), 28.0), (ff.Shannon(), 200.0)]
)
def test_what_rounding_adds_to_what_is_predicted(omega, beta, path) -> None:
    """Small weights vanish, so that more arrive; none that is predicted does not."""
    memory, target = _memory(100, 20), torch.arange(2_000) % 100
    query = memory[target] + 0.3 * _random(2_000, 20, seed=1) / 20**0.5
    energy = ff.FenchelYoung(omega, beta)
    arrived = (energy.step(query, memory) == memory[target]).all(1)
    predicted = ff.hopfield.retrieved_in_one_step(query, memory, target, energy)
    assert not (predicted & ~arrived).any()
    assert (arrived & ~predicted).any()


def _lead(scores: Tensor, target: Tensor) -> Tensor:
    own = scores.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return own - scores.scatter(-1, target.unsqueeze(-1), -torch.inf).amax(-1)


SEVERAL = {
    "k-subset": (ff.Subset(2), 2.0),
    "up to k": (ff.Subset(2, at_most=True), 2.0),
    "fewer than k": (ff.Subset(4, at_most=True), 5.0),
    "k-subset of structures": (ff.SparseMAP(ff.structures.KSubset(2)), 2.0),
    "a budget": (ff.SparseMAP(ff.structures.Budget(3)), 5.0),
    "bits, on and off": (ff.SparseMAP(ff.structures.Bits(on_off=True)), 10.0),
    "in a row": (ff.SparseMAP(ff.structures.SequentialSubset(2, 0.5)), 2.0),
    "near or apart": (ff.SparseMAP(ff.structures.SequentialSubset(2, _random(11))), 2.0),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_exact_retrieval_of_several_is_predicted(name) -> None:
    omega, beta = SEVERAL[name]
    memory = torch.linalg.qr(_random(20, 12))[0].T
    memory = memory - memory.mean(0)  # each a little against the others
    first = torch.arange(10_000) % 11
    chosen = torch.zeros(10_000, 12, dtype=D)
    chosen[torch.arange(10_000), first] = 1
    chosen[torch.arange(10_000), first + 1] = 1
    far = torch.linspace(0, 1.5, 10_000, dtype=D).unsqueeze(1)
    query = chosen @ memory + far * _random(10_000, 20, seed=1) / 20**0.5
    energy = ff.FenchelYoung(omega, beta)
    arrived = (energy.step(query, memory) - chosen @ memory).norm(dim=1) == 0
    # a mix may come near, but only the set itself is the set
    assert torch.equal(arrived, (energy.probs(query, memory) == chosen).all(1))
    assert torch.equal(arrived, ff.hopfield.retrieved_in_one_step(query, memory, chosen, energy))
    assert 100 < int(arrived.sum()) < 9_900


@pytest.mark.parametrize("name", ["k-subset", "in a row"])
def test_sets_that_are_stored_stay(name) -> None:
    memory = 2 * _memory(8, 30)
    sets = torch.zeros(7, 8, dtype=D)
    sets[torch.arange(7), torch.arange(7)] = sets[torch.arange(7), torch.arange(7) + 1] = 1
    seen = set()
    for beta in (0.05, 0.3, 1.0, 5.0):
        energy = ff.FenchelYoung(SEVERAL[name][0], beta)
        stays = (energy.probs(sets @ memory, memory) == sets).all(1)
        assert torch.equal(ff.hopfield.is_stored(memory, energy, sets), stays)
        seen |= set(stays.tolist())
    assert seen == {True, False}


def test_a_map_without_a_margin_of_its_own_is_asked() -> None:
    memory = 2 * _memory(6, 8)
    for omega, some in (
        (ff.maps.Fused(0.1), True),
        (ff.maps.Bounded(0.5), False),
        (ff.Shannon(), False),
    ):
        energy = ff.FenchelYoung(omega, 3.0)
        stays = (energy.probs(memory, memory) == torch.eye(6, dtype=D)).all(1)
        assert torch.equal(ff.hopfield.is_stored(memory, energy), stays)
        assert bool(stays.any()) == some


def test_separation_decides_what_is_stored() -> None:
    memory = _memory(12, 5)
    for omega in (ff.Gini(), ff.Tsallis(1.5), ff.Norm(3.0)):
        energy = ff.FenchelYoung(omega, 4.0)
        wide = ff.hopfield.separation(memory) >= omega.margin / 4.0  # m / beta
        assert torch.equal(ff.hopfield.is_stored(memory, energy), wide)
        assert torch.equal((energy.step(memory, memory) == memory).all(1), wide)
        assert 0 < int(wide.sum()) < 12


def test_the_ball_around_a_pattern() -> None:
    """With separation m / beta + 2 M eps, all queries within eps arrive in one step."""
    memory, beta = 3 * _memory(20, 30), 2.0
    wide = ff.hopfield.separation(memory)
    for omega in (ff.Gini(), ff.Tsallis(1.5)):
        eps = (wide - omega.margin / beta) / 6
        assert bool((eps > 0).all())
        push = torch.nn.functional.normalize(_random(50, 20, 30, seed=2), dim=-1)
        query = memory + eps.unsqueeze(1) * push
        energy = ff.FenchelYoung(omega, beta)
        target = torch.arange(20).expand(50, 20)
        assert bool(ff.hopfield.retrieved_in_one_step(query, memory, target, energy).all())
        assert torch.equal(energy.step(query, memory), memory.expand(50, 20, 30))


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (
            lambda m: ff.hopfield.is_stored(m, ff.FenchelYoung(ff.Subset(2))),
            ValueError,
            "several patterns",
        ),
        (
            lambda m: ff.hopfield.is_stored(m, ff.Gini()),
            TypeError,
            "energy must be a value such as",
        ),
        (
            lambda m: ff.hopfield.is_stored(
                m, ff.FenchelYoung(ff.Gini(), psi=ff.hopfield.Sphere())
            ),
            ValueError,
            r"known only for psi=Quadratic\(\)",
        ),
        (
            lambda m: ff.hopfield.retrieved_in_one_step(
                m, m, torch.ones(3), ff.FenchelYoung(ff.Gini())
            ),
            ValueError,
            r"target must be \(4,\) int64, ids",
        ),
        (
            lambda m: ff.hopfield.retrieved_in_one_step(
                m, m, torch.ones(4, 3), ff.FenchelYoung(ff.Subset(2))
            ),
            ValueError,
            r"\(4, 4\) of 0 and 1",
        ),
        (
            lambda m: ff.hopfield.retrieved_in_one_step(
                m, m, torch.tensor([0, 1, 2, 4]), ff.FenchelYoung(ff.Gini())
            ),
            ValueError,
            "ids from 0 to 3, got 0 to 4",
        ),
        (
            lambda m: ff.hopfield.retrieved_in_one_step(
                m, m, torch.full((4, 4), 0.6), ff.FenchelYoung(ff.Subset(2))
            ),
            ValueError,
            "entries 0 and 1 alone",
        ),
        (
            lambda m: ff.hopfield.is_stored(m, ff.FenchelYoung(ff.Subset(2)), torch.ones(2, 3)),
            ValueError,
            r"chosen must be \(..., m, 4\) of 0 and 1, .* got shape \(2, 3\)",
        ),
        (
            lambda m: ff.hopfield.is_stored(
                m, ff.FenchelYoung(ff.Subset(2)), torch.tensor([0, 1, 2, 3])
            ),
            ValueError,
            r"chosen must be .* got shape \(4,\)",
        ),
        (
            lambda m: ff.hopfield.is_stored(m, ff.FenchelYoung(ff.Subset(2)), [[1, 1, 0, 0]]),
            TypeError,
            "chosen must be a tensor of 0 and 1, got list",
        ),
        (
            lambda m: ff.hopfield.is_stored(
                m.expand(3, 4, 3), ff.FenchelYoung(ff.Subset(2)), torch.ones(2, 1, 4)
            ),
            ValueError,
            r"must broadcast, got \(2,\) and \(3,\)",
        ),
        (
            lambda m: ff.hopfield.separation(m[:0]),
            ValueError,
            r"must hold a pattern, got shape \(0, 3\)",
        ),
        (lambda m: ff.hopfield.separation(m[0]), ValueError, r"memory must be .* vectors"),
        (
            lambda m: ff.hopfield.storage_bound(ff.Subset(2), 1.0, dim=4),
            ValueError,
            "single patterns",
        ),
        (
            lambda m: ff.hopfield.storage_bound(ff.maps.Fused(0.1), 1.0, dim=4),
            ValueError,
            "needs a margin",
        ),
        (
            lambda m: ff.hopfield.storage_bound(ff.Tsallis(torch.tensor([1.2, 2.0])), 1.0, dim=4),
            ValueError,
            "one margin",
        ),
    ],
)
def test_errors(call, kind, says) -> None:
    with pytest.raises(kind, match=says):
        call(_memory(4, 3))


@pytest.mark.parametrize("name", ["k-subset of structures", "in a row", "k-subset"])
def test_what_is_no_structure_is_never_retrieved(name) -> None:
    """Whatever the scores of a set of three, or of one pattern, where pairs are chosen."""
    energy = ff.FenchelYoung(SEVERAL[name][0], 5.0)
    memory = torch.eye(4, dtype=D)
    three = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=D)
    assert not ff.hopfield.retrieved_in_one_step(three, memory, three, energy).any()
    one = torch.tensor([[2.0, -1.0, -1.0, -1.0]], dtype=D)
    assert not ff.hopfield.retrieved_in_one_step(one, memory, torch.tensor([0]), energy).any()
    pair = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=D)
    assert ff.hopfield.retrieved_in_one_step(pair, memory, pair, energy).all()


def test_every_query_may_have_a_budget_of_its_own() -> None:
    energy = ff.FenchelYoung(ff.Subset(torch.tensor([[1.0], [2.0], [2.0]], dtype=D)), 5.0)
    memory = torch.eye(4, dtype=D)
    sets = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=D)
    found = ff.hopfield.retrieved_in_one_step(sets, memory, sets, energy)
    assert found.tolist() == [True, True, False]
    assert torch.equal(found, (energy.probs(sets, memory) == sets).all(1))


def test_a_pattern_alone_is_always_stored() -> None:
    memory = _memory(1, 3)
    for omega in (ff.Gini(), ff.Shannon(), ff.Norm(2.0)):
        energy = ff.FenchelYoung(omega, 0.1)
        assert torch.equal(energy.step(memory, memory), memory)
        assert ff.hopfield.is_stored(memory, energy).tolist() == [True]


def test_the_bound_at_its_ends() -> None:
    """Ten thousand times the beta is a hundredth of the angle, however small that is."""
    low, high = (ff.hopfield.storage_bound(ff.Gini(), beta, dim=16) for beta in (1e16, 1e20))
    assert high / low == pytest.approx(100**7.5, rel=1e-9)
    assert ff.hopfield.storage_bound(ff.Gini(), 1e6, dim=1000) == float("inf")
    assert ff.hopfield.storage_bound(ff.Gini(), 1e300, radius=1e9, dim=2) > 1e70  # no division by 0
    assert ff.hopfield.storage_bound(ff.Gini(), 5.0, dim=3) == pytest.approx(
        0.1 / 0.6435011087932844
    )
