"""Sparse attention against its definition, dense and in chunks."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from fewfold.attention import attention_support, sparse_attention
from fewfold.attention import chunks as pieces
from fewfold.attention import shapes as layout

D = torch.float64


def _alpha() -> Tensor:
    return torch.tensor([1.3, 1.5, 1.8, 2.0], dtype=D).view(4, 1, 1).requires_grad_()


def _upper() -> Tensor:
    """Every fourth key may have everything, so that few masks leave too little."""
    upper = torch.full((41,), 0.3, dtype=D)
    upper[::4] = 1.5
    return upper.requires_grad_()


OMEGAS = {
    "softmax": lambda: ff.Shannon(),
    "entmax": lambda: ff.Tsallis(1.5),
    "an alpha per head": lambda: ff.Tsallis(_alpha()),
    "sparsemax": lambda: ff.Gini(),
    "normmax": lambda: ff.Norm(1.7),
    "k-subset": lambda: ff.Subset(2),
    "bounds": lambda: ff.maps.Bounded(upper=_upper()),
    "SparseMAP": lambda: ff.SparseMAP(ff.structures.Budget(2)),
}
MASKS = {
    "no mask": None,
    "boolean": lambda: _boolean(),
    "numbers": lambda: torch.randn(4, 37, 41, generator=_seed(4), dtype=D),
}


def _boolean() -> Tensor:
    """The first key is for everybody: what is bounded has to go somewhere."""
    mask = torch.rand(2, 1, 37, 41, generator=_seed(3)) > 0.3
    mask[..., 0] = True
    return mask


def _seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def _inputs(heads: int = 4, scale: float = 3.0, seed: int = 0) -> list[Tensor]:
    g = _seed(seed)
    shapes = ((2, 4, 37, 8), (2, heads, 41, 8), (2, heads, 41, 5))
    sizes = (scale, scale, 1.0)
    return [
        (size * torch.randn(shape, generator=g, dtype=D)).requires_grad_()
        for shape, size in zip(shapes, sizes, strict=True)
    ]


def _plain(query, key, value, omega, mask=None, is_causal=False, **options) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(late, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return omega.argmax(scores) @ value


@pytest.fixture(params=[100, 2_000, 10**6], ids=lambda size: f"{size} at once")
def in_pieces(request, monkeypatch) -> int:
    monkeypatch.setattr(layout, "_SMALL", 0)
    monkeypatch.setattr(pieces, "_AT_ONCE", request.param)
    return request.param


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OMEGAS)
def test_pieces_are_the_whole(name, mask, causal, in_pieces) -> None:
    """Output and every gradient."""
    omega, inputs = OMEGAS[name](), _inputs()
    given = None if MASKS[mask] is None else MASKS[mask]()
    learnt = [x for x in vars(omega).values() if isinstance(x, Tensor) and x.requires_grad]
    if name == "SparseMAP":
        inputs = [x[:1, :1] for x in inputs]
        given = None if given is None else given.expand(2, 4, 37, 41)[:1, :1]
    ours = sparse_attention(*inputs, omega, mask=given, is_causal=causal)
    plain = _plain(*inputs, omega, mask=given, is_causal=causal)
    torch.testing.assert_close(ours, plain)
    grad = torch.randn(ours.shape, generator=_seed(9), dtype=D)
    for one, other in zip(
        torch.autograd.grad(ours, [*inputs, *learnt], grad),
        torch.autograd.grad(plain, [*inputs, *learnt], grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_heads(heads, in_pieces) -> None:
    inputs = _inputs(heads)
    ours = sparse_attention(*inputs, enable_gqa=True)
    plain = _plain(*inputs, ff.Tsallis(1.5))
    torch.testing.assert_close(ours, plain)
    grad = torch.randn(ours.shape, generator=_seed(9), dtype=D)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, grad),
        torch.autograd.grad(plain, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_broad_supports_are_computed_again(in_pieces) -> None:
    """Scores that are nearly equal leave every key in the support."""
    inputs = _inputs(scale=0.1)
    ours, plain = sparse_attention(*inputs, ff.Gini()), _plain(*inputs, ff.Gini())
    torch.testing.assert_close(ours, plain)
    for one, other in zip(
        torch.autograd.grad(ours.square().sum(), inputs),
        torch.autograd.grad(plain.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_is_torch_attention(is_causal) -> None:
    query, key, value = _inputs()
    key, value = key[:, :, :37], value[:, :, :37]
    ours = sparse_attention(query, key, value, ff.Shannon(), is_causal=is_causal)
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (1, 1), (5, 3), (3, 5)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths(queries, keys, is_causal) -> None:
    """None, one, and two that differ: a causal query i sees the keys up to i, as in torch."""
    query, key, value = (torch.randn(2, n, 4, dtype=D) for n in (queries, keys, keys))
    for omega in (ff.Shannon(), ff.Tsallis(1.5), ff.Gini(), ff.Norm(2.0), ff.Subset(2)):
        found = sparse_attention(query, key, value, omega, is_causal=is_causal)
        assert found.shape == (2, queries, 4)
        assert keys or not found.any()
        if isinstance(omega, ff.Shannon) and keys:
            theirs = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
            torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize("small", [True, False])
def test_a_masked_query_gives_zeros(small, monkeypatch) -> None:
    if not small:
        monkeypatch.setattr(layout, "_SMALL", 0)
    inputs = _inputs()
    mask = torch.ones(37, 41, dtype=torch.bool)
    mask[5] = False
    out = sparse_attention(*inputs, mask=mask)
    assert not out[:, :, 5].any()
    assert out[:, :, 4].any()
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert grad.isfinite().all()


@pytest.mark.parametrize("small", [True, False])
def test_dropout(small, monkeypatch) -> None:
    """Same seed, same weights; the mean is that without; the gradient is of what was kept."""
    if not small:
        monkeypatch.setattr(layout, "_SMALL", 0)
    query, key, value = _inputs()
    value = torch.ones_like(value).requires_grad_()

    def dropped(seed: int) -> Tensor:
        return sparse_attention(query, key, value, dropout_p=0.4, generator=_seed(seed))

    torch.testing.assert_close(dropped(0), dropped(0))
    assert not torch.equal(dropped(0), dropped(1))
    mean = torch.stack([dropped(i) for i in range(60)]).mean()
    assert abs(float(mean.detach()) - 1) < 0.03  # 4 standard errors
    out = dropped(0)
    (to_value,) = torch.autograd.grad(out[..., 0].sum(), value)
    # values are ones: what comes out is the sum of the weights that were kept
    torch.testing.assert_close(to_value[..., 0].sum(), out[..., 0].sum())


@pytest.mark.parametrize("small", [True, False])
def test_all_may_be_dropped(small, monkeypatch) -> None:
    if not small:
        monkeypatch.setattr(layout, "_SMALL", 0)
    inputs = _inputs()
    out = sparse_attention(*inputs, dropout_p=1.0)
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), inputs))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(
    ("query", "key", "value", "grouped"),
    [
        ((2, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), True),
        ((2, 4, 3, 4), (2, 5, 4), (2, 5, 4), True),
        ((4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), True),
        ((2, 4, 3, 4), (2, 2, 5, 4), (1, 1, 5, 4), True),
        ((1, 3, 3, 4), (1, 3, 5, 4), (2, 3, 5, 4), False),
        ((2, 3, 3, 4), (2, 3, 5, 4), (5, 4), False),
        ((3, 4), (5, 4), (2, 5, 4), False),
        ((2, 3, 4), (5, 4), (5, 4), True),
    ],
)
def test_what_is_shared_by_a_batch(query, key, value, grouped, small, monkeypatch) -> None:
    """By heads, by keys, by values: as torch's own attention of what is written out."""
    if not small:
        monkeypatch.setattr(layout, "_SMALL", 0)
    g = _seed(0)
    inputs = [torch.randn(s, generator=g, dtype=D).requires_grad_() for s in (query, key, value)]
    heads = query[-3] if len(query) > 2 else 1
    batch = torch.broadcast_shapes(query[:-3], key[:-3], value[:-3])
    if not grouped:
        batch = torch.broadcast_shapes(query[:-2], key[:-2], value[:-2])
        wide = [x.expand(*batch, *x.shape[-2:]) for x in inputs]
    else:
        several = [x if x.dim() > 2 else x.unsqueeze(0) for x in inputs]
        wide = [
            x.repeat_interleave(heads // x.shape[-3], -3).expand(*batch, heads, *x.shape[-2:])
            for x in several
        ]
    theirs = F.scaled_dot_product_attention(*wide)
    ours = sparse_attention(*inputs, ff.Shannon(), enable_gqa=grouped)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        torch.autograd.grad(ours.square().sum(), inputs),
        torch.autograd.grad(theirs.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    with ff.attention.watch_attention() as calls:
        sparse_attention(*inputs, ff.Shannon(), enable_gqa=grouped)
    assert calls[0].support.rows == calls[0].shape[:-1].numel()


def test_support_holds_the_weights() -> None:
    query, key, value = _inputs()
    support = attention_support(query, key, ff.Gini())
    out = sparse_attention(query, key, value, ff.Gini())
    row = support.row // 37  # of heads
    flat = value.reshape(8, 41, -1)
    torch.testing.assert_close(support.reduce(flat[row, support.atoms]).view(out.shape), out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype, in_pieces) -> None:
    inputs = [x.detach().to(dtype) for x in _inputs()]
    out = sparse_attention(*inputs)
    assert out.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    wide = _plain(*(x.double() for x in inputs), ff.Tsallis(1.5))
    torch.testing.assert_close(out.double(), wide, atol=tolerance, rtol=tolerance)


def test_transforms() -> None:
    query, key, value = (x.detach()[:, :, :6, :4] for x in _inputs())
    one = sparse_attention(query, key, value)
    mapped = torch.func.vmap(lambda q, k, v: sparse_attention(q, k, v))(query, key, value)
    torch.testing.assert_close(mapped, one)
    compiled = torch.compile(sparse_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, key, value), one)
    small = [x[:1, :1, :3].clone().requires_grad_() for x in (query, key, value)]
    assert torch.autograd.gradcheck(sparse_attention, small)
    assert torch.autograd.gradgradcheck(sparse_attention, small)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query": torch.randn(2, 4, 37, 7, dtype=D)}, "vectors of the same size, got 7 and 8"),
        ({"value": torch.randn(2, 4, 40, 5, dtype=D)}, "every key needs a value"),
        ({"key": torch.randn(2, 2, 41, 8, dtype=D), "value": torch.randn(2, 2, 41, 5, dtype=D)},
         "enable_gqa=True"),
        ({"key": torch.randn(2, 3, 41, 8, dtype=D), "value": torch.randn(2, 3, 41, 5, dtype=D),
          "enable_gqa": True}, "heads of keys must divide those of queries"),
        ({"mask": torch.ones(3, 41, dtype=torch.bool)}, "mask must broadcast to"),
        ({"scale": math.inf}, "scale must be finite"),
        ({"dropout_p": 1.1}, "dropout_p must be between 0 and 1, got 1.1"),
        ({"value": torch.randn(3, 4, 41, 5, dtype=D)}, r"same heads and batch.*\(3, 4\)"),
    ],
)  # fmt: skip
def test_errors(change, says) -> None:
    names = ("query", "key", "value")
    given = {**dict(zip(names, _inputs(), strict=True)), **change}
    with pytest.raises(ValueError, match=says):
        sparse_attention(*[given.pop(name) for name in names], **given)


