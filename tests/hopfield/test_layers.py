"""Hopfield modules: masks, heads, several queries, every map."""

import copy

import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold.attention import MultiheadAttention, sparse_attention
from fewfold.hopfield import Heads, Hopfield, HopfieldLayer, HopfieldPooling, association

OMEGAS = [
    ff.Shannon(),
    ff.Tsallis(1.5),
    ff.Gini(),
    ff.Norm(2.0),
    ff.Subset(2),
    ff.SparseMAP(ff.structures.KSubset(2)),
    ff.SparseMAP(ff.structures.SequentialSubset(2, 0.3)),
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
    torch.testing.assert_close(pool(bag[:, :2]), everything(bag[:, :2]))
    many = torch.cat([bag] * 20, 1)[:, :40]  # few of many: another way to the values
    few = torch.arange(40).expand(2, 40) < 2
    torch.testing.assert_close(pool(many, mask=few), everything(bag[:, :2]))


@pytest.mark.parametrize("omega", OMEGAS, ids=repr)
def test_values_of_a_support_are_those_of_all(omega, monkeypatch) -> None:
    """Pooling of large bags makes values of the patterns it uses alone."""
    pool = HopfieldPooling(6, omega, beta=3.0, heads=2, queries=2, steps=2).double()
    bags = _data(3, 80, 6).double().requires_grad_()
    mask = torch.rand(3, 80, generator=torch.Generator().manual_seed(1)) > 0.1
    results = []
    for few in (8, 10**9):
        monkeypatch.setattr(association, "_SPARSE", few)
        out = pool(bags, mask=mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), [bags, *_own(pool)])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def _own(module: nn.Module) -> list[Tensor]:
    return list(module.parameters())


def test_values_are_made_of_few_patterns() -> None:
    pool = HopfieldPooling(6, ff.Gini(), beta=3.0)
    rows = []
    pool.value_norm.register_forward_hook(lambda _, given, __: rows.append(given[0].numel() // 6))
    pool(_data(3, 80, 6))
    assert rows[0] < 3 * 80 / 8


@pytest.mark.parametrize("count", [40, 400])  # so many that few of them have a weight
def test_memories_of_a_batch_keep_to_themselves(count) -> None:
    """Whatever of queries and memories is shared."""
    layer = Hopfield(6, ff.Gini(), beta=20.0)
    state, stored = _data(5, 1, 2, 6), _data(1, 3, count, 6)
    found = layer(state, stored)
    assert found.shape == (5, 3, 2, 6)
    for i in range(5):
        for j in range(3):
            torch.testing.assert_close(found[i, j], layer(state[i, 0], stored[0, j]))


def test_pairs_may_be_masked() -> None:
    pool = HopfieldPooling(6, ff.Gini(), queries=2)
    bags = _data(3, 7, 6)
    mask = torch.ones(3, 2, 7, dtype=torch.bool)
    mask[:, 1, 3:] = False
    found = pool(bags, mask=mask)
    torch.testing.assert_close(found[:, 0], pool(bags)[:, 0])
    torch.testing.assert_close(found[:, 1], pool(bags[:, :3])[:, 1])


def test_what_omega_learns_is_a_parameter() -> None:
    alpha = nn.Parameter(torch.tensor(1.4))
    layer = Hopfield(6, ff.Tsallis(alpha))
    assert dict(layer.named_parameters())["omega.alpha"] is alpha
    layer(_data(2, 5, 6)).square().sum().backward()
    assert bool(alpha.grad != 0)
    bonus = nn.Parameter(torch.zeros(6))
    pool = HopfieldPooling(6, ff.SparseMAP(ff.structures.SequentialSubset(2, bonus)))
    pool(_data(2, 7, 6)).square().sum().backward()
    assert bool(bonus.grad.any())
    assert "beta" in Hopfield(6, beta=torch.ones(1)).double().state_dict()


def test_a_learned_memory_is_projected_once() -> None:
    layer = HopfieldLayer(8, ff.Gini(), patterns=5, heads=2)
    query = _data(2, 4, 3, 8)
    given = Hopfield(8, ff.Gini(), heads=2)
    given.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "patterns"})
    rows = []
    layer.key.register_forward_hook(lambda _, x, __: rows.append(x[0].shape))
    torch.testing.assert_close(layer(query), given(query, layer.patterns))
    assert rows == [(5, 8)]


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


