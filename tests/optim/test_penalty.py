"""L1 penalties: step sizes, immediate and deferred shrinkage, by kernels and in plain torch."""

import copy
import io

import pytest
import torch
from torch import Tensor

from fewfold.optim import SGD, Adam
from fewfold.optim.l1_penalty import Penalty
from tests.optim.cases import Case, both_dtypes, close, every_optimizer, leaf, normal, sparse, train
from tests.paths import on_path

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F32: 2e-6, F64: 1e-12}


def shrunk(weight: Tensor, by: Tensor, signed: bool) -> Tensor:
    if signed:
        return weight.sign() * (weight.abs() - by).clamp(min=0)
    return (weight - by).clamp(min=0)


@every_optimizer
@pytest.mark.parametrize(
    ("shape", "dtype", "signed"),
    [
        ((9,), F64, True),
        ((12, 17), F32, False),
        ((12, 17), F64, True),
        ((4, 3, 11), F32, True),
        ((4, 3, 11), F64, False),
    ],
    ids=str,
)
def test_a_penalised_step_is_a_step_and_then_a_shrinking(case: Case, shape, dtype, signed, path):
    ours, theirs = leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype)
    optimizer, peer = case.make(ours), case.make(theirs)
    optimizer.penalties[ours] = Penalty(l1=0.02, signed=signed)
    for t in range(5):
        rows = torch.randint(shape[0], (4,), generator=torch.Generator().manual_seed(t))
        ours.grad = theirs.grad = sparse(rows, normal(4, *shape[1:], seed=t, dtype=dtype), shape)
        optimizer.step()
        peer.step()
        rows = rows.unique()
        with torch.no_grad():
            off = 0.02 * peer.rates(theirs, rows)
            theirs[rows] = shrunk(theirs[rows], off, signed)
    close(ours, theirs, TOLERANCE[dtype])
    touched = ours.detach()[rows]
    assert signed or (touched >= 0).all()


@every_optimizer
@pytest.mark.parametrize(
    ("dtype", "signed", "every"),
    [(F32, True, True), (F64, False, True), (F64, True, False), (F32, False, False)],
    ids=[
        "float32, all rows",
        "float64, at least 0, all",
        "float64, some",
        "float32, at least 0, some",
    ],
)
def test_softening_is_shrinking_by_what_is_owed(case: Case, dtype, signed, every, path):
    weight = leaf(40, 5, dtype=dtype)
    optimizer = case.make(weight)
    train(optimizer, weight, 4)
    rows = None if every else torch.tensor([3, 39, 0, 17])
    by = normal(40 if every else 4, seed=5, dtype=dtype).abs() * 0.1
    by[1] = 0
    before = weight.detach().clone()
    unit = optimizer.rates(weight, rows) / 0.05
    optimizer.soften(weight, rows, by, signed=signed)
    at = torch.arange(40) if every else rows
    still = (unit == 0).expand_as(before[at]) | (by == 0)[:, None]
    expected = torch.where(still, before[at], shrunk(before[at], by[:, None] * unit, signed))
    close(weight.detach()[at], expected, TOLERANCE[dtype])
    others = torch.ones(40, dtype=torch.bool).index_fill_(0, at, False)
    assert torch.equal(weight.detach()[others], before[others])


@every_optimizer
def test_rates_are_what_a_unit_of_mean_moves(case: Case, path):
    """A row moves by its rate times the first moment, which a fresh one takes from the gradient."""
    plain = {"weight_decay": 0.0, "maximize": False, "nesterov": False}
    options = {k: v for k, v in case.options.items() if k not in plain}
    weight = leaf(6, 3)
    optimizer = Case(case.ours, case.dense, options).make(weight)
    before, grad = weight.detach().clone(), normal(1, 3, seed=3)
    weight.grad = sparse([2], grad, (6, 3))
    optimizer.step()
    rate = optimizer.rates(weight, torch.tensor([2]))
    mean = grad * (1 - options.get("betas", (0.9,))[0]) if optimizer._counts_updates else grad
    close((before - weight.detach())[[2]], (rate * mean).expand(1, 3), 1e-12)