def test_a_mask_of_integers() -> None:
    with pytest.raises(TypeError, match=r"boolean .True = take part. or numbers"):
        sparse_attention(*_inputs(), mask=torch.ones(37, 41, dtype=torch.int64))


def test_arguments_of_the_wrong_kind() -> None:
    query, key, value = _inputs()
    with pytest.raises(TypeError, match=r"same dtype, got torch.float64, torch.float32"):
        sparse_attention(query, key.float(), value)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),  # which leaves double precision as it is
        pytest.raises(TypeError, match=r"same dtype, got torch.float64, torch.float64 and"),
    ):
        sparse_attention(query, key, value.float())
    for scale in ("a", torch.ones(2)):
        with pytest.raises(TypeError, match="scale must be a number, got"):
            sparse_attention(query, key, value, scale=scale)
    with pytest.raises(TypeError, match=r"omega must be a regulariser such as Gini\(\)"):
        sparse_attention(query, key, value, ff.Gini)
    with pytest.raises(TypeError, match=r"a tensor that requires a gradient; write query \* scale"):
        sparse_attention(query, key, value, scale=torch.tensor(0.5, requires_grad=True))
    with pytest.raises(ValueError, match=r"the tensors of omega must broadcast|alpha must be"):
        sparse_attention(query, key, value, ff.Tsallis(torch.full((3, 1, 1), 1.5, dtype=D)))


def test_a_mask_of_another_precision() -> None:
    query, key, value = (x.detach().float() for x in _inputs())
    mask = torch.randn(37, 41, dtype=D, generator=_seed(1))
    found = sparse_attention(query, key, value, mask=mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sparse_attention(query, key, value, mask=mask.float()))
