"""Masks of `MultiheadAttention`, its torch-compatible interface, and its parameters."""

import math

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold import MultiheadAttention

B, HEADS, L, S, DIM = 3, 2, 4, 5, 8


def _data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair() -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Ours with softmax, and torch's with the same weights."""
    torch.manual_seed(0)
    ours = MultiheadAttention(DIM, HEADS, ff.Shannon())
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    return ours, theirs


def _padding() -> Tensor:
    """(B, S), True = ignore."""
    return torch.arange(S) >= torch.tensor([[S], [2], [3]])


def _pairs() -> Tensor:
    """(L, S), True = ignore."""
    return torch.ones(L, S).triu(2).bool()


def _added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -math.inf)


MASKS = {
    "padding": {"key_padding_mask": _padding()},
    "padding, numbers": {"key_padding_mask": _added(_padding()) + 0.3 * _data(B, S)},
    "pairs": {"attn_mask": _pairs()},
    "pairs, numbers": {"attn_mask": _data(L, S, seed=2)},
    "pairs of each head": {"attn_mask": _data(B * HEADS, L, S, seed=3) > 1},
    "both": {"key_padding_mask": _padding(), "attn_mask": _pairs()},
    "both, one of numbers": {"key_padding_mask": _added(_padding()), "attn_mask": _data(L, S)},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_masks_with_the_names_of_torch_mean_what_they_mean_there(name, pair) -> None:
    ours, theirs = pair
    query, key, value = _data(B, L, DIM), _data(B, S, DIM, seed=1), _data(B, S, DIM, seed=2)
    want, weights = theirs(query, key, value, **MASKS[name], average_attn_weights=False)
    torch.testing.assert_close(ours(query, key, value, **MASKS[name]), want)
    found = ours.with_weights(query, key, value, **MASKS[name])
    torch.testing.assert_close(found[0], want)
    torch.testing.assert_close(found[1], weights)


def test_one_sequence_without_a_batch(pair) -> None:
    ours, theirs = pair
    query, key = _data(L, DIM), _data(S, DIM, seed=1)
    more = {"key_padding_mask": _padding()[1], "attn_mask": _data(HEADS, L, S) > 1}
    torch.testing.assert_close(ours(query, key, **more), theirs(query, key, key, **more)[0])
    torch.testing.assert_close(
        ours(query, key, mask=~_pairs()), ours(query, key, attn_mask=_pairs())
    )


def test_polarity_of_our_own_mask(pair) -> None:
    ours, _ = pair
    query, key = _data(B, L, DIM), _data(B, S, DIM, seed=1)
    padded = ours(query, key, key_padding_mask=_padding())
    torch.testing.assert_close(ours(query, key, mask=~_padding()[:, None, None]), padded)
    both = ours(query, key, mask=~_pairs()[None, None], key_padding_mask=_padding())
    want = ours(query, key, attn_mask=_pairs(), key_padding_mask=_padding())
    torch.testing.assert_close(both, want)


def test_values_of_their_own_and_keys_of_the_queries(pair) -> None:
    ours, theirs = pair
    query, value = _data(B, L, DIM), _data(B, L, DIM, seed=1)
    torch.testing.assert_close(ours(query), theirs(query, query, query)[0])
    torch.testing.assert_close(ours(query, value=value), theirs(query, query, value)[0])


AMBIGUOUS = {
    "rows of a batch": ((B, S), r"key_padding_mask=~mask"),
    "queries and keys": ((L, S), r"mask\[None, None\]"),
    "per sequence or per head": ((HEADS, 1, S), r"mask.unsqueeze\(1\), for one per head"),
    "keys": ((S,), r"broadcast to \(3, 2, 4, 5\), got \(5,\)"),
    "wrong size": ((B, HEADS, L, S + 1), r"got \(3, 2, 4, 6\)"),
    "too many": ((1, B, HEADS, L, S), r"got \(1, 3, 2, 4, 5\)"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_mask_that_could_mean_two_things_is_refused(name, pair) -> None:
    shape, says = AMBIGUOUS[name]
    with pytest.raises(ValueError, match=says):
        pair[0](_data(B, L, DIM), _data(B, S, DIM), mask=torch.ones(shape, dtype=torch.bool))


def test_a_square_mask_is_refused_where_the_batch_is_as_long(pair) -> None:
    """It was taken for queries and keys there, and refused everywhere else."""
    with pytest.raises(ValueError, match="key_padding_mask=~mask"):
        pair[0](_data(L, L, DIM), mask=torch.ones(L, L, dtype=torch.bool))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"key_padding_mask": torch.ones(S, B).bool()}, ValueError, r"must be \(3, 5\)"),
        ({"key_padding_mask": torch.ones(B, L, S).bool()}, ValueError, r"must be \(3, 5\)"),
        ({"key_padding_mask": torch.ones(B, S).long()}, TypeError, "True = ignore.*int64"),
        ({"attn_mask": torch.ones(B, S).bool()}, ValueError, r"must be \(4, 5\), \(6, 4, 5\)"),
        ({"attn_mask": torch.ones(B, L, S).bool()}, ValueError, "got .3, 4, 5."),
        ({"attn_mask": [[True]]}, TypeError, "True = ignore.*got list"),
        ({"mask": torch.ones(B, HEADS, L, S).int()}, TypeError, "True = take part.*int32"),
        ({"need_weights": True}, TypeError, "attention.with_weights"),
        ({"need_weights": False}, TypeError, "leave need_weights out"),
    ],
)
def test_errors(given, error, says, pair) -> None:
    with pytest.raises(error, match=says):
        pair[0](_data(B, L, DIM), _data(B, S, DIM), **given)


