"""`AnchorEmbedding` against the `nn.Embedding` of its materialised table."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from fewfold import _native

STORAGES = [
    pytest.param({"anchors": 8}, id="full"),
    pytest.param({"anchors": 8, "width": 3}, id="width 3"),
    pytest.param({"anchors": 8, "signed": True}, id="full signed"),
    pytest.param({"anchors": 300, "width": 4, "signed": True}, id="width 4 of 300, signed"),
]
ROWS, DIM = 50, 6


def make(options: dict[str, Any], **more: Any) -> ff.AnchorEmbedding:
    generator = torch.Generator().manual_seed(3)
    return ff.AnchorEmbedding(
        ROWS, DIM, generator=generator, dtype=torch.float64, **options, **more
    )


def some_ids(*shape: int) -> Tensor:
    return torch.randint(0, ROWS, shape, generator=torch.Generator().manual_seed(0))


def transform(table: ff.AnchorEmbedding) -> Tensor:
    """T in full."""
    offsets, slots, values = table.rows()
    full = values.new_zeros(ROWS, len(table.anchors))
    full[torch.repeat_interleave(offsets.diff()), slots] = values
    return full


@pytest.fixture(params=STORAGES)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (0,), (2, 0, 3)])
def test_looks_up_rows_of_the_table(
    options: dict[str, Any], shape: tuple[int, ...], path: str
) -> None:
    table = make(options)
    ids = some_ids(*shape)
    torch.testing.assert_close(table(ids), (transform(table) @ table.anchors)[ids])
    torch.testing.assert_close(table.weight, transform(table) @ table.anchors)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_are_those_of_the_dense_table(
    options: dict[str, Any], sparse: bool, path: str
) -> None:
    table = make(options, sparse=sparse)
    ids, by = some_ids(4, 5), torch.randn(4, 5, DIM, dtype=torch.float64)
    (table(ids) * by).sum().backward()
    full = transform(table).requires_grad_()
    anchors = table.anchors.detach().clone().requires_grad_()
    (F.embedding(ids, full @ anchors) * by).sum().backward()
    torch.testing.assert_close(table.anchors.grad, anchors.grad)
    grad = table.transform.grad
    assert grad is not None
    assert full.grad is not None
    assert grad.is_sparse == sparse
    expected = full.grad if table.slots is None else full.grad.gather(1, table.slots.long())
    torch.testing.assert_close(grad.to_dense(), expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 4])
def test_bags(options: dict[str, Any], mode: Any, padding: int | None, path: str) -> None:
    table = make(options, padding_idx=padding)
    ids, offsets = some_ids(12) % 7, torch.tensor([0, 5, 5, 9])
    for arguments in ((ids, offsets), (ids.view(3, 4), None)):
        found = table.bag(arguments[0], arguments[1], mode=mode)
        expected = F.embedding_bag(
            arguments[0], table.weight, arguments[1], mode=mode, padding_idx=padding
        )
        torch.testing.assert_close(found, expected)
    if mode == "sum":
        weights = torch.rand(12, dtype=torch.float64)
        torch.testing.assert_close(
            table.bag(ids, offsets, weights),
            F.embedding_bag(
                ids, table.weight, offsets, mode="sum", per_sample_weights=weights,
                padding_idx=padding,
            ),
        )  # fmt: skip
    bags = ff.AnchorEmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding, **options)
    dense = nn.EmbeddingBag.from_pretrained(bags.weight.detach(), mode=mode, padding_idx=padding)
    torch.testing.assert_close(bags(ids, offsets), dense(ids, offsets))


def test_bag_gradients(options: dict[str, Any], path: str) -> None:
    ids, offsets = some_ids(12), torch.tensor([0, 5, 5, 9])
    fast, slow = make(options), make(options)
    fast.bag(ids, offsets, mode="mean").square().sum().backward()
    F.embedding_bag(ids, slow.weight, offsets, mode="mean").square().sum().backward()
    torch.testing.assert_close(fast.anchors.grad, slow.anchors.grad)
    torch.testing.assert_close(fast.transform.grad, slow.transform.grad)


def test_padding_starts_at_zero_and_stays(options: dict[str, Any]) -> None:
    table = make(options, padding_idx=-1)
    assert table.padding_idx == ROWS - 1
    assert table(torch.tensor([ROWS - 1])).abs().sum() == 0
    (table(torch.tensor([ROWS - 1, 0])) + 1).square().sum().backward()
    assert table.transform.grad is not None
    assert table.transform.grad[ROWS - 1].abs().sum() == 0
    assert table.transform.grad[0].abs().sum() > 0


def test_max_norm_scales_rows_in_place(options: dict[str, Any]) -> None:
    table, dense = make(options), nn.Embedding(ROWS, DIM, max_norm=0.7, dtype=torch.float64)
    dense.weight.data.copy_(table.weight.detach())
    before = table.weight.detach().clone()
    table.max_norm = 0.7
    ids = torch.tensor([1, 2, 2, 3])
    torch.testing.assert_close(table(ids), dense(ids))
    torch.testing.assert_close(table.weight.detach(), dense.weight.detach())
    torch.testing.assert_close(table.weight[4:].detach(), before[4:])


def test_gradients_scaled_by_frequency(options: dict[str, Any]) -> None:
    ids = torch.tensor([1, 2, 2, 2])
    by = torch.randn(4, DIM, dtype=torch.float64)
    scaled, plain = make(options, scale_grad_by_freq=True), make(options)
    (scaled(ids) * by).sum().backward()
    (plain(ids) * by / torch.tensor([[1.0], [3.0], [3.0], [3.0]])).sum().backward()
    torch.testing.assert_close(scaled.transform.grad, plain.transform.grad)
    torch.testing.assert_close(scaled(ids), plain(ids), rtol=0, atol=0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.02])
def test_logits(options: dict[str, Any], sparse: bool, threshold: float, path: str) -> None:
    table = make(options, sparse=sparse)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 3, DIM, dtype=torch.float64, generator=generator)
    bias = torch.randn(ROWS, dtype=torch.float64, generator=generator)
    scores = table.logits(hidden, bias, threshold)
    torch.testing.assert_close(scores, hidden @ table.weight.T + bias)
    target = some_ids(6)
    F.cross_entropy(scores.flatten(0, 1), target).backward()
    # The same, with small gradients of the scores set to zero by hand.
    full, anchors = transform(table), table.anchors.detach()
    projected = (hidden.flatten(0, 1) @ anchors.T).requires_grad_()
    grad = ((projected @ full.T + bias).softmax(1) - F.one_hot(target, ROWS)).detach() / 6
    grad = torch.where(grad.abs() > threshold, grad, 0)
    expected = grad.T @ projected.detach()
    if table.slots is not None:
        expected = expected.gather(1, table.slots.long())
    found = table.transform.grad
    assert found is not None
    assert found.is_sparse == sparse
    torch.testing.assert_close(found.to_dense(), expected)
    if threshold and sparse:
        assert len(found._indices()[0]) == int((grad != 0).any(0).sum()) < ROWS


def test_state_dict_round_trip_and_copies(options: dict[str, Any]) -> None:
    table, other = make(options), make(options)
    other.reset_parameters(torch.Generator().manual_seed(9))
    assert not torch.equal(table.weight, other.weight)
    other.load_state_dict(table.state_dict())
    assert torch.equal(table.weight, other.weight)
    assert torch.equal(copy.deepcopy(table).weight, table.weight)


def test_anchors_in_use_travel_with_the_state() -> None:
    table, other = make({"anchors": 8}), make({"anchors": 8})
    table.active = 5
    torch.testing.assert_close(table.weight, table.transform[:, :5] @ table.anchors[:5])
    torch.testing.assert_close(table.logits(torch.eye(DIM).double()), table.weight.T)
    other.load_state_dict(table.state_dict())
    assert other.active == 5
    assert table.size() == 5 * DIM + int((table.transform[:, :5] != 0).sum())
    with pytest.raises(ValueError, match="at most anchors=8, got 9"):
        table.active = 9
    with pytest.raises(ValueError, match="at least 1, got 0"):
        table.active = 0
    with pytest.raises(ValueError, match="fixed width uses all"):
        make({"anchors": 8, "width": 2}).active = 4


def test_narrow_keeps_the_largest(options: dict[str, Any]) -> None:
    table = make(options)
    full, before = transform(table), table.weight.detach().clone()
    torch.testing.assert_close(copy.deepcopy(table).narrow().weight.detach(), before)
    best = full.abs().topk(2, 1).indices
    expected = torch.zeros_like(full).scatter(1, best, full.gather(1, best))
    assert table.narrow(2).width == 2
    torch.testing.assert_close(transform(table), expected)


def test_the_smallest_integers_that_do() -> None:
    kinds = {256: torch.uint8, 257: torch.int16, 32_768: torch.int16, 32_769: torch.int32}
    for anchors, kind in kinds.items():
        table = ff.AnchorEmbedding(20, 2, anchors=anchors, width=4)
        assert table.slots is not None
        assert table.slots.dtype == kind
        slots = table.slots.long()
        assert slots.min() >= 0
        assert slots.max() < anchors
        assert (slots.sort(1).values.diff(dim=1) > 0).all()


def test_from_pretrained_finds_what_is_there(options: dict[str, Any]) -> None:
    original = ff.AnchorEmbedding(
        400, 16, anchors=10, width=2, signed=True, generator=torch.Generator().manual_seed(5)
    ).weight.detach()
    table = ff.AnchorEmbedding.from_pretrained(
        original, anchors=10, width=2, signed=True, generator=torch.Generator().manual_seed(0)
    )
    assert not table.anchors.requires_grad
    assert not table.transform.requires_grad
    off = (table.weight - original).norm() / original.norm()
    assert off < 0.35


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"anchors": 0}, "anchors must be at least 1, got 0"),
        ({"anchors": 4, "width": 5}, "width must be at most anchors=4, got 5"),
        ({"anchors": 4, "width": 0}, "width must be at least 1"),
        ({"anchors": 4, "padding_idx": 50}, "padding_idx must be between -50 and 49, got 50"),
    ],
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ff.AnchorEmbedding(ROWS, DIM, **arguments)


@pytest.mark.parametrize("bad", [-1, ROWS])
def test_ids_out_of_range(options: dict[str, Any], bad: int, path: str) -> None:
    with pytest.raises(IndexError):
        make(options)(torch.tensor([0, bad]))


def test_the_same_seed_gives_the_same_table(options: dict[str, Any]) -> None:
    assert torch.equal(make(options).weight, make(options).weight)


def test_gradcheck(options: dict[str, Any]) -> None:
    table = make(options)
    ids = some_ids(3)

    def lookup(anchors: Tensor, values: Tensor) -> Any:
        return torch.func.functional_call(table, {"anchors": anchors, "transform": values}, ids)

    torch.autograd.gradcheck(lookup, (table.anchors, table.transform))
    with _native.disabled():
        torch.autograd.gradgradcheck(lookup, (table.anchors, table.transform))


def test_only_whole_numbers_are_ids(options: dict[str, Any]) -> None:
    for bad in (torch.tensor([1.9]), torch.tensor([True])):
        with pytest.raises(TypeError, match="ids must be whole numbers"):
            make(options)(bad)
    assert make(options)(torch.tensor([1], dtype=torch.int32)).shape == (1, DIM)


@pytest.mark.parametrize("threshold", [0.0, 1e-6])
def test_what_is_no_number_shows(options: dict[str, Any], threshold: float, path: str) -> None:
    table = make(options)
    hidden = torch.ones(2, DIM, dtype=torch.float64)
    (table.logits(hidden, threshold=threshold).sum() * torch.nan).backward()
    assert table.transform.grad is not None
    assert table.transform.grad.isnan().any()


def test_bags_from_a_pretrained_table() -> None:
    bags = ff.AnchorEmbeddingBag.from_pretrained(torch.randn(30, 4), anchors=8, width=2)
    assert bags(torch.tensor([1, 2, 3]), torch.tensor([0, 1])).shape == (2, 4)


def test_says_how_many_anchors_a_state_has() -> None:
    ten, five = (ff.AnchorEmbedding(20, 4, anchors=k) for k in (10, 5))
    before = five.anchors.detach().clone()
    with pytest.raises(RuntimeError, match="make it with anchors=10, embedding_dim=4"):
        five.load_state_dict(ten.state_dict())
    with pytest.raises(RuntimeError, match=r"0\.anchors are 5 of length 4, the table has 10"):
        torch.nn.Sequential(ten).load_state_dict(torch.nn.Sequential(five).state_dict())
    with pytest.raises(RuntimeError, match=r"anchors are a tensor of shape \(5,\)"):
        five.load_state_dict({**five.state_dict(), "anchors": torch.zeros(5)})
    assert torch.equal(five.anchors, before)
    assert five.active == 5


def test_a_bag_is_saved_as_its_table(tmp_path: Path) -> None:
    bags = ff.AnchorEmbeddingBag(20, 4, anchors=5, width=2, mode="mean")
    ff.embeddings.save_anchors(bags, tmp_path / "bags.safetensors")
    table = ff.embeddings.load_anchors(tmp_path / "bags.safetensors")
    assert type(table) is ff.AnchorEmbedding
    ids, offsets = torch.tensor([3, 4, 4, 9]), torch.tensor([0, 3])
    torch.testing.assert_close(table.bag(ids, offsets, mode="mean"), bags(ids, offsets))
