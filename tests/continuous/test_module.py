"""The module and the memory: heads, positions, masks, mixtures, and retention over time."""

import math

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold.continuous import (
    AttentionMoments,
    ContinuousAttention,
    ContinuousMemory,
    GaussianBasis,
    LineDensity,
    PlaneDensity,
    QueryHeads,
    RectangularBasis,
    Ridge,
    Signal,
    SignalHeads,
    Sticky,
)
from fewfold.continuous.signal import cell_centres

LINE, PLANE = GaussianBasis.grid(6, [0.1, 0.4]), GaussianBasis.grid(4, [0.2], dim=2)
LOCATORS = [
    QueryHeads(),
    QueryHeads(components=3),
    SignalHeads(),
    SignalHeads(components=2),
    AttentionMoments(),
    AttentionMoments(ff.Gini()),
]
every_locator = pytest.mark.parametrize("locator", LOCATORS, ids=repr)
every_basis = pytest.mark.parametrize("basis", [LINE, PLANE], ids=repr)


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@every_locator
@every_basis
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_shapes_masks_and_gradients(locator, basis, alpha) -> None:
    layer = ContinuousAttention(8, basis, alpha, heads=2, locator=locator)
    size = (5, 4) if basis.dim == 2 else (7,)
    query, memory = data(3, 6, 8), data(3, *size, 8)
    mask = torch.ones(3, *size, dtype=torch.bool)
    mask[1, 4:], mask[2] = False, False
    found = layer(query, memory, mask=mask)
    assert found.shape == (3, 6, 8)
    torch.testing.assert_close(found[0], layer(query, memory)[0])
    assert not found[2].any()
    changed = torch.where(mask.unsqueeze(-1), memory, 9.0)
    torch.testing.assert_close(layer(query, changed, mask=mask), found)
    if basis.dim == 1:
        torch.testing.assert_close(found[1], layer(query[1], memory[1, :4]))
    found.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@every_locator
@every_basis
def test_what_is_masked_may_be_missing(locator, basis) -> None:
    """Not a number where nothing is kept: neither values nor gradients see it."""
    layer = ContinuousAttention(8, basis, heads=2, locator=locator)
    size = (5, 4) if basis.dim == 2 else (7,)
    query, memory = data(2, 6, 8), data(2, *size, 8)
    mask = torch.ones(2, *size, dtype=torch.bool)
    mask[1, 4:] = False
    slopes = []
    for fill in (0.0, math.nan):
        given = torch.where(mask.unsqueeze(-1), memory, fill).requires_grad_()
        found = layer(query, given, mask=mask)
        asked = [given, *layer.parameters()]
        slopes.append([found, *torch.autograd.grad(found.square().sum(), asked)])
    for one, two in zip(*slopes, strict=True):
        torch.testing.assert_close(one, two)


@every_locator
@every_basis
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(locator, basis, dtype) -> None:
    layer = ContinuousAttention(8, basis, heads=2, locator=locator).to(dtype)
    memory = data(2, *((5, 4) if basis.dim == 2 else (7,)), 8).to(dtype)
    found = layer(data(2, 3, 8).to(dtype), memory)
    assert found.dtype == dtype
    assert found.isfinite().all()
    found.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(data(2, 3, 8), memory.float()).isfinite().all()


def test_heads_look_at_places_of_their_own() -> None:
    layer = ContinuousAttention(8, LINE, heads=4)
    query, memory = data(2, 5, 8), data(2, 9, 8)
    density = layer.density(query, memory)
    assert density.mu.shape == (2, 4, 5)
    values = Signal.fit(memory, LINE).coefficients @ layer.value.weight.T
    heads = []
    for head in range(4):
        own = Signal(values[..., 2 * head : 2 * head + 2], LINE)
        heads.append(own.expect(LineDensity(density.mu[:, head], density.sigma_sq[:, head])))
    want = torch.cat(heads, -1) @ layer.out.weight.T
    torch.testing.assert_close(layer(query, memory), want)
    torch.testing.assert_close(layer(query, Signal.fit(memory, LINE)), want)


def test_moments_are_those_of_discrete_attention() -> None:
    layer = ContinuousAttention(8, LINE, 1.5, heads=2, locator=AttentionMoments(ff.Gini()))
    query, memory = data(2, 5, 8), data(2, 9, 8)
    places = layer.locate.places
    scores = places.split(layer.locate.query(query)) @ places.split(layer.locate.key(memory)).mT
    probs = ff.sparsemax(scores / 2)
    t = cell_centres(9).float()
    density = layer.density(query, memory)
    torch.testing.assert_close(density.mu, probs @ t)
    variance = probs @ t**2 - (probs @ t) ** 2
    torch.testing.assert_close(density.variance, variance + 1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.5, 2.0])
