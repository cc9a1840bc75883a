"""The largest sums of two sets of scores, and the memory whose keys are pairs."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import fewfold as ff
from fewfold.attention import KeyHeads, product_topk

DIM = 8


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sums(first: Tensor, second: Tensor) -> Tensor:
    return (first.unsqueeze(-1) + second.unsqueeze(-2)).flatten(-2)


@pytest.mark.parametrize("kind", ["normal", "tied", "masked"])
@pytest.mark.parametrize(
    ("n", "m", "k"), [(7, 7, 1), (7, 7, 6), (7, 7, 12), (5, 9, 45), (1, 20, 8), (30, 3, 40)]
)
def test_the_largest_of_all_sums(n, m, k, kind) -> None:
    first, second = (torch.randn(11, size, generator=_seeded(size)) for size in (n, m))
    if kind == "tied":
        first, second = first.round(), second.round()
    if kind == "masked":
        first[:, : n // 2] = -math.inf
    found, every = product_topk(first, second, k), _sums(first, second)
    assert torch.equal(found.scores, every.topk(k)[0])
    assert torch.equal(found.scores, every.gather(-1, found.slots))
    assert all(len(row.unique()) == k for row in found.slots)


def test_gradients_of_the_largest_sums() -> None:
    first, second = (
        torch.randn(2, 6, generator=_seeded(i), dtype=torch.float64, requires_grad=True)
        for i in (0, 1)
    )
    assert gradcheck(lambda a, b: product_topk(a, b, 7).scores, (first, second))


def test_errors_of_product_topk() -> None:
    with pytest.raises(ValueError, match=r"k must be at most the number of sums, 2 \* 3 = 6"):
        product_topk(torch.zeros(2), torch.zeros(3), 7)
    with pytest.raises(ValueError, match="with the same leading dimensions"):
        product_topk(torch.zeros(4, 2), torch.zeros(3), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        product_topk(torch.zeros(2), torch.zeros(3), 0)


def _memory(omega=None, sharp: float = 1.0, **options) -> ff.ProductKeyMemory:
    """A memory of 81 slots in double precision; `sharp` multiplies its scores."""
    options = {"k": 5, "heads": 2, "generator": _seeded(), "dtype": torch.float64, **options}
    memory = ff.ProductKeyMemory(DIM, 81, ff.Tsallis(1.5) if omega is None else omega, **options)
    with torch.no_grad():
        memory.keys.mul_(sharp)
    return memory


def _vectors(*shape: int, **options) -> Tensor:
    return torch.randn(*shape, DIM, generator=_seeded(3), dtype=torch.float64, **options)


def _dense(memory: ff.ProductKeyMemory, vectors: Tensor) -> Tensor:
    """The output from the scores of all slots, the k largest of which are kept."""
    scores = memory.scores(vectors)
    top, slots = scores.topk(memory.k)
    probs = memory.omega.value.for_size(memory.k).argmax(top)
    return torch.zeros_like(scores).scatter(-1, slots, probs).sum(-2) @ memory.values.weight


OMEGAS = {
    "entmax": ff.Tsallis(1.5),
    "sparsemax": ff.Gini(),
    "normmax": ff.Norm(2.0),
    "2-subset": ff.Subset(2),
    "softmax": ff.Shannon(),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", OMEGAS)
def test_output_and_gradients_of_a_dense_reference(name, normalize) -> None:
    memory = _memory(OMEGAS[name], sharp=2.0, heads=KeyHeads(2, 6, normalize))
    vectors = _vectors(4, 3, requires_grad=True)
    found, want = memory(vectors), _dense(memory, vectors)
    torch.testing.assert_close(found, want)
    weight = _vectors(4, 3)
    inputs = [vectors, *memory.parameters()]
    got = torch.autograd.grad(found, inputs, weight)
    for one, other in zip(got, torch.autograd.grad(want, inputs, weight), strict=True):
        assert one.is_sparse == (one.shape == memory.values.weight.shape)
        torch.testing.assert_close(one.to_dense() if one.is_sparse else one, other)


def test_a_learned_alpha_gets_its_gradient() -> None:
    memory = _memory(ff.Tsallis(torch.nn.Parameter(torch.full((2, 1), 1.5).double())))
    vectors = _vectors(6)
    inputs = list(memory.omega.parameters())
    (got,) = torch.autograd.grad(memory(vectors).square().sum(), inputs)
    (want,) = torch.autograd.grad(_dense(memory, vectors).square().sum(), inputs)
    assert bool(got.all())
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", OMEGAS)
def test_certified_rows_equal_the_map_over_all_slots_and_others_do_not(name) -> None:
    omega = OMEGAS[name]
    memory = _memory(omega, sharp=2.5, heads=4)
    vectors = _vectors(300)
    found = memory.lookup(vectors)
    every = omega.argmax(memory.scores(vectors))
    ours = torch.zeros_like(every).scatter(-1, found.slots, found.weights)
    same = (ours - every).abs().amax(-1) < 1e-9
    assert torch.equal(found.certified, same)
    assert bool((ours > 0)[same].eq(every[same] > 0).all())  # the same support
    share = found.certified.double().mean()
    assert (share == 0) if name == "softmax" else 0.05 < share < 0.999
    assert bool(_memory(omega, k=81).lookup(vectors).certified.all())


def test_a_lookup_has_the_weights_of_the_output() -> None:
    memory, vectors = _memory(), _vectors(2, 3)
    found = memory.lookup(vectors)
    assert found.weights.shape == found.slots.shape == (2, 3, 2, 5)
    assert found.certified.shape == (2, 3, 2)
    read = (found.weights.unsqueeze(-1) * memory.values.weight[found.slots]).sum((-3, -2))
    torch.testing.assert_close(read, memory(vectors))


def test_rows_that_are_read_are_trained_and_no_others() -> None:
    memory, vectors, target = _memory(sharp=2.0), _vectors(6), _vectors(6).flip(0)
    before = memory.values.weight.detach().clone()
    rows = ff.optim.Adam(memory.values.parameters(), lr=0.05)
    rest = [one for name, one in memory.named_parameters() if not name.startswith("values")]
    dense, losses, read = torch.optim.Adam(rest, lr=0.01), [], torch.zeros(81, dtype=torch.bool)
    for _ in range(30):
        found = memory.lookup(vectors)
        read[found.slots[found.weights > 0]] = True
        loss = (memory(vectors) - target).square().mean()
        losses.append(loss.item())
        for optimizer in (rows, dense):
            optimizer.zero_grad()
        loss.backward()
        assert set(memory.values.weight.grad._indices()[0].tolist()) == set(
            found.slots[found.weights > 0].tolist()
        )
        for optimizer in (rows, dense):
            optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    moved = (memory.values.weight.detach() != before).any(1)
    assert torch.equal(moved, read)
    assert 2 < int(read.sum()) < 70


def test_supports_at_the_start_hardly_depend_on_the_number_of_slots() -> None:
    sizes = []
    for side in (32, 256):
        memory = ff.ProductKeyMemory(64, side**2, k=64, heads=2, generator=_seeded())
        found = memory.lookup(torch.randn(100, 64, generator=_seeded(1)))
        sizes.append(float((found.weights > 0).sum(-1).float().mean()))
    assert 4 < sizes[0] < 32
    assert abs(sizes[1] / sizes[0] - 1) < 0.4


@pytest.mark.parametrize("sparse", [True, False])
def test_second_derivatives(sparse) -> None:
    """Of the vectors and of the values, whose rows have gradients that depend on the vectors."""
    memory = _memory(sharp=2.0)
    memory.values.sparse = sparse
    vectors, other = _vectors(3, requires_grad=True), _vectors(3).flip(0)
    seconds = []
    for output in (memory(vectors), _dense(memory, vectors)):
        loss = (output * other).square().sum()
        inputs = (vectors, memory.values.weight)
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        rows = first[1].to_dense() if first[1].is_sparse else first[1]
        assert first[1].is_sparse == (sparse and not seconds)
        total = (first[0] * other).sum() + rows.square().sum()
        parameters = [vectors, memory.keys, memory.values.weight]
        seconds.append([one.to_dense() for one in torch.autograd.grad(total, parameters)])
    for found, want in zip(*seconds, strict=True):
        torch.testing.assert_close(found, want)


def test_a_graph_that_is_kept_can_be_used_again() -> None:
    memory, vectors = _memory(), _vectors(3, requires_grad=True)
    output = memory(vectors)
    first, again = (
        torch.autograd.grad(output, vectors, one, retain_graph=True, is_grads_batched=batched)[0]
        for one, batched in ((_vectors(3), False), (_vectors(3).unsqueeze(0), True))
    )
    torch.testing.assert_close(again.squeeze(0), first)


def test_seeds_states_and_dense_gradients() -> None:
    one, other = _memory(), _memory()
    vectors = _vectors(3)
    assert torch.equal(one(vectors), other(vectors))
    other.reset_parameters(_seeded(9))
    assert not torch.equal(one(vectors), other(vectors))
    other.load_state_dict(one.state_dict())
    other.values.sparse = False
    assert torch.equal(one(vectors), other(vectors))
    grads = [
        torch.autograd.grad(memory(vectors).sum(), memory.values.weight)[0]
        for memory in (one, other)
    ]
    assert [grad.is_sparse for grad in grads] == [True, False]
    torch.testing.assert_close(grads[0].to_dense(), grads[1])


def test_transforms_devices_and_dtypes() -> None:
    memory, vectors = _memory(), _vectors(4)
    want = memory(vectors)
    torch.testing.assert_close(torch.func.vmap(memory)(vectors), want)
    torch.testing.assert_close(
        torch.func.grad(lambda x: memory(x).sum())(vectors),
        torch.autograd.grad(memory(one := vectors.clone().requires_grad_()).sum(), one)[0],
    )
    compiled = torch.compile(memory, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(vectors), want)
    for dtype in (torch.float16, torch.bfloat16):
        low = _memory(dtype=dtype)
        found = low(vectors.to(dtype))
        assert found.dtype == dtype
        found.float().sum().backward()
        assert bool(low.keys.grad.isfinite().all())
    assert memory(_vectors(0, 3)).shape == (0, 3, DIM)
    meta = _memory(device="meta", generator=None)
    assert meta(vectors.to("meta")).is_meta


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ff.ProductKeyMemory(8, 80), r"slots must be the square .* 80; write 8\*\*2 or 9"),
        (lambda: ff.ProductKeyMemory(8, 9, k=10), "k must be at most slots=9, got 10"),
        (lambda: ff.ProductKeyMemory(8, 81, heads=3), r"write\s+KeyHeads\(3, size="),
        (lambda: KeyHeads(2, 5), "size must be even"),
        (lambda: _memory()(torch.zeros(3, 7)), r"vectors must be \(..., 8\), got \(3, 7\)"),
        (
            lambda: _memory(ff.SparseMAP(ff.structures.Assignment())),
            "omega must map the scores of one query",
        ),
    ],
)
def test_errors_say_what_to_write(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_types_are_checked() -> None:
    with pytest.raises(TypeError, match="must be a floating-point tensor, got torch"):
        _memory()(torch.zeros(3, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match="omega must be a regulariser such as"):
        ff.ProductKeyMemory(8, 81, ff.Gini)