def test_batch_first_is_the_only_layout() -> None:
    assert MultiheadAttention(8, 2, batch_first=True).embed_dim == 8
    with pytest.raises(ValueError, match="batch_first must be True"):
        MultiheadAttention(8, 2, batch_first=False)


def test_weights_of_sparse_heads() -> None:
    attention = MultiheadAttention(DIM, HEADS, ff.Gini(), key_heads=1, dropout=0.5)
    query = 5 * _data(B, L, DIM)
    with ff.attention.watch_attention() as calls:
        _, weights = attention.with_weights(query, is_causal=True)
    assert weights.shape == (B, HEADS, L, L)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, HEADS, L))  # before dropout
    assert not weights.triu(1).any()
    dense = calls[0].support.to_dense(L).view(weights.shape)
    torch.testing.assert_close(dense, weights.detach())
    first, second = (attention.with_weights(query)[0] for _ in range(2))
    assert not torch.equal(first, second)
    attention.eval()
    torch.testing.assert_close(attention.with_weights(query)[0], attention(query))


@pytest.mark.parametrize("added", [False, True])
def test_attn_mask_is_that_of_scaled_dot_product_attention(added: bool) -> None:
    """True = take part there, and so here, unlike in `nn.MultiheadAttention`."""
    query, key = _data(B, HEADS, L, DIM), _data(B, HEADS, S, DIM, seed=1)
    mask = _data(L, S, seed=2) if added else ~_pairs()
    found = ff.sparse_attention(query, key, key, ff.Shannon(), attn_mask=mask)
    want = nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    torch.testing.assert_close(found, want)
    for name in ("mask", "attn_mask"):
        support = ff.attention.attention_support(query, key, ff.Gini(), **{name: mask})
        dense = support.to_dense(S).view(B, HEADS, L, S)
        torch.testing.assert_close(
            dense @ key, ff.sparse_attention(query, key, key, ff.Gini(), mask=mask)
        )


@pytest.mark.parametrize("call", [ff.sparse_attention, ff.attention.attention_support])
def test_a_mask_is_given_once(call) -> None:
    given = [_data(L, DIM)] * (3 if call is ff.sparse_attention else 2)
    mask = torch.ones(L, L, dtype=torch.bool)
    with pytest.raises(ValueError, match="two names of one argument"):
        call(*given, mask=mask, attn_mask=mask)


PLANE = ff.continuous.GaussianBasis.grid(4, [0.03], dim=2)
FACTORIES = {
    "MultiheadAttention": lambda **more: MultiheadAttention(8, 2, **more),
    "MultiheadAttention, fewer keys": lambda **more: MultiheadAttention(8, 2, key_heads=1, **more),
    "Hopfield": lambda **more: ff.Hopfield(8, heads=2, beta=torch.ones(2), **more),
    "HopfieldPooling": lambda **more: ff.HopfieldPooling(8, queries=3, **more),
    "HopfieldLayer": lambda **more: ff.HopfieldLayer(8, patterns=7, **more),
    "ContinuousAttention": lambda **more: ff.ContinuousAttention(8, heads=2, **more),
    "SignalHeads": lambda **more: ff.ContinuousAttention(
        8, locator=ff.continuous.SignalHeads(2), **more
    ),
    "AttentionMoments": lambda **more: ff.ContinuousAttention(
        8, PLANE, locator=ff.continuous.AttentionMoments(), **more
    ),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_parameters_are_made_where_they_are_wanted(name: str) -> None:
    module = FACTORIES[name](device="meta", dtype=torch.float64)
    plain = FACTORIES[name]()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert all(one.is_meta and one.dtype == torch.float64 for one in tensors.values())
    shapes = {key: value.shape for key, value in plain.state_dict().items()}
    assert {key: value.shape for key, value in module.state_dict().items()} == shapes


@pytest.mark.parametrize("name", FACTORIES)
def test_a_module_of_double_precision_computes_in_it(name: str) -> None:
    module = FACTORIES[name](dtype=torch.float64)
    memory = _data(2, *((4, 4) if name == "AttentionMoments" else (5,)), 8).double()
    query = _data(2, 5, 8, seed=1).double()
    alone = isinstance(module, ff.HopfieldPooling | ff.HopfieldLayer)
    assert (module(memory) if alone else module(query, memory)).dtype == torch.float64