def test_moments_of_an_image(alpha) -> None:
    probs = data(3, 20).softmax(-1).double()
    points = torch.cartesian_prod(cell_centres(4), cell_centres(5))
    density = PlaneDensity.from_attention(probs, points, alpha)
    mean = probs @ points
    second = torch.einsum("bl,li,lj->bij", probs, points, points)
    want = second - mean[:, :, None] * mean[:, None] + 1e-6 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(density.covariance, want)
    if alpha == 2:
        rule = 9 * math.pi * want.det().sqrt()[:, None, None] * want
        torch.testing.assert_close(density.sigma_sq, rule)


def test_a_basis_learns_with_the_module() -> None:
    basis = GaussianBasis(
        nn.Parameter(torch.linspace(0, 1, 4)), nn.Parameter(torch.full((4,), 0.2))
    )
    layer = ContinuousAttention(4, basis)
    assert {"basis_centres", "basis_widths"} <= dict(layer.named_parameters()).keys()
    layer(data(2, 3, 4), data(2, 7, 4)).square().sum().backward()
    assert basis.tensors["centres"].grad.any()
    assert not basis.fits


def test_it_learns_where_to_look() -> None:
    """The query says which third of a sequence to read."""
    layer = ContinuousAttention(4, GaussianBasis.grid(12, [0.05]), locator=QueryHeads())
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.03)
    query = torch.eye(4)[:3].expand(16, 3, 4)
    for step in range(150):
        memory = data(16, 3, 4, seed=step).repeat_interleave(6, 1)
        loss = (layer(query, memory) - memory[:, [3, 9, 15]]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.2
    places = layer.density(query[:1], memory[:1]).mu.flatten()
    assert float((places - torch.tensor([1 / 6, 1 / 2, 5 / 6])).detach().abs().max()) < 0.12


def test_what_is_wrong_is_said() -> None:
    layer = ContinuousAttention(4, LINE)
    query, memory = torch.randn(2, 3, 4), torch.randn(2, 7, 4)
    moments = ContinuousAttention(4, LINE, locator=AttentionMoments())
    signal = Signal.fit(memory, LINE)
    for call, words in [
        (lambda: ContinuousAttention(4, heads=3), "divide"),
        (lambda: ContinuousAttention(4, alpha=-1.0), "not negative"),
        (lambda: layer(query[..., :3], memory), "query must be"),
        (lambda: layer(query, memory[..., :3]), "memory must be"),
        (lambda: ContinuousAttention(4, PLANE)(query, memory[0]), r"\(\.\.\., H, W, 4\)"),
        (lambda: layer(query, Signal.fit(memory, GaussianBasis.grid(3))), "module.basis"),
        (lambda: layer(query, signal, mask=torch.ones(2, 7) > 0), "mask already"),
        (lambda: moments(query, signal), "SignalHeads"),
        (lambda: QueryHeads(0), "components"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="boolean"):
        layer(query, memory, mask=torch.ones(2, 7))
    with pytest.raises(TypeError, match="QueryHeads"):
        ContinuousAttention(4, locator="query")
    assert "alpha=2" in repr(ContinuousAttention(4, ridge=Ridge(1.0, True)))


# The memory ---------------------------------------------------------------------------------------


def stream(memory: ContinuousMemory, updates: int, dim: int = 8, **given) -> list[Tensor]:
    """Each update of 16 vectors says one thing."""
    said = [data(1, dim, seed=i) for i in range(updates)]
    for one in said:
        memory.update(one.expand(16, dim), **given)
    return said


def recall(memory: ContinuousMemory, said: list[Tensor], age: int) -> float:
    """Cosine of what is found where it should be with what was said."""
    low, high = memory.interval(age)
    found = memory.signal(torch.tensor([(low + high) / 2]))
    return float(torch.cosine_similarity(found, said[-1 - age]))


def test_a_memory_stays_as_large_as_it_is_and_forgets_gradually() -> None:
    memory = ContinuousMemory(GaussianBasis.grid(64, [0.01, 0.05]), ridge=0.1)
    memory.update(data(16, 8))
    size = memory.signal.coefficients.shape
    said = stream(memory, 40)
    assert memory.signal.coefficients.shape == size == (128, 8)
    assert memory.signal.coefficients.isfinite().all()
    assert len(memory.basis.fits) == 2  # the first, and all others
    by_age = [recall(memory, said, age) for age in range(30)]
    assert min(by_age[:3]) > 0.9
    assert sum(by_age[:5]) / 5 > sum(by_age[10:]) / 20 + 0.3


def test_a_memory_knows_where_everything_is() -> None:
    """Intervals share the line: the first vectors have all that no later ones took."""
    memory = ContinuousMemory(LINE, tau=0.5)
    with pytest.raises(ValueError, match="age must be below the number of updates 0, got 0"):
        memory.interval(0)
    for wanted in ([(0, 1)], [(0.5, 1), (0, 0.5)], [(0.5, 1), (0.25, 0.5), (0, 0.25)]):
        memory.update(data(4, 3))
        assert [memory.interval(age) for age in range(len(wanted))] == wanted
    with pytest.raises(ValueError, match="age must be below the number of updates 3, got 3"):
        memory.interval(3)
    memory.forget()
    memory.update(data(4, 3))
    assert memory.interval(0) == (0, 1)


def test_what_was_first_stays_where_it_was() -> None:
    """Of a rising line that is sampled where it was attended to, order remains."""
    memory = ContinuousMemory(GaussianBasis.grid(32, [0.05]), ridge=1e-3, sticky=Sticky())
    attended = LineDensity(torch.tensor([0.5]), torch.tensor([1.0]))
    memory.update(torch.linspace(-1, 1, 64).unsqueeze(-1))
    signal = memory.update(torch.ones(16, 1), attended, generator=torch.Generator().manual_seed(0))
    found = signal(torch.linspace(0.05, 0.7, 20)).squeeze(-1)
    assert found[0] < -0.7
    assert found[-1] > 0.7
    assert bool((found.diff() > 0).all())


def test_no_gradient_passes_to_the_past() -> None:
    memory = ContinuousMemory(LINE)
    first, second = data(5, 3).requires_grad_(), data(5, 3, seed=1).requires_grad_()
    memory.update(first)
    memory.update(second).coefficients.sum().backward()
    assert first.grad is None
    assert second.grad is not None
    memory.forget()
    assert memory.signal is None


def test_sticky_memories_keep_what_was_attended_to() -> None:
    """Samples crowd where attention was: what lies there takes more room afterwards."""
    basis = GaussianBasis.grid(64, [0.02])
    plain, sticky = (ContinuousMemory(basis, ridge=0.1, sticky=s) for s in (None, Sticky()))
    mark = torch.zeros(64, 1)
    mark[6:10] = 1.0  # at 1/8
    attended = LineDensity(torch.full((2, 3), 0.125), torch.full((2, 3), 1e-4))
    shares = []
    for memory in (plain, sticky):
        memory.update(mark)
        memory.update(torch.zeros(16, 1), attended, generator=torch.Generator().manual_seed(0))
        shares.append(float((memory.signal(torch.linspace(0, 1, 500)) > 0.5).float().mean()))
    assert shares[0] < 0.1
    assert shares[1] > 3 * shares[0]


def test_a_memory_repeats_itself() -> None:
    made = []
    for _ in range(2):
        memory = ContinuousMemory(LINE, sticky=Sticky(bins=16), samples=32)
        generator = torch.Generator().manual_seed(3)
        for step in range(4):
            density = LineDensity(torch.rand(2, 4, 3, generator=generator), torch.ones(2, 4, 3))
            memory.update(data(2, 5, 3, seed=step), density, generator=generator)
        made.append(memory.signal.coefficients)
    assert torch.equal(*made)


def test_sticky_memories_survive_attention_to_nothing() -> None:
    memory = ContinuousMemory(LINE, sticky=Sticky())
    memory.update(data(5, 3))
    outside = LineDensity(torch.tensor([7.0]), torch.tensor([1e-6]))
    assert memory.update(data(5, 3), outside).coefficients.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_memory_of_half_precision(dtype) -> None:
    memory = ContinuousMemory(LINE, samples=64)
    exact = ContinuousMemory(LINE, samples=64)
    for step in range(3):
        vectors = data(5, 3, seed=step)
        memory.update(vectors.to(dtype))
        exact.update(vectors)
    assert memory.signal.coefficients.dtype == dtype
    away = memory.signal.coefficients.float() - exact.signal.coefficients
    assert float(away.abs().max()) < 0.05 * float(exact.signal.coefficients.abs().max())


def test_a_memory_is_attended_to_by_the_module() -> None:
    layer = ContinuousAttention(8, LINE, heads=2, locator=SignalHeads())
    memory = ContinuousMemory(LINE, sticky=Sticky())
    query, density = data(3, 4, 8), None
    for step in range(5):
        signal = memory.update(data(3, 6, 8, seed=step), density)
        found = layer(query, signal)
        density = layer.density(query, signal)
        assert found.shape == (3, 4, 8)
    found.sum().backward()


def test_what_is_wrong_with_a_memory_is_said() -> None:
    memory = ContinuousMemory(LINE, sticky=Sticky())
    memory.update(data(2, 5, 3))
    for call, words in [
        (lambda: ContinuousMemory(PLANE), "of the line"),
        (lambda: ContinuousMemory(LINE, tau=1.0), "between 0 and 1"),
        (lambda: memory.update(data(3, 5, 3)), "memory.forget"),
        (lambda: memory.update(data(3)), r"\(\.\.\., L, d\)"),
        (
            lambda: memory.update(data(2, 5, 3), LineDensity(torch.rand(4), torch.ones(4))),
            "attended must be",
        ),
        (lambda: Sticky(0), "bins"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    assert RectangularBasis([0.0, 1.0]).dim == 1