def test_beta_of_another_precision() -> None:
    wide = Hopfield(8, beta=torch.tensor([0.5], dtype=torch.float64))
    layer = Hopfield(8, beta=0.5)
    layer.load_state_dict({k: v for k, v in wide.state_dict().items() if k != "beta"})
    torch.testing.assert_close(wide(_data(2, 5, 8)), layer(_data(2, 5, 8)))


@pytest.mark.parametrize("omega", OMEGAS[:5], ids=repr)
@pytest.mark.parametrize("patterns", [5, 200])  # so many that few of them have a weight
def test_learned_patterns_may_be_masked(omega, patterns) -> None:
    """For all queries, and for each."""
    layer = HopfieldLayer(8, omega, beta=2.0, heads=2, patterns=patterns)
    given = Hopfield(8, omega, beta=2.0, heads=2)
    given.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "patterns"})
    query = _data(2, 3, 8)
    keep = torch.arange(patterns) < 3
    want = given(query, layer.patterns[:3])
    torch.testing.assert_close(layer(query, mask=keep), want)
    pairs = torch.ones(2, 3, patterns, dtype=torch.bool)
    pairs[1, 2] = keep
    found = layer(query, mask=pairs)
    torch.testing.assert_close(found[1, 2], want[1, 2])
    torch.testing.assert_close(found[0], layer(query)[0])
    (grad,) = torch.autograd.grad(layer(query, mask=keep).square().sum(), layer.patterns)
    assert grad[:3].any()
    assert not grad[3:].any()
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        layer(query, mask=keep.float())


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: HopfieldPooling(8, ff.Gini(), beta=10.0, heads=Heads(2, dropout=0.5)),
        lambda: MultiheadAttention(8, 2, ff.Gini(), dropout=0.5),
    ],
    ids=["values of few patterns", "heads"],
)
def test_weights_are_dropped_in_training(make) -> None:
    module, data = make(), _data(2, 200, 8)
    rows = []
    module.value.register_forward_hook(lambda _, given, __: rows.append(given[0]))
    assert not torch.equal(module(data), module(data))
    module.eval()
    assert torch.equal(module(data), module(data))
    assert bool(rows) == isinstance(module, MultiheadAttention)  # pooling mixes, then projects


@pytest.mark.parametrize(("beta", "broad"), [(0.01, True), (30.0, False)])
def test_values_of_all_patterns_are_made_where_most_are_used(beta: float, broad: bool) -> None:
    """Few queries use few patterns where beta is high, and nearly all where it is low."""
    pool, data = HopfieldPooling(8, ff.Gini(), beta=beta), _data(3, 60, 8)
    projected = []
    pool.value.register_forward_hook(lambda _, given, __: projected.append(given[0].shape))
    pool(data)
    assert projected == ([data.shape] if broad else [])


def test_multihead_learns_alpha() -> None:
    attention = MultiheadAttention(16, 4)
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


def test_another_range_of_alpha() -> None:
    attention = MultiheadAttention(16, 4, ff.AdaptiveEntmax(4, low=1.0, high=3.0))
    assert attention.alpha.tolist() == [2.0] * 4
    attention(_data(2, 6, 16)).square().sum().backward()
    assert bool((attention.omega.raw.grad != 0).all())
    assert MultiheadAttention(16, 4, ff.Gini()).alpha is None


