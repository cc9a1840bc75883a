"""The modules: masks, heads, several queries, every map."""

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold.attention import (
    Heads,
    Hopfield,
    HopfieldLayer,
    HopfieldPooling,
    MultiheadAttention,
    sparse_attention,
)

OMEGAS = [
    ff.Shannon(),
    ff.Tsallis(1.5),
    ff.Gini(),
    ff.Norm(2.0),
    ff.Subset(2),
    ff.SparseMAP(ff.structures.KSubset(2)),
]


def _data(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("omega", OMEGAS, ids=repr)
def test_pooling_ignores_what_is_masked(omega) -> None:
    pool = HopfieldPooling(12, omega, beta=2.0, heads=3, queries=2)
    bags = _data(4, 7, 12)
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 5:] = False
    found = pool(bags, mask=mask)
    assert found.shape == (4, 2, 12)
    torch.testing.assert_close(found, pool(bags[:, :5]))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pool.parameters())


def test_bags_smaller_than_k_take_all() -> None:
    pool = HopfieldPooling(8, ff.Subset(3))
    bag = _data(2, 5, 8)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, :2] = True
    everything = HopfieldPooling(8, ff.Subset(2))
    everything.load_state_dict(pool.state_dict())
    torch.testing.assert_close(pool(bag, mask=mask), everything(bag[:, :2]))


def test_order_does_not_matter() -> None:
    pool = HopfieldPooling(8, ff.Gini(), heads=2)
    bag = _data(1, 6, 8)
    torch.testing.assert_close(pool(bag), pool(bag[:, torch.randperm(6)]))


def test_more_steps_are_more_updates() -> None:
    one = Hopfield(8, ff.Gini(), beta=1.0)
    two = Hopfield(8, ff.Gini(), beta=1.0, steps=2)
    two.load_state_dict(one.state_dict())
    query, memory = _data(1, 3, 8), _data(1, 5, 8)
    q, k = one.query(one.state_norm(query)), one.key(one.stored_norm(memory))
    v = one.value(one.value_norm(memory))
    q = sparse_attention(q, k, k, ff.Gini(), scale=1.0)
    want = one.out(sparse_attention(q, k, v, ff.Gini(), scale=1.0))
    torch.testing.assert_close(two(query, memory), want)


def test_beta_per_head_learns() -> None:
    beta = nn.Parameter(torch.tensor([0.5, 2.0]))
    layer = Hopfield(8, ff.Tsallis(1.5), beta, heads=2)
    assert "beta" in dict(layer.named_parameters())
    layer(_data(2, 3, 8)).square().sum().backward()
    assert bool((beta.grad != 0).all())
    fixed = Hopfield(8, ff.Tsallis(1.5), beta=1.0, heads=2)
    fixed.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "beta"})
    beta.data.fill_(1.0)
    torch.testing.assert_close(layer(_data(2, 3, 8)), fixed(_data(2, 3, 8)))


def test_layer_learns_its_memory() -> None:
    layer = HopfieldLayer(8, ff.Gini(), patterns=5)
    layer(_data(2, 3, 8)).sum().backward()
    assert layer.patterns.shape == (5, 8)
    assert bool(layer.patterns.grad.any())


def test_dropout_is_for_training() -> None:
    layer = Hopfield(8, ff.Shannon(), heads=Heads(2, size=6, dropout=0.5))
    data = _data(2, 9, 8)
    assert not torch.equal(layer(data), layer(data))
    layer.eval()
    assert torch.equal(layer(data), layer(data))


def test_multihead_learns_alpha() -> None:
    attention = MultiheadAttention(16, heads=4)
    attention(_data(2, 6, 16), is_causal=True).square().sum().backward()
    assert attention.alpha.shape == (4,)
    assert bool((attention.omega.raw.grad != 0).all())


def test_multihead_is_torch_attention_under_softmax() -> None:
    ours = MultiheadAttention(16, 4, ff.Shannon())
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    query, memory = _data(2, 5, 16), _data(2, 7, 16)
    torch.testing.assert_close(ours(query, memory), theirs(query, memory, memory)[0])


def test_grouped_keys() -> None:
    attention = MultiheadAttention(16, 4, ff.Gini(), key_heads=2)
    assert attention.key.out_features == 8
    assert attention(_data(2, 5, 16)).shape == (2, 5, 16)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Hopfield(8, heads=3), "cannot be shared out among 3 heads"),
        (lambda: Hopfield(8, beta=-1.0), "beta must be finite and greater than 0"),
        (lambda: Hopfield(8, beta=torch.ones(3)), r"tensor \(1,\)"),
        (lambda: Hopfield(8)(_data(2, 3, 7)), r"query must be \(..., count, 8\)"),
        (lambda: Hopfield(8)(_data(2, 3, 8), mask=torch.ones(4, dtype=torch.bool)), "mask must"),
        (lambda: MultiheadAttention(10, 4), "heads must divide dim=10"),
        (lambda: MultiheadAttention(8, 4, key_heads=3), "key_heads must divide"),
        (lambda: Heads(2, dropout=1.0), "dropout must be at least 0 and below 1"),
    ],
)
def test_errors(call, says) -> None:
    with pytest.raises(ValueError, match=says):
        call()
