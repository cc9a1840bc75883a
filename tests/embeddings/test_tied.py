"""Tied logits of an anchor table: values, gradients and the gradient threshold."""

from functools import partial

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.embeddings.table.tied_logits import tied_scores
from tests.paths import on_path

# queries, anchors, rows, s, dtype of the slots
SIZES = [
    (128, 40, 256, 8, torch.uint8),
    (1, 300, 500, 3, torch.int16),
    (131, 17, 67, 1, torch.int32),
    (20, 256, 77, 5, torch.uint8),
    (300, 9, 130, 2, torch.uint8),
    (40, 300, 3001, 4, torch.int16),
]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def make(size: tuple, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    b, k, v, s, kind = size
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(b, k, dtype=dtype, generator=generator).requires_grad_()
    weights = torch.randn(v, s, dtype=dtype, generator=generator).requires_grad_()
    slots = torch.randint(k, (v, s), generator=generator).to(kind)
    slots[0] = k - 1
    return projected, weights, slots


def dense(projected: Tensor, weights: Tensor, slots: Tensor) -> Tensor:
    transform = weights.new_zeros(len(weights), projected.shape[1])
    return projected @ transform.scatter_add(1, slots.long(), weights).T


@every_size
@both_dtypes
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.5])
def test_scores_and_gradients_are_those_of_the_dense_table(size, dtype, sparse, threshold, path):
    parts = make(size, dtype)
    ours = tied_scores(*parts, threshold=threshold, sparse=sparse)
    expected = dense(*parts)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    close = {"atol": tolerance, "rtol": tolerance}
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, expected, **close)
    pull = torch.randn(ours.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    pull[:, ::5] = 0
    kept = torch.where(pull.abs() <= threshold, 0, pull)
    got = torch.autograd.grad(ours, parts[:2], pull)
    want = torch.autograd.grad(expected, parts[:2], kept)
    assert got[1].is_sparse == sparse
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.to_dense(), b, **close)
    if sparse:
        rows = got[1].coalesce().indices()[0]
        assert torch.equal(rows, kept.count_nonzero(0).nonzero().squeeze(1))


@pytest.mark.native
@both_dtypes
def test_the_threads_change_nothing(dtype):
    parts = [part.detach() for part in make(SIZES[-1], dtype)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(tied_scores(*parts, sparse=False))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_gradient_of_nothing(path):
    projected, weights, slots = make(SIZES[0])
    scores = tied_scores(projected, weights, slots, threshold=1.0, sparse=True)
    scores.backward(torch.full_like(scores, 0.5))
    assert weights.grad._nnz() == 0
    assert projected.grad.count_nonzero() == 0


def test_a_gradient_that_is_no_number_is_kept(path):
    projected, weights, slots = make(SIZES[3])
    scores = tied_scores(projected, weights, slots, threshold=1.0, sparse=False)
    pull = torch.zeros_like(scores)
    pull[4, 9] = torch.nan
    scores.backward(pull)
    assert weights.grad[9].isnan().all()
    assert not weights.grad[:9].isnan().any()
    assert projected.grad[4].isnan().any()
    assert not projected.grad[:4].isnan().any()


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_of_the_two_may_be_frozen(frozen, path):
    parts = make(SIZES[2])
    parts[frozen].requires_grad_(False)
    tied_scores(*parts, sparse=True).sum().backward()
    assert parts[frozen].grad is None
    assert parts[1 - frozen].grad is not None


@pytest.mark.native
def test_any_number_of_threads_gives_the_same_bits():
    parts = make((70, 30, 3000, 8, torch.uint8), torch.float32)
    pull = torch.randn(70, 3000, generator=torch.Generator().manual_seed(2))
    pull[:, 100:900] = 0
    answers = []
    with on_path("native"):
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            try:
                scores = tied_scores(*parts, threshold=1.0, sparse=True)
                projected, weights = torch.autograd.grad(scores, parts[:2], pull)
            finally:
                torch.set_num_threads(1)
            answers.append((scores.detach(), projected, weights._indices(), weights._values()))
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


def _scores(slots: Tensor, threshold: float, projected: Tensor, weights: Tensor) -> Tensor:
    return tied_scores(projected, weights, slots, threshold=threshold, sparse=False)


def test_plain_torch_has_second_derivatives_and_transforms():
    parts = make((3, 4, 5, 2, torch.uint8))
    with _native.disabled():
        for threshold in (0.0, 1e-9):
            call = partial(_scores, parts[2], threshold)
            assert torch.autograd.gradcheck(call, parts[:2])
            assert torch.autograd.gradgradcheck(call, parts[:2])

    def total(row: Tensor) -> Tensor:
        scores = tied_scores(row[None], parts[1].detach(), parts[2], threshold=0.5, sparse=False)
        return (scores * torch.arange(5)).sum()

    each = torch.func.vmap(torch.func.grad(total))(parts[0].detach())
    torch.testing.assert_close(each[0], torch.func.grad(total)(parts[0][0].detach()))


@pytest.mark.parametrize("path", [pytest.param("native", marks=pytest.mark.native), "torch"])
def test_a_slot_out_of_range_reads_nothing(path):
    projected, weights, slots = make(SIZES[1])
    slots[400, 1] = 300
    with on_path(path), pytest.raises(ValueError, match="slots must be between 0 and 299"):
        tied_scores(projected, weights, slots, sparse=True)


def test_a_threshold_below_zero_is_refused():
    with pytest.raises(ValueError, match="threshold must be at least 0, got -1"):
        tied_scores(*make(SIZES[2]), threshold=-1, sparse=True)