def test_grouped_keys() -> None:
    attention = MultiheadAttention(16, 4, ff.Gini(), key_heads=2)
    assert attention.key.out_features == 8
    assert attention(_data(2, 5, 16)).shape == (2, 5, 16)
    query, memory = _data(2, 5, 16), _data(4, 16)  # a memory that the batch shares
    torch.testing.assert_close(attention(query, memory), attention(query, memory.expand(2, 4, 16)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Hopfield(8, heads=3), "cannot be divided among 3 heads"),
        (lambda: Hopfield(8, beta=-1.0), "beta must be finite and greater than 0"),
        (lambda: Hopfield(8, beta=torch.ones(3)), r"tensor \(1,\)"),
        (lambda: Hopfield(8, beta=torch.tensor([torch.inf])), "beta must be finite and greater"),
        (lambda: HopfieldLayer(8)(_data(2, 3, 7)), r"count, 8\), got \(2, 3, 7\)"),
        (lambda: MultiheadAttention(8, 4, ff.AdaptiveEntmax(3)), r"write AdaptiveEntmax\(4\)"),
        (lambda: Hopfield(8)(_data(2, 3, 7)), r"query must be \(..., count, 8\)"),
        (lambda: Hopfield(8)(_data(2, 3, 8), mask=torch.ones(4, dtype=torch.bool)), "mask must"),
        (
            lambda: Hopfield(8)(
                _data(2, 5, 8), _data(3, 5, 8), mask=torch.ones(3, 5, dtype=torch.bool)
            ),
            r"must broadcast, got \(2,\) and \(3,\)",
        ),
        (lambda: Hopfield(8)(_data(2, 5, 8), _data(3, 5, 8)), r"got \(2,\) and \(3,\)"),
        (
            lambda: HopfieldLayer(8, patterns=4)(_data(2, 3, 8), mask=torch.ones(2, 4).bool()),
            r"mask must be \(4,\), of the patterns, or \(2, 3, 4\), got \(2, 4\)",
        ),
        (lambda: MultiheadAttention(10, 4), "num_heads must divide embed_dim=10"),
        (lambda: MultiheadAttention(8, 4, key_heads=3), "key_heads must divide"),
        (lambda: Heads(2, dropout=1.0), "dropout must be at least 0 and below 1"),
    ],
)
def test_errors(call, says) -> None:
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("module", [Hopfield, HopfieldPooling, HopfieldLayer])
def test_omega_is_a_value(module) -> None:
    with pytest.raises(TypeError, match="omega must be a regulariser such as"):
        module(8, ff.Gini)
    with pytest.raises(ValueError, match="maps a matrix of scores"):
        module(8, ff.SparseMAP(ff.structures.Assignment()))


def test_masks_are_boolean() -> None:
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        Hopfield(8)(_data(2, 3, 8), mask=torch.ones(2, 3))


@pytest.mark.parametrize(
    "module", [Hopfield(8), HopfieldPooling(8), HopfieldLayer(8), MultiheadAttention(8, 2)]
)
def test_vectors_are_floating_point_tensors(module) -> None:
    with pytest.raises(TypeError, match=r"must be a torch.Tensor, got list"):
        module([[1.0] * 8])
    with pytest.raises(TypeError, match=r"floating-point vectors, got torch.int64"):
        module(torch.ones(2, 3, 8, dtype=torch.int64))


def test_a_module_shows_and_saves_the_omega_it_has() -> None:
    layer = Hopfield(8, ff.Tsallis(torch.tensor(1.5)), beta=nn.Parameter(torch.ones(2)), heads=2)
    other = copy.deepcopy(layer).double()
    other.omega.alpha.fill_(1.75)
    assert "1.75" in repr(other)
    assert "1.5" in repr(layer)
    assert not torch.allclose(other(_data(2, 5, 8).double()).float(), layer(_data(2, 5, 8)))
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(_data(2, 5, 8).double()).float(), layer(_data(2, 5, 8)))