@every_optimizer
def test_a_row_never_touched_has_no_rate_and_stays(case: Case, path):
    weight = leaf(6, 3)
    optimizer = case.make(weight)
    if isinstance(optimizer, SGD):
        assert float(optimizer.rates(weight)) == 0.05  # it knows of no row whether it moved
        return
    assert not optimizer.rates(weight).any()
    before = weight.detach().clone()
    optimizer.soften(weight, None, torch.ones(6).double(), signed=True)
    weight.grad = sparse([2], normal(1, 3, seed=3), (6, 3))
    optimizer.step()
    rates = optimizer.rates(weight).expand(6, 3)
    assert rates[2].all()
    assert not rates[[0, 1, 3, 4, 5]].any()
    optimizer.soften(weight, torch.tensor([5, 1]), torch.ones(2).double(), signed=True)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(weight.detach()[others], before[others])


@pytest.mark.native
@every_optimizer
@both_dtypes
def test_both_paths_agree(case: Case, dtype):
    ends = []
    for name in ("native", "torch"):
        with on_path(name):
            weight = leaf(30, 8, dtype=dtype)
            optimizer = case.make(weight)
            optimizer.penalties[weight] = Penalty(l1=0.01, signed=False)
            for t in range(8):
                train(optimizer, weight, 1, first=t, count=6)
                optimizer.soften(
                    weight, torch.arange(30), torch.full((30,), 1e-3, dtype=dtype), signed=False
                )
            ends.append(weight.detach())
    rows = torch.stack([train_rows(t) for t in range(8)]).unique()
    close(ends[0][rows], ends[1][rows], 10 * TOLERANCE[dtype])
    assert (ends[0] == 0).any()
    assert torch.equal(ends[0][rows] == 0, ends[1][rows] == 0)


def train_rows(t: int) -> Tensor:
    return torch.randint(30, (6,), generator=torch.Generator().manual_seed(t))


def test_a_number_that_is_none_stays_none(path):
    weight = torch.tensor([[float("nan"), 1.0, -1.0]]).requires_grad_()
    optimizer = SGD([weight], lr=0.5)
    optimizer.penalties[weight] = Penalty(l1=1.0, signed=True)
    weight.grad = torch.zeros(1, 3)
    optimizer.step()
    torch.testing.assert_close(
        weight.detach(), torch.tensor([[torch.nan, 0.5, -0.5]]), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    weight = torch.tensor([[0.5, 0.01], [0.5, 0.01]], dtype=dtype).requires_grad_()
    optimizer = Adam([weight], lr=0.1, by_row=True)
    optimizer.penalties[weight] = Penalty(l1=0.1, signed=False)
    weight.grad = sparse([1], torch.ones(1, 2, dtype=dtype), (2, 2))
    optimizer.step()
    assert weight[1, 1] == 0
    assert weight[0, 1] > 0
    assert optimizer.rates(weight).shape == (2, 1)


def test_penalties_are_copied_and_pickled_with_their_parameters():
    weight = leaf(3, 2)
    optimizer = Adam([weight], lr=0.1)
    optimizer.penalties[weight] = Penalty(l1=0.1, signed=True)
    twin = copy.deepcopy(optimizer)
    assert twin.penalties == {twin.param_groups[0]["params"][0]: Penalty(l1=0.1, signed=True)}
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert list(loaded.penalties) == loaded.param_groups[0]["params"]
    optimizer.load_state_dict(optimizer.state_dict())
    assert list(optimizer.penalties) == [weight]


def test_what_does_not_fit_is_refused(path):
    weight = leaf(3, 2)
    optimizer = SGD([weight], lr=0.1)
    with pytest.raises(ValueError, match=r"one number per row, \(2,\), got \(3,\)"):
        optimizer.soften(weight, torch.tensor([0, 1]), torch.ones(3).double(), signed=True)
    with pytest.raises(ValueError, match="rows must be between 0 and 2, got 3"):
        optimizer.soften(weight, torch.tensor([0, 3]), torch.ones(2).double(), signed=True)
    with pytest.raises(ValueError, match=r"write optimizer\.add_param_group"):
        optimizer.rates(leaf(3, 2))
    with pytest.raises(ValueError, match="l1 must be finite and at least 0, got -1"):
        Penalty(l1=-1, signed=True)
