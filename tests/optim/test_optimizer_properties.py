"""Properties of every row optimizer: equality with the dense one, saving, dtypes and layouts."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.optim.cases import (
    TOLERANCE,
    Case,
    close,
    every_optimizer,
    leaf,
    normal,
    sparse,
    train,
)
from tests.paths import on_path

F32, F64 = torch.float32, torch.float64
# Widths below, at and above a vector, and of more than one block; sparse gradients or dense ones.
LAYOUTS = [
    ((9,), F32, "dense"),
    ((7, 3), F64, "sparse"),
    ((5, 16), F32, "sparse"),
    ((4, 3, 11), F64, "dense"),
    ((3, 530), F32, "dense"),
    ((3, 530), F64, "sparse"),
]


@every_optimizer
@pytest.mark.parametrize(("shape", "dtype", "kind"), LAYOUTS, ids=str)
def test_where_every_row_is_touched_it_is_the_dense_optimiser(
    case: Case, shape: tuple[int, ...], dtype: torch.dtype, kind: str, path: str
) -> None:
    ours, theirs = leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype)
    optimizer, peer = case.make(ours), case.peer(theirs)
    for t in range(12):
        values = normal(*shape, seed=t, dtype=dtype)
        order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(t))
        ours.grad = sparse(order, values[order], shape) if kind == "sparse" else values
        theirs.grad = values
        optimizer.step()
        peer.step()
    close(ours, theirs, TOLERANCE[dtype])


@every_optimizer
@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("name", [pytest.param("native", marks=pytest.mark.native), "torch"])
def test_each_row_has_an_optimiser_of_its_own(case: Case, name: str, data: st.DataObject) -> None:
    """A row goes where the dense optimiser takes it, called when the row is used and only then."""
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 3, 8, 17, 40]))
    batches = data.draw(
        st.lists(st.lists(st.integers(0, rows - 1), max_size=9), min_size=1, max_size=6)
    )
    ours = leaf(rows, width)
    alone = [row.clone().requires_grad_() for row in ours.detach().split(1)]
    peers = [case.peer(row) for row in alone]
    with on_path(name):
        optimizer = case.make(ours)
        for t, batch in enumerate(batches):
            values = normal(len(batch), width, seed=t)
            ours.grad = sparse(batch, values, (rows, width))
            optimizer.step()
            for row in set(batch):
                own = [value for at, value in zip(batch, values, strict=True) if at == row]
                alone[row].grad = torch.stack(own).sum(0, keepdim=True)
                peers[row].step()
    close(ours, torch.cat(alone), 1e-11)


@every_optimizer
def test_other_rows_keep_every_bit_of_weights_and_state(case: Case, path: str) -> None:
    weight = leaf(50, 5)
    optimizer = case.make(weight)
    train(optimizer, weight, 3)
    before = [weight.detach().clone(), *(t.clone() for t in optimizer.state[weight].values())]
    weight.grad = sparse([4, 9, 4], normal(3, 5), (50, 5))
    optimizer.step()
    others = [row for row in range(50) if row not in (4, 9)]
    for old, new in zip(before, [weight, *optimizer.state[weight].values()], strict=True):
        assert torch.equal(old[others], new[others])
        assert not torch.equal(old[[4, 9]], new[[4, 9]])


@every_optimizer
def test_both_paths_agree(case: Case) -> None:
    ends = []
    for name in ("native", "torch"):
        with on_path(name):
            weight = leaf(300, 19, dtype=torch.float32)
            train(case.make(weight), weight, 8, count=700)
            ends.append(weight.detach())
    close(ends[0], ends[1], 2e-5)


@every_optimizer
def test_a_saved_run_continues_as_if_it_had_not_stopped(case: Case, path: str) -> None:
    straight = leaf(20, 6, dtype=torch.float32)
    optimizer = case.make(straight)
    train(optimizer, straight, 5)
    file = io.BytesIO()
    torch.save({"weight": straight.detach(), "optimizer": optimizer.state_dict()}, file)
    train(optimizer, straight, 5, first=5)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = saved["weight"].requires_grad_()
    other = case.ours([again], lr=1.0)
    other.load_state_dict(saved["optimizer"])
    train(other, again, 5, first=5)
    assert torch.equal(again, straight)
    train(copy.deepcopy(other), again, 1)  # an optimiser may be copied, with parameters of its own
    assert torch.equal(again, straight)


@every_optimizer
def test_a_gradient_of_no_rows_moves_nothing(case: Case, path: str) -> None:
    weight = leaf(6, 3)
    optimizer = case.make(weight)
    train(optimizer, weight, 2)
    before = weight.detach().clone()
    weight.grad = sparse([], torch.zeros(0, 3, dtype=torch.float64), (6, 3))
    optimizer.step()
    optimizer.zero_grad()
    assert weight.grad is None
    optimizer.step()
    assert torch.equal(weight, before)
    empty = leaf(0, 3)
    empty.grad = torch.zeros_like(empty)
    case.make(empty).step()


@every_optimizer
def test_values_may_lie_anyhow_in_memory(case: Case, path: str) -> None:
    straight, odd = leaf(8, 6), leaf(8, 6)
    rows = torch.tensor([1, 5, 1])
    values = normal(3, 6)
    every_other = torch.stack([rows, rows + 1], 1).flatten()[::2]
    for weight, index, grad in (
        (straight, rows, values),
        (odd, every_other, values.t().contiguous().t()),
    ):
        weight.grad = sparse(index, grad, (8, 6))
        case.make(weight).step()
    assert torch.equal(straight, odd)
    spread = leaf(8, 1)
    spread.grad = sparse([2, 3], torch.ones(1, 1, dtype=torch.float64).expand(2, 1), (8, 1))
    case.make(spread).step()
    assert (spread[[2, 3]] != leaf(8, 1)[[2, 3]]).all()


@every_optimizer
def test_weights_may_lie_anyhow_in_memory(case: Case, path: str) -> None:
    straight = leaf(8, 6)
    odd = straight.detach().t().contiguous().t().requires_grad_()
    assert not odd.is_contiguous()
    for weight in (straight, odd):
        train(case.make(weight), weight, 4)
    close(odd, straight, 1e-12)


@every_optimizer
def test_a_number_is_one_row(case: Case, path: str) -> None:
    ours, theirs = leaf(), leaf()
    for weight, optimizer in ((ours, case.make(ours)), (theirs, case.peer(theirs))):
        for t in range(3):
            weight.grad = normal(seed=t)
            optimizer.step()
    close(ours, theirs, 1e-12)


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_follows_single(case: Case, dtype: torch.dtype, path: str) -> None:
    half = leaf(10, 4).detach().to(dtype).requires_grad_()
    single = half.detach().float().requires_grad_()
    for weight in (half, single):
        optimizer = case.make(weight)
        for t in range(3):
            values = normal(6, 4, seed=t).to(dtype).to(weight.dtype)
            weight.grad = sparse([1, 4, 4, 7, 9, 0], values, (10, 4))
            optimizer.step()
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), single, atol=0.03, rtol=0.03)


@every_optimizer
@pytest.mark.native
def test_the_number_of_threads_changes_no_bit(case: Case) -> None:
    before = torch.get_num_threads()
    ends: list[list[Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with on_path("native"):
                weight = leaf(500, 32, dtype=torch.float32)
                optimizer = case.make(weight)
                train(optimizer, weight, 3, count=9000)
                weight.grad = normal(500, 32, dtype=torch.float32)
                optimizer.step()
                # nearly all of the gradient belongs to one row
                skew = torch.zeros(9000, dtype=torch.int64)
                skew[::1000] = torch.arange(9)
                weight.grad = sparse(skew, normal(9000, 32, dtype=torch.float32), (500, 32))
                optimizer.step()
                ends.append([weight.detach(), *optimizer.state[weight].values()])
    finally:
        torch.set_num_threads(before)
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


@every_optimizer
def test_a_gradient_that_is_no_number_shows(case: Case, path: str) -> None:
    weight = leaf(5, 3)
    values = normal(2, 3)
    values[1, 2] = torch.nan
    weight.grad = sparse([0, 3], values, (5, 3))
    optimizer = case.make(weight)
    optimizer.step()
    bad = torch.zeros(5, 3, dtype=torch.bool)
    bad[3, 2] = True
    if case.options.get("by_row"):
        bad[3] = True  # its step size is that of the whole row
    assert torch.equal(weight.isnan(), bad)
