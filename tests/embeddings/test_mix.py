"""Weighted sums of anchors: values, gradients and errors, by kernels and in plain torch."""

import itertools

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from tests.paths import on_path

# anchors, d, rows, s, dtype of the slots
SIZES = [
    (200, 128, 300, 8, torch.uint8),
    (256, 33, 50, 1, torch.uint8),
    (500, 50, 77, 3, torch.int16),
    (9, 7, 20, 5, torch.int32),
    (4, 1, 6, 2, torch.uint8),
]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


class Table:
    def __init__(self, size: tuple, dtype: torch.dtype = torch.float64) -> None:
        k, d, v, s, kind = size
        generator = torch.Generator().manual_seed(0)
        self.anchors = torch.randn(k, d, dtype=dtype, generator=generator).requires_grad_()
        self.weights = torch.randn(v, s, dtype=dtype, generator=generator).requires_grad_()
        self.slots = torch.randint(k, (v, s), generator=generator).to(kind)
        self.slots[0] = k - 1  # the largest there is: 255 is no -1
        self.ids = torch.randint(v, (40,), generator=generator)
        self.ids[:3] = 0

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.anchors, self.weights, self.slots

    def dense(self) -> Tensor:
        """The whole table, as the definition says."""
        transform = self.weights.new_zeros(len(self.weights), len(self.anchors))
        return transform.scatter_add(1, self.slots.long(), self.weights) @ self.anchors


def agree(ours: Tensor, expected: Tensor, tables: Table) -> None:
    """Values, and the gradients of both leaves."""
    tolerance = 1e-4 if ours.dtype == torch.float32 else 1e-11
    close = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(ours, expected, **close)
    pull = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    leaves = (tables.anchors, tables.weights)
    for got, want in zip(
        torch.autograd.grad(ours, leaves, pull), torch.autograd.grad(expected, leaves, pull),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got.to_dense(), want, **close)


@every_size
@both_dtypes
@pytest.mark.parametrize("sparse", [True, False])
def test_rows_are_those_of_the_dense_table(size, dtype, sparse, path):
    table = Table(size, dtype)
    agree(mixed(*table.parts, table.ids, sparse=sparse), table.dense()[table.ids], table)


@every_size
@both_dtypes
@pytest.mark.parametrize("sparse", [True, False])
def test_bags_are_sums_of_rows(size, dtype, sparse, path):
    table = Table(size, dtype)
    offsets = torch.tensor([0, 3, 3, 11, 40])  # the second is empty
    by = torch.tensor([2.0, 1.0, -0.5, 0.0], dtype=dtype)
    ours = mixed_bags(*table.parts, table.ids, offsets, by, sparse=sparse)
    rows = table.dense()[table.ids]
    bags = [rows[a:b].sum(0) for a, b in itertools.pairwise(offsets)]
    agree(ours, torch.stack(bags) * by[:, None], table)
    assert torch.equal(ours[1], torch.zeros_like(ours[1]))


def test_a_sparse_gradient_has_one_entry_per_id(path):
    table = Table(SIZES[0])
    mixed(*table.parts, table.ids, sparse=True).sum().backward()
    grad = table.weights.grad
    assert grad.is_sparse
    assert grad._nnz() == len(table.ids)
    assert torch.equal(grad._indices()[0], table.ids)
    assert not table.anchors.grad.is_sparse


@pytest.mark.parametrize("frozen", ["anchors", "weights"])
def test_one_of_the_two_may_be_frozen(frozen, path):
    table = Table(SIZES[2])
    getattr(table, frozen).requires_grad_(False)
    mixed(*table.parts, table.ids, sparse=True).sum().backward()
    learned = table.weights if frozen == "anchors" else table.anchors
    assert getattr(table, frozen).grad is None
    assert learned.grad is not None


@pytest.mark.parametrize("bad", [-1, 20, 2**62, -(2**62)])
def test_an_id_out_of_range_is_named(bad, path):
    table = Table(SIZES[3])
    ids = torch.tensor([3, bad, 0])
    with pytest.raises(IndexError, match=f"between 0 and 19, got {bad}"):
        mixed(*table.parts, ids, sparse=True)
    with pytest.raises(IndexError, match=f"between 0 and 19, got {bad}"):
        mixed_bags(*table.parts, ids, torch.tensor([0, 3]), torch.ones(1).double(), sparse=True)


@pytest.mark.native
@pytest.mark.parametrize("bad", [9, -1])
def test_a_slot_out_of_range_reads_nothing(bad):
    table = Table(SIZES[3])
    table.slots[7, 2] = bad
    with on_path("native"), pytest.raises(ValueError, match="slots must be between 0 and 8"):
        mixed(*table.parts, torch.tensor([7]), sparse=True)


