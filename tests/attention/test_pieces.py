"""Chunked attention in special cases: second derivatives, NaN and infinities, other dtypes."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import fewfold as ff
from fewfold.attention import chunks as pieces
from fewfold.attention import shapes as layout
from fewfold.attention import sparse_attention
from fewfold.attention import support_attention as few

D = torch.float64


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(layout, "_SMALL", 0)
    monkeypatch.setattr(pieces, "_AT_ONCE", 500)


@pytest.fixture
def whole(monkeypatch):
    """The same function with all scores at once."""

    def attend(*inputs, **options) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "_SMALL", 2**40)
            return sparse_attention(*inputs, **options)

    return attend


def _inputs(dtype: torch.dtype = D, heads: int = 4) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 19, 6), (2, heads, 23, 6), (2, heads, 23, 5))
    return [
        (size * torch.randn(shape, generator=g, dtype=D)).to(dtype).requires_grad_()
        for shape, size in zip(shapes, (3.0, 3.0, 1.0), strict=True)
    ]


OMEGAS = {
    "entmax": lambda: ff.Tsallis(1.5),
    "sparsemax": lambda: ff.Gini(),
    "k-subset": lambda: ff.Subset(2),
    "an alpha per head": lambda: ff.Tsallis(
        torch.tensor([1.3, 1.5, 1.8, 2.0], dtype=D).view(4, 1, 1).requires_grad_()
    ),
}


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("name", OMEGAS)
def test_second_derivatives(name, heads, dropout_p, whole) -> None:
    """Of the whole; with dropout, where the whole draws otherwise, of the gradient itself."""
    omega, inputs = OMEGAS[name](), _inputs(heads=heads)
    learnt = [*inputs, *(x for x in vars(omega).values() if isinstance(x, Tensor))]

    def first(attend, graph: bool = True) -> list[Tensor]:
        out = attend(
            *inputs, omega, is_causal=True, enable_gqa=True, dropout_p=dropout_p,
            generator=torch.Generator().manual_seed(7),
        )  # fmt: skip
        return list(torch.autograd.grad(out.square().sum(), learnt, create_graph=graph))

    if dropout_p:
        for one, other in zip(first(sparse_attention), first(sparse_attention, False), strict=True):
            torch.testing.assert_close(one, other)
        return
    ours, theirs = (
        torch.autograd.grad(sum(x.square().sum() for x in first(attend)), learnt)
        for attend in (sparse_attention, whole)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-7)


def test_many_gradients_at_once() -> None:
    inputs = _inputs()
    out = sparse_attention(*inputs)
    grads = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(1), dtype=D)
    batched = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        for one, other in zip(
            torch.autograd.grad(out, inputs, grad, retain_graph=True), batched, strict=True
        ):
            torch.testing.assert_close(one, other[i])


def test_forward_mode_takes_the_whole(whole) -> None:
    query, key, value = (x.detach() for x in _inputs())
    with forward_ad.dual_level():
        out = sparse_attention(forward_ad.make_dual(query, torch.ones_like(query)), key, value)
        moved = forward_ad.unpack_dual(out).tangent
    step = 1e-6
    near = [whole(query + sign * step, key, value) for sign in (1, -1)]
    torch.testing.assert_close(moved, (near[0] - near[1]) / (2 * step), atol=1e-6, rtol=1e-5)


def test_what_is_no_number_is_told(whole) -> None:
    inputs = [x.detach() for x in _inputs(torch.float32)]
    inputs[0][0, 1, 3, 0] = math.nan
    found = sparse_attention(*inputs)
    assert bool(found[0, 1, 3].isnan().all())
    assert int(found.isnan().sum()) == 5
    torch.testing.assert_close(found, whole(*inputs), equal_nan=True)


def test_infinite_scores_take_all_and_move_no_more(whole) -> None:
    inputs = _inputs(torch.float32)
    mask = torch.zeros(19, 23)
    mask[2, 5:7] = math.inf
    results = []
    for attend in (sparse_attention, whole):
        out = attend(*inputs, mask=mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_is_that_of_torch(whole) -> None:
    inputs = _inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(*inputs)
        theirs = torch.nn.functional.scaled_dot_product_attention(*inputs)
    assert out.dtype == theirs.dtype == torch.bfloat16
    grads = torch.autograd.grad(out.float().sum(), inputs)
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads)
    low = [x.bfloat16().double() for x in inputs]
    torch.testing.assert_close(out.double(), whole(*low), atol=0.3, rtol=0.1)


def test_whole_numbers_inside_omega(whole) -> None:
    omega = ff.Subset(torch.tensor([1, 2, 3, 2]).view(4, 1, 1))
    inputs = _inputs()
    out = sparse_attention(*inputs, omega)
    torch.testing.assert_close(out, whole(*inputs, omega))
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), inputs))


def test_an_alpha_near_one_is_left_to_the_map(whole) -> None:
    inputs = _inputs(torch.float32)
    alpha = torch.tensor([1.02, 1.15, 1.3, 2.0]).view(4, 1, 1).requires_grad_()
    grads = [
        torch.autograd.grad(attend(*inputs, ff.Tsallis(alpha)).square().sum(), alpha)[0]
        for attend in (sparse_attention, whole)
    ]
    torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-4)


def test_an_alpha_for_each_query(whole) -> None:
    inputs = _inputs()
    alpha = torch.linspace(1.3, 2.0, 4 * 19, dtype=D).view(4, 19, 1).requires_grad_()
    grads = [
        torch.autograd.grad(attend(*inputs, ff.Tsallis(alpha)).square().sum(), alpha)[0]
        for attend in (sparse_attention, whole)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("at_once", [20, 60, 500])
@pytest.mark.parametrize(
    "omega",
    [
        ff.Subset(5),
        ff.Subset(torch.tensor([2, 5, 9, 30]).view(4, 1, 1)),
        ff.SparseMAP(ff.structures.Budget(5)),
        ff.SparseMAP(ff.structures.OrOut()),  # whose last part is a part of its own
    ],
    ids=["5", "a tensor", "a structure", "one with a last part"],
)
def test_more_to_choose_than_the_first_queries_see(omega, at_once, whole, monkeypatch) -> None:
    """They take what they see, in whichever pieces."""
    monkeypatch.setattr(pieces, "_AT_ONCE", at_once)
    inputs = _inputs()
    results = []
    for attend in (sparse_attention, whole):
        out = attend(*inputs, omega, is_causal=True)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    if isinstance(omega, ff.Subset):  # and those sums are of all there is
        values = inputs[2].cumsum(-2)
        torch.testing.assert_close(results[0][0][:, 1:3, :5], values[:, 1:3, :5])


def test_structures_with_additional_scores_are_whole() -> None:
    """Their bonus has a gradient, and its shape that of all keys."""
    bonus = torch.zeros(22, dtype=D).requires_grad_()
    omega = ff.SparseMAP(ff.structures.SequentialSubset(2, bonus, at_most=True))
    out = sparse_attention(*_inputs(), omega, is_causal=True)
    (grad,) = torch.autograd.grad(out.square().sum(), bonus)
    assert bool(grad.any())


def test_queries_are_shared_by_a_batch(whole) -> None:
    query, key, value = _inputs()
    shared = query[0]
    out = sparse_attention(shared, key, value)
    torch.testing.assert_close(out, whole(shared.expand(2, -1, -1, -1), key, value))
    (grad,) = torch.autograd.grad(out.square().sum(), query)
    wide = whole(shared.expand(2, -1, -1, -1), key, value)
    torch.testing.assert_close(grad, torch.autograd.grad(wide.square().sum(), query)[0])


def test_no_more_scores_than_a_piece_ever_exist(path, monkeypatch) -> None:
    """And by the kernels none is looked at twice."""
    sizes, kept = [], []
    scores, find_support = pieces.Plan.scores, few.find_support

    def seen(self, *given) -> Tensor:
        found = scores(self, *given)
        sizes.append(found.numel())
        return found

    def found(*given) -> object:
        kept.append(find_support(*given))
        return kept[-1]

    monkeypatch.setattr(pieces.Plan, "scores", seen)
    monkeypatch.setattr("fewfold.attention.chunked.find_support", found)
    inputs = [8 * x for x in _inputs()]
    forward = sparse_attention(*inputs, ff.Gini())
    pieces_made = len(sizes)
    assert pieces_made > 1
    torch.autograd.grad(forward.sum(), inputs)
    assert max(sizes) <= 500
    again = len(sizes) - pieces_made
    assert again == sum(one is None for one in kept)
    assert (again == 0) == (path == "native")


@pytest.mark.parametrize(
    "omega",
    [
        lambda dtype: ff.Tsallis(torch.tensor(1.5, dtype=dtype)),
        lambda dtype: ff.Tsallis(torch.linspace(1.3, 2.0, 4 * 19, dtype=dtype).view(4, 19, 1)),
        lambda dtype: ff.Norm(torch.tensor(2.0, dtype=dtype)),
        lambda dtype: ff.Subset(torch.tensor(2.5, dtype=dtype)),
        lambda dtype: ff.maps.Bounded(torch.linspace(0.3, 1.5, 23, dtype=dtype)),
    ],
    ids=["an alpha", "one for each query", "a norm", "a budget", "bounds"],
)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_omega_of_another_precision(omega, learns, dtype, path) -> None:
    """Whichever of omega and the vectors has more digits."""
    other = torch.float32 if dtype == D else D
    results = []
    for own in (other, dtype):
        inputs = [(4 * x).detach().to(dtype).requires_grad_() for x in _inputs()]
        given = omega(own)
        learnt = next(x for x in vars(given).values() if isinstance(x, Tensor))
        asked = [*inputs, learnt.requires_grad_()] if learns else inputs
        out = sparse_attention(*inputs, given)
        grads = torch.autograd.grad(out.square().sum(), asked)
        assert [x.dtype for x in (out, *grads)] == [dtype] * 4 + [own] * learns
        results.append([x.float() for x in (out, *grads)])
    for one, same in zip(*results, strict=True):
        torch.testing.assert_close(one, same, atol=2e-2, rtol=1e-3)


def test_kernels_take_one_dtype() -> None:
    some = few.ChunkSupport(torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"same dtype, got torch.float64, torch.float32"):
        few.blend(torch.ones(1, 1, 2, dtype=D), some.weight, some)


@pytest.mark.parametrize(("heads", "dtype"), [(4, torch.bfloat16), (2, torch.float16)])
def test_gradients_of_16_bits_are_sums_of_32(heads, dtype, monkeypatch) -> None:
    """300 pieces add to each key and value: in 16 bits a sum no longer grows by small parts."""
    monkeypatch.setattr(pieces, "_AT_ONCE", 20)
    g = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 300, 6), (1, heads, 20, 6), (1, heads, 20, 5))
    inputs = [torch.rand(shape, generator=g).to(dtype).requires_grad_() for shape in shapes]
    wide = [x.detach().float().requires_grad_() for x in inputs]
    grads, right = (
        torch.autograd.grad(
            sparse_attention(*given, ff.Shannon(), enable_gqa=True).float().sum(), given
        )
        for given in (inputs, wide)
    )
    assert all(grad.dtype == dtype for grad in grads)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(grads[2].float(), right[2], atol=0, rtol=rounding)


def test_a_mask_that_changes_before_the_gradient_is_told() -> None:
    inputs = _inputs()
    for mask in (torch.rand(19, 23) > 0.3, torch.zeros(19, 23, dtype=D)):
        out = sparse_attention(*inputs, ff.Norm(2.0), mask=mask)
        mask.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_every_piece_drops_weights_of_its_own() -> None:
    """A head is a piece here, and all of them are alike."""
    inputs = [torch.ones_like(x) for x in _inputs()]
    out = sparse_attention(*inputs, ff.Shannon(), dropout_p=0.5, generator=torch.Generator())
    assert all(not torch.equal(out[0, 0], out[0, i]) for i in range(1, 4))
