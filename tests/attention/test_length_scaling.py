"""Scaling of queries with the number of keys that they see."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import fewfold as ff
from fewfold.attention.shapes import Layout

LengthScaling, AdaptiveLengthScaling = (
    ff.attention.LengthScaling,
    ff.attention.AdaptiveLengthScaling,
)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_seeded()) < 0.6


def _scaling(heads: int, **options) -> LengthScaling:
    scaling = LengthScaling(heads, **options)
    with torch.no_grad():
        scaling.beta.uniform_(-0.5, 1.0, generator=_seeded())
        scaling.gamma.uniform_(-1.0, 2.0, generator=_seeded())
    return scaling


LOWEST = torch.finfo(torch.float32).min
MASKS = {
    "none": None,
    "rows": _mask(2, 3, 5, 7),
    "shared by heads": _mask(2, 1, 5, 7),
    "padding": _mask(2, 1, 1, 7),
    "keys": _mask(7),
    "queries": _mask(3, 5, 1),
    "numbers": torch.randn(2, 1, 5, 7).masked_fill(_mask(2, 1, 5, 7), -math.inf),
    "lowest number": torch.zeros(2, 1, 1, 7).masked_fill(_mask(2, 1, 1, 7), LOWEST),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_formula_for_every_query(name, is_causal) -> None:
    """n is the number of scores that are not masked, by the scores of sparse_attention."""
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    mask, scaling = MASKS[name], _scaling(3, delta=0.7)
    found = scaling(query, key, mask=mask, is_causal=is_causal)
    scores = Layout.of(query, key, key, mask, is_causal, 1.0, False).scores(query, key)
    counts = (scores > LOWEST / 2).sum(-1)
    assert not is_causal or len(counts.unique()) > 1
    for place in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
        log = math.log(max(int(counts[tuple(place)]), 2))
        factor = 0.7 + scaling.beta[place[1]] * log ** scaling.gamma[place[1]]
        torch.testing.assert_close(found[tuple(place)], query[tuple(place)] * factor)


@pytest.mark.parametrize(("queries", "keys"), [(1, 4), (6, 2), (3, 0), (0, 3)])
def test_causal_sizes(queries, keys) -> None:
    query, key = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
    for mask in (None, torch.ones(1, 1, 1, keys, dtype=torch.bool)):
        found = _scaling(2)(query, key, mask=mask, is_causal=True)
        want = [_scaling(2).factor(torch.tensor(min(i + 1, keys))) for i in range(queries)]
        if queries:
            want = torch.cat([one.view(2, 1, 1) for one in want], 1)
            torch.testing.assert_close(found, query * want)
        assert found.shape == query.shape


def test_neutral_parameters_are_unscaled_attention() -> None:
    torch.manual_seed(0)
    plain, scaled = (
        ff.MultiheadAttention(8, 4, length_scaling=one) for one in (None, LengthScaling(4))
    )
    missing = scaled.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["length_scaling.beta", "length_scaling.gamma"]
    words = torch.randn(2, 6, 8)
    assert torch.equal(plain(words, is_causal=True), scaled(words, is_causal=True))


@pytest.mark.parametrize("kind", ["by head", "by position"])
def test_what_is_hidden_does_not_count(kind) -> None:
    """Padding changes nothing, and neither do later positions where attention is causal."""
    torch.manual_seed(1)
    scaling = _scaling(4) if kind == "by head" else AdaptiveLengthScaling(4, 8)
    attention = ff.MultiheadAttention(8, 4, key_heads=2, length_scaling=scaling)
    words = torch.randn(2, 6, 8)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    found = attention(words, key_padding_mask=padding)
    torch.testing.assert_close(found[1, :4], attention(words[1, :4]))
    assert not torch.allclose(found[0, :4], attention(words[0, :4]))  # more keys are seen
    causal = attention(words, is_causal=True)
    torch.testing.assert_close(causal[:, :4], attention(words[:, :4], is_causal=True))
    out, weights = attention.with_weights(words, key_padding_mask=padding)
    torch.testing.assert_close(out, found)
    assert not weights[1, :, :, 4:].any()


@pytest.mark.parametrize("kind", ["by head", "by position"])
def test_gradients(kind) -> None:
    scaling = _scaling(2) if kind == "by head" else AdaptiveLengthScaling(2, 3)
    names = [name for name, _ in scaling.named_parameters()]
    values = [one.detach().double().requires_grad_() for one in scaling.parameters()]
    query, key, vectors = (
        torch.randn(shape, generator=_seeded(), dtype=torch.float64, requires_grad=True)
        for shape in ((2, 4, 2), (2, 4, 2), (4, 3))
    )

    def attend(query, key, vectors, *values):
        given = dict(zip(names, values, strict=True))
        more = {"is_causal": True, "vectors": vectors}
        scaled = torch.func.functional_call(scaling, given, (query, key), more)
        return ff.sparse_attention(scaled, key, key, ff.Tsallis(1.5), is_causal=True)

    assert gradcheck(attend, (query, key, vectors, *values))
    grads = torch.autograd.grad(attend(query, key, vectors, *values)[..., 0].sum(), values)
    assert all(bool(one.any()) for one in grads)  # a single key gives none, and no NaN


def test_formula_by_position() -> None:
    scaling = AdaptiveLengthScaling(2, 3, delta=0.5, limit=1.5)
    query, vectors = torch.randn(2, 4, 6), torch.randn(4, 3)
    beta = (vectors @ scaling.to_beta.weight.T).exp().log1p()
    gamma = 1.5 * (vectors @ scaling.to_gamma.weight.T).tanh()
    factor = 0.5 + beta * math.log(4) ** gamma
    torch.testing.assert_close(
        scaling(query, query, vectors=vectors), query * factor.T.unsqueeze(-1)
    )


def test_dtypes_devices_and_transforms() -> None:
    scaling, query = _scaling(2), torch.randn(3, 2, 4, 5)
    assert scaling(query.half(), query.half()).dtype == torch.float16
    want = scaling(query, query, is_causal=True)
    found = torch.func.vmap(lambda one: scaling(one, one, is_causal=True))(query)
    torch.testing.assert_close(found, want)
    meta = scaling.to("meta")(query.to("meta"), query.to("meta"), is_causal=True)
    assert meta.shape == query.shape
    assert meta.is_meta


def test_errors_say_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"query must be \(..., 3, L, d\), got \(2, 4, 5\)"):
        LengthScaling(3)(torch.zeros(2, 4, 5), torch.zeros(2, 4, 5))
    with pytest.raises(TypeError, match="write scaling"):
        AdaptiveLengthScaling(2, 3)(torch.zeros(2, 4, 5), torch.zeros(2, 4, 5))
    with pytest.raises(ValueError, match="length_scaling must have 4 heads"):
        ff.MultiheadAttention(8, 4, length_scaling=LengthScaling(2))
    with pytest.raises(ValueError, match="limit"):
        AdaptiveLengthScaling(2, 3, limit=0.0)