def test_shapes_and_dtypes_are_checked():
    table = Table(SIZES[3])
    with pytest.raises(ValueError, match=r"both \(V, s\)"):
        mixed(table.anchors, table.weights, table.slots[:3], table.ids, sparse=True)
    with pytest.raises(TypeError, match=r"write slots\.int\(\)"):
        mixed(table.anchors, table.weights, table.slots.long(), table.ids, sparse=True)


def test_no_ids(path):
    table = Table(SIZES[0])
    none = torch.empty(0, dtype=torch.int64)
    rows = mixed(*table.parts, none, sparse=True)
    assert rows.shape == (0, 128)
    rows.sum().backward()
    assert table.anchors.grad.count_nonzero() == 0
    assert table.weights.grad._nnz() == 0


@pytest.mark.native
@pytest.mark.parametrize("d", [16, 40, 200])
def test_any_number_of_threads_gives_the_same_bits(d):
    table = Table((50, d, 400, 8, torch.uint8), torch.float32)
    ids = torch.randint(400, (3000,), generator=torch.Generator().manual_seed(2))
    pull = torch.randn(3000, d, generator=torch.Generator().manual_seed(3))
    answers = []
    with on_path("native"):
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            try:
                rows = mixed(*table.parts, ids, sparse=True)
                anchors, weights = torch.autograd.grad(rows, (table.anchors, table.weights), pull)
            finally:
                torch.set_num_threads(1)
            answers.append((rows.detach(), anchors, weights._values()))
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


@pytest.mark.native
def test_weights_may_change_before_the_backward_pass():
    """What the rows were mixed from is kept, so a step in between does no harm."""
    table = Table(SIZES[0])
    with on_path("native"):
        rows = mixed(*table.parts, table.ids, sparse=True)
        expected = torch.autograd.grad(rows.sum(), table.anchors, retain_graph=True)[0]
        with torch.no_grad():
            table.weights.zero_()
        assert torch.equal(torch.autograd.grad(rows.sum(), table.anchors)[0], expected)


def test_plain_torch_has_second_derivatives_and_transforms():
    table = Table((5, 3, 7, 2, torch.uint8))
    ids, by = table.ids[:6] % 7, torch.tensor([1.0, 2.0], dtype=torch.float64)
    leaves = (table.anchors, table.weights)
    with _native.disabled():
        rows = lambda a, w: mixed(a, w, table.slots, ids, sparse=False)  # noqa: E731
        bags = lambda a, w: mixed_bags(  # noqa: E731
            a, w, table.slots, ids, torch.tensor([0, 2, 6]), by, sparse=False
        )
        for call in (rows, bags):
            assert torch.autograd.gradcheck(call, leaves)
            assert torch.autograd.gradgradcheck(call, leaves)
    many = torch.stack([table.anchors, 2 * table.anchors]).detach()
    each = torch.func.vmap(lambda a: rows(a, table.weights.detach()))(many)
    torch.testing.assert_close(each[1], 2 * each[0])


def test_half_precision(path):
    table = Table(SIZES[1], torch.float32)
    half = (table.anchors.bfloat16(), table.weights.bfloat16(), table.slots)
    rows = mixed(*half, table.ids, sparse=False)
    assert rows.dtype == torch.bfloat16
    torch.testing.assert_close(rows.float(), table.dense()[table.ids], atol=0.1, rtol=0.02)


def test_bags_learn_what_multiplies_them(path):
    table = Table(SIZES[3])
    by = torch.ones(2, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 10, 40])
    mixed_bags(*table.parts, table.ids, offsets, by, sparse=True).sum().backward()
    assert by.grad is not None
    assert by.grad.count_nonzero() == 2


@pytest.mark.parametrize("name", ["anchors", "weights", "slots"])
def test_tensors_that_are_not_contiguous_are_read_right(name, path):
    """The kernels read memory as it lies, so these must not reach them."""
    generator = torch.Generator().manual_seed(0)
    given = {
        "anchors": torch.randn(7, 5, generator=generator),
        "weights": torch.rand(9, 3, generator=generator),
        "slots": torch.randint(0, 7, (9, 3), generator=generator, dtype=torch.int32),
    }
    ids = torch.tensor([4, 0, 8, 4])
    expected = mixed(*given.values(), ids, sparse=False)
    given[name] = given[name].T.contiguous().T
    assert not given[name].is_contiguous()
    torch.testing.assert_close(mixed(*given.values(), ids, sparse=False), expected)
