"""Fit of signals to values, attention to them, and torch transforms."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fewfold.continuous import (
    FourierBasis,
    GaussianBasis,
    LineDensity,
    PlaneDensity,
    PowerBasis,
    RectangularBasis,
    Ridge,
    Signal,
    continuous_attention,
)
from fewfold.continuous.signal import cell_centres

D = torch.float64
GOLD = json.loads((Path(__file__).parent / "gold_continuous.json").read_text())
LINES = [
    GaussianBasis.grid(6, [0.1, 0.4]),
    RectangularBasis(torch.linspace(0, 1, 6)),
    PowerBasis(4),
    FourierBasis([0.0, 0.5, 1.0, 2.0]),
]
PLANES = [
    GaussianBasis.grid(4, [0.2], dim=2),
    RectangularBasis(torch.linspace(0, 1, 4), torch.linspace(0, 1, 3)),
    FourierBasis([[0.0, 0.5], [1.0, 0.0]]),
]
WARNINGS = pytest.mark.filterwarnings("ignore:.*:Warning")  # of the compilers, about themselves


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def queries(*shape: int, plane: bool) -> tuple[Tensor, Tensor]:
    mu, sigma_sq = data(*shape).sigmoid(), data(*shape, seed=1).exp() / 20
    if not plane:
        return mu, sigma_sq
    factor = data(*shape, 2, 2, seed=2) / 5
    return data(*shape, 2).sigmoid(), factor @ factor.mT + 0.01 * torch.eye(2, dtype=D)


def test_published_regression() -> None:
    gold = GOLD["ridge"]
    basis = GaussianBasis(gold["basis_mu"], gold["basis_sigma"])
    values = torch.tensor(gold["values"], dtype=D).T
    signal = Signal.fit(values, basis, ridge=gold["ridge"])
    torch.testing.assert_close(signal.coefficients.T, torch.tensor(gold["B"], dtype=D))
    at = signal(torch.tensor(gold["positions"], dtype=D))
    torch.testing.assert_close(at.T, torch.tensor(gold["fit_at_positions"], dtype=D))


@pytest.mark.parametrize("basis", LINES, ids=repr)
@pytest.mark.parametrize("padded", [False, True])
def test_masks_equal_dropping(basis, padded) -> None:
    ridge = Ridge(0.1, padded)
    values, (mu, sigma_sq) = data(3, 2, 11, 4), queries(3, 2, 5, plane=False)
    mask = torch.rand(3, 2, 11, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[0, 0], mask[0, 1, :], mask[1, 0] = True, False, torch.arange(11) < 6
    values[~mask] = torch.nan  # not even looked at
    found = continuous_attention(values, mu, sigma_sq, basis, mask=mask, ridge=ridge)
    for i in range(3):
        for j in range(2):
            own = values[i, j, mask[i, j]]
            if not len(own):
                assert not found[i, j].any()
                continue
            want = continuous_attention(own, mu[i, j], sigma_sq[i, j], basis, ridge=ridge)
            torch.testing.assert_close(found[i, j], want)


@pytest.mark.parametrize("padded", [False, True])
def test_masks_cost_no_gradient(padded) -> None:
    """Nor does it matter whether matrices are looked up or solved for, as under transforms."""
    basis, mask = GaussianBasis.grid(5, [0.2]), torch.arange(9) < torch.tensor([[9], [4], [0]])
    values, (mu, sigma_sq) = data(3, 9, 2).requires_grad_(), queries(3, 2, plane=False)

    def attend(values: Tensor, mu: Tensor, sigma_sq: Tensor, mask: Tensor) -> Tensor:
        ridge = Ridge(0.01, padded)
        return continuous_attention(values, mu, sigma_sq, basis, mask=mask, ridge=ridge)

    found = attend(values, mu, sigma_sq, mask)
    mapped = torch.vmap(attend)(values, mu, sigma_sq, mask)
    torch.testing.assert_close(mapped, found, atol=1e-8, rtol=1e-8)
    (slope,) = torch.autograd.grad(found.square().sum(), values)
    assert not slope[~mask].any()
    assert slope[mask].all()


@pytest.mark.parametrize("basis", PLANES, ids=repr)
@pytest.mark.parametrize("padded", [False, True])
def test_images(basis, padded) -> None:
    """A mask of all is none; what is masked does not count."""
    ridge = Ridge(0.1, padded)
    values, (mu, sigma_sq) = data(2, 6, 5, 3), queries(2, 4, plane=True)
    whole = continuous_attention(values, mu, sigma_sq, basis, ridge=ridge)
    assert whole.shape == (2, 4, 3)
    mask = torch.ones(2, 6, 5, dtype=torch.bool)
    same = continuous_attention(values, mu, sigma_sq, basis, ridge=ridge, mask=mask)
    torch.testing.assert_close(same, whole)
    mask[:, 2:4, 1] = False
    mask[1] = False
    found = continuous_attention(values, mu, sigma_sq, basis, ridge=ridge, mask=mask)
    changed = torch.where(mask.unsqueeze(-1), values, 99.0)
    again = continuous_attention(changed, mu, sigma_sq, basis, ridge=ridge, mask=mask)
    torch.testing.assert_close(found, again)
    assert not found[1].any()
    assert not torch.allclose(found[0], whole[0])


def test_an_image_of_a_plane_is_recovered() -> None:
    rows, columns = cell_centres(14), cell_centres(10)
    image = (rows[:, None] + 3 * columns).unsqueeze(-1)
    basis = GaussianBasis.grid(10, [0.15], dim=2)
    signal = Signal.fit(image, basis, ridge=1e-6)
    mu = torch.tensor([[0.3, 0.5], [0.6, 0.2]], dtype=D)
    density = PlaneDensity(mu, (1e-4 * torch.eye(2, dtype=D)).expand(2, 2, 2))
    want = mu[:, :1] + 3 * mu[:, 1:]
    torch.testing.assert_close(signal.expect(density), want, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_places(length) -> None:
    """Padding adds half a length on either side, and leaves the others where they are."""
    inner, padded = cell_centres(length), cell_centres(length, padded=True)
    assert len(padded) == (2 * length if length % 2 == 0 else 2 * length - 1)
    torch.testing.assert_close(padded[(padded > 0) & (padded < 1)], inner)
    assert float(inner[0]) == pytest.approx(0.5 / length)


def test_a_padded_signal_vanishes_outside() -> None:
    basis = GaussianBasis(torch.linspace(-0.5, 1.5, 60, dtype=D), 0.04)
    values = torch.ones(40, 1, dtype=D)
    inside, outside = torch.tensor([0.3, 0.6]).double(), torch.tensor([-0.3, 1.3]).double()
    padded = Signal.fit(values, basis, ridge=Ridge(1e-3, padded=True))
    assert float((padded(inside) - 1).abs().max()) < 0.02
    assert float(padded(outside).abs().max()) < 0.02
    wide = GaussianBasis.grid(3, [0.5])
    free, bound = (
        Signal.fit(values, wide, ridge=Ridge(0.01, padded))(outside) for padded in (False, True)
    )
    assert float(bound.abs().max()) < 0.6 * float(free.abs().max())


def test_matrices_are_kept_for_each_length() -> None:
    basis, calls = GaussianBasis.grid(4), []
    plain = type(basis).__call__

    class Counting(GaussianBasis):
        def __call__(self, points: Tensor) -> Tensor:
            calls.append(points.shape)
            return plain(self, points)

    basis = Counting(basis.tensors["centres"], basis.tensors["widths"])
    for _ in range(3):
        Signal.fit(data(2, 9, 3), basis)
        Signal.fit(data(2, 7, 3), basis)
        Signal.fit(data(2, 9, 3), basis, mask=torch.arange(9) < torch.tensor([[7], [5]]))
    assert sorted(calls) == [(5,), (7,), (9,)]
    Signal.fit(data(9, 3), basis, ridge=0.5)
    assert len(calls) == 4
    with torch.inference_mode():
        Signal.fit(data(6, 3), basis)
    values = data(6, 3).requires_grad_()
    Signal.fit(values, basis).coefficients.sum().backward()
    assert values.grad is not None


def test_a_basis_may_learn() -> None:
    centres, widths = nn.Parameter(torch.tensor([0.2, 0.8], dtype=D)), nn.Parameter(data(2).exp())
    values, (mu, sigma_sq) = data(5, 2), queries(3, plane=False)

    def attend(centres: Tensor, widths: Tensor) -> Tensor:
        return continuous_attention(values, mu, sigma_sq, GaussianBasis(centres, widths))

    assert torch.autograd.gradcheck(attend, (centres, widths))


# Every transform ----------------------------------------------------------------------------------

CASES = [(basis, alpha) for basis in LINES[:2] for alpha in (1.0, 1.5, 1.7)]
CASES += [(basis, alpha) for basis in PLANES[:2] for alpha in (1.0, 2.0)]
FEW = [(LINES[0], 2.0), (LINES[0], 1.7), (LINES[1], 1.5), (PLANES[0], 2.0)]
# At night the other bases of a line, too.
COMPILED = [
    FEW[0],
    *(pytest.param(*case, marks=pytest.mark.nightly) for case in FEW[1:3]),
    FEW[3],
]
every_case = pytest.mark.parametrize(("basis", "alpha"), CASES, ids=lambda x: f"{x}")


@every_case
def test_gradients(basis, alpha) -> None:
    plane = basis.dim == 2
    values = data(2, *((3, 4) if plane else (6,)), 2).requires_grad_()
    mu, sigma_sq = (x.requires_grad_() for x in queries(2, 2, plane=plane))

    def attend(*given: Tensor) -> Tensor:
        return continuous_attention(*given, basis, alpha=alpha)

    assert torch.autograd.gradcheck(attend, (values, mu, sigma_sq), check_batched_grad=True)


@every_case
def test_vmap_and_grad_and_forward_mode(basis, alpha) -> None:
    plane = basis.dim == 2
    values, (mu, sigma_sq) = data(3, *((3, 4) if plane else (6,)), 2), queries(3, 2, plane=plane)

    def attend(values: Tensor, mu: Tensor, sigma_sq: Tensor) -> Tensor:
        return continuous_attention(values, mu, sigma_sq, basis, alpha=alpha)

    whole = attend(values, mu, sigma_sq)
    torch.testing.assert_close(torch.vmap(attend)(values, mu, sigma_sq), whole)
    leaf = mu.clone().requires_grad_()
    (want,) = torch.autograd.grad(attend(values, leaf, sigma_sq).square().sum(), leaf)
    loss = lambda m, v, s: attend(v, m, s).square().sum()  # noqa: E731
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(mu, values, sigma_sq), want)
    tangent = data(*mu.shape, seed=5)
    moved = torch.func.jvp(lambda m: loss(m, values, sigma_sq), (mu,), (tangent,))[1]
    torch.testing.assert_close(moved, (want * tangent).sum())


@WARNINGS
@pytest.mark.parametrize(("basis", "alpha"), COMPILED, ids=lambda x: f"{x}")
def test_compiled(basis, alpha) -> None:
    torch._dynamo.reset()
    plane = basis.dim == 2
    values, (mu, sigma_sq) = data(3, *((3, 4) if plane else (6,)), 2), queries(3, 2, plane=plane)
    mask = torch.arange(values.shape[-2]) < torch.tensor([3, 2, 3]).view(-1, *[1] * (1 + plane))

    def attend(values: Tensor, mu: Tensor, sigma_sq: Tensor) -> Tensor:
        return continuous_attention(values, mu, sigma_sq, basis, alpha=alpha, mask=mask)

    fast = torch.compile(attend, fullgraph=True, backend="aot_eager")
    given = [values, mu.requires_grad_(), sigma_sq.requires_grad_()]
    found, want = fast(*given), attend(*given)
    torch.testing.assert_close(found, want, atol=1e-8, rtol=1e-8)
    slopes = [torch.autograd.grad(out.square().sum(), given[1:]) for out in (found, want)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@WARNINGS
def test_compiled_again_for_another_alpha() -> None:
    torch._dynamo.reset()
    basis, values, (mu, sigma_sq) = LINES[0], data(6, 2), queries(2, plane=False)
    attend = lambda alpha: continuous_attention(values, mu, sigma_sq, basis, alpha=alpha)  # noqa: E731
    fast = torch.compile(attend, fullgraph=True, backend="eager")
    for alpha in (2.0, 1.5, 1.0):
        torch.testing.assert_close(fast(alpha), attend(alpha))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("basis", [*LINES, *PLANES], ids=repr)
def test_lower_precision(dtype, basis) -> None:
    plane = basis.dim == 2
    values, (mu, sigma_sq) = data(2, *((4, 5) if plane else (9,)), 3), queries(2, 4, plane=plane)
    given = [x.to(dtype).requires_grad_() for x in (values, mu, sigma_sq)]
    found = continuous_attention(*given, basis)
    assert found.dtype == dtype
    want = continuous_attention(*(x.detach().double() for x in given), basis)
    assert float((found.double() - want).detach().abs().max()) < {2: 0.15, 4: 1e-4}[dtype.itemsize]
    for slope in torch.autograd.grad(found.float().sum() / 100, given):
        assert slope.isfinite().all()


def test_shapes_broadcast() -> None:
    basis = GaussianBasis.grid(4)
    mu, sigma_sq = queries(5, 3, plane=False)
    assert continuous_attention(data(7, 2), mu, sigma_sq, basis).shape == (5, 3, 2)
    assert continuous_attention(data(4, 1, 7, 2), mu, sigma_sq, basis).shape == (4, 5, 3, 2)
    weights = mu.softmax(-1)
    signal = Signal.fit(data(7, 2), basis)
    mixed = continuous_attention(signal, mu, sigma_sq, weights=weights)
    each = continuous_attention(signal, mu, sigma_sq)
    torch.testing.assert_close(mixed, (weights.unsqueeze(-1) * each).sum(-2))


def test_what_is_wrong_is_said() -> None:
    basis, values, mu = GaussianBasis.grid(4), torch.randn(7, 2), torch.rand(3)
    signal = Signal.fit(values, basis)
    plane = GaussianBasis.grid(2, [0.1], dim=2)
    for call, words in [
        (lambda: continuous_attention(values, mu, mu + 1), "need a basis"),
        (lambda: continuous_attention(signal, mu, mu + 1, basis), "write neither"),
        (lambda: continuous_attention(values, mu, -mu, basis), "must be positive"),
        (lambda: continuous_attention(values, mu, mu + 1, basis, alpha=-0.5), "negative"),
        (lambda: continuous_attention(values, mu, mu + 1, plane), r"\(\.\.\., H, W, d\)"),
        (lambda: continuous_attention(values[None], mu, mu, plane), "mu must be"),
        (lambda: Signal.fit(values, basis, ridge=0.0), "penalty"),
        (lambda: Signal(torch.randn(3, 2), basis), "a row for each function"),
        (lambda: Signal.fit(values, basis, mask=torch.ones(5, dtype=torch.bool)), "broadcast"),
        (lambda: signal.expect(PlaneDensity(torch.rand(2), torch.eye(2))), "needs a LineDensity"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="boolean"):
        Signal.fit(values, basis, mask=torch.ones(7))
    with pytest.raises(TypeError, match="GaussianBasis"):
        Signal.fit(values, 32)
    with pytest.raises(TypeError, match="LineDensity"):
        basis.expect(mu)
    assert LineDensity(mu, mu + 1).shape == (3,)
