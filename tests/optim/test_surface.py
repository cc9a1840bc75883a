"""The interface of torch.optim: groups, schedulers, closures, errors, and layers."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fewfold as ff
from fewfold.optim import SGD, Adagrad, Adam, Yogi
from tests.optim.cases import Case, every_optimizer, leaf, normal, sparse, train


@every_optimizer
def test_a_row_that_does_not_exist_is_an_error_and_changes_nothing(case: Case, path: str) -> None:
    weight = leaf(6, 3)
    optimizer = case.make(weight)
    train(optimizer, weight, 1)
    before = [weight.detach().clone(), *(t.clone() for t in optimizer.state[weight].values())]
    for bad in (-1, 6, 2**40, -(2**62)):
        weight.grad = sparse([0, 1, 5], normal(3, 3), (6, 3))
        weight.grad._indices()[0, 1] = bad  # what torch does not check either
        with pytest.raises(ValueError, match=f"names row {bad}, but .* has the rows 0 to 5"):
            optimizer.step()
        after = [weight, *optimizer.state[weight].values()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD(p, lr=-0.1), "lr must be finite and at least 0, got -0.1"),
        (lambda p: Adam(p, lr=float("nan")), "lr must be finite"),
        (lambda p: Adam(p, betas=(0.9, 1.0)), r"betas\[1\] must be at least 0 and below 1"),
        (lambda p: Yogi(p, betas=(-0.1, 0.9)), r"betas\[0\] must be finite and at least 0"),
        (lambda p: Adam(p, eps=-1e-8), "eps must be finite and at least 0"),
        (lambda p: Adagrad(p, weight_decay=-1), "weight_decay must be"),
        (lambda p: Adagrad(p, initial_accumulator_value=-1), "initial_accumulator_value must be"),
        (lambda p: Yogi(p, initial_accumulator_value=-1), "initial_accumulator_value must be"),
        (lambda p: SGD(p, momentum=1.5), "momentum must be at least 0 and below 1"),
        (lambda p: SGD(p, nesterov=True), "nesterov needs a momentum"),
        (lambda p: SGD([{"params": p, "lr": -1.0}]), "lr must be finite"),
    ],
)
def test_options_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([leaf(3, 2)])


def test_types_that_make_no_sense() -> None:
    with pytest.raises(TypeError, match="betas must be two numbers"):
        Adam([leaf(3)], betas=0.9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lr must be a number, got str"):
        Adam([leaf(3)], lr="0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"real floating-point dtype, got torch\.complex64"):
        Adam([torch.zeros(3, dtype=torch.complex64, requires_grad=True)])
    with pytest.raises(TypeError, match="params"):
        Adam(leaf(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty parameter list"):
        Adam([])


def test_gradients_of_another_kind(path: str) -> None:
    weight = leaf(3, 2)
    weight.grad = torch.eye(3, 2, dtype=torch.float64).to_sparse(2)
    with pytest.raises(ValueError, match="must have 1 sparse dimension, the rows, got 2"):
        SGD([weight]).step()


def test_the_state_of_another_parameter_is_refused(path: str) -> None:
    large, small = leaf(9, 4), leaf(5, 4)
    for make in (Adam, Yogi, Adagrad):
        optimizer, other = make([small]), make([large])
        train(optimizer, small, 1)
        train(other, large, 1)
        other.load_state_dict(optimizer.state_dict())
        before = large.detach().clone()
        with pytest.raises(ValueError, match="does not belong to a parameter of shape"):
            train(other, large, 1)
        assert torch.equal(large, before)


def test_the_state_of_another_rule_is_refused(path: str) -> None:
    one, two = leaf(4, 8), leaf(4, 8)
    by_row, yogi = Adam([one], by_row=True), Yogi([two])
    train(by_row, one, 1)
    yogi.load_state_dict(by_row.state_dict())
    with pytest.raises(ValueError, match="does not belong to a parameter of shape"):
        train(yogi, two, 1)


def test_a_state_from_before_the_choice_of_eps_goes_on_as_it_began(path: str) -> None:
    old, new = leaf(4, 8), leaf(4, 8)
    before, after = Yogi([old], adam_eps=True), Yogi([new])
    train(before, old, 2)
    saved = copy.deepcopy(before.state_dict())
    del saved["param_groups"][0]["adam_eps"]
    after.load_state_dict(saved)
    new.data.copy_(old)
    for optimizer, weight in ((before, old), (after, new)):
        train(optimizer, weight, 2, first=2)
    assert torch.equal(new, old)
    assert Yogi([leaf(2)]).param_groups[0]["adam_eps"] is False


def test_a_state_from_before_there_were_rows_loads(path: str) -> None:
    weight = leaf(4, 8)
    optimizer = Adam([weight])
    train(optimizer, weight, 1)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["by_row"]
    optimizer.load_state_dict(saved)
    train(optimizer, weight, 1)


def test_by_row_takes_any_layout_and_leaves_the_gradient_alone(path: str) -> None:
    weight = leaf(4, 2, 3).detach().transpose(1, 2).requires_grad_()
    weight.grad = normal(4, 2, 3).transpose(1, 2)
    weight.grad[0, 0, 0] = torch.inf
    before = weight.grad.clone()
    Adam([weight], betas=(0.0, 0.9), by_row=True).step()
    assert torch.equal(weight.grad, before)


def test_half_precision_keeps_whole_second_moments(path: str) -> None:
    weight = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)
    optimizer = Adam([weight], by_row=True)
    weight.grad = torch.ones_like(weight)
    for _ in range(3):
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert optimizer.state[weight]["square"].dtype == torch.float32


@every_optimizer
def test_groups_have_options_of_their_own(case: Case, path: str) -> None:
    first, second, third = leaf(6, 3), leaf(6, 3), leaf(6, 3)
    groups = [{"params": [first]}, {"params": [second], "lr": 0.0, "weight_decay": 0.0}]
    optimizer = case.ours(groups, **{"lr": 0.05, **case.options})
    optimizer.add_param_group({"params": third, "lr": 0.01})
    for weight in (first, second, third):
        weight.grad = sparse([2, 2], normal(2, 3), (6, 3))
    optimizer.step()
    assert torch.equal(second, leaf(6, 3))
    moved = [(w - leaf(6, 3)).abs().sum() for w in (first, third)]
    assert moved[0] > moved[1] > 0


@every_optimizer
def test_schedulers_and_tensors_set_the_learning_rate(case: Case, path: str) -> None:
    ends = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        weight = leaf(6, 3)
        optimizer = case.ours([weight], **{**case.options, "lr": lr})
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for t in range(3):
            train(optimizer, weight, 1, first=t)
            schedule.step()
        ends.append(weight.detach())
    torch.testing.assert_close(ends[0], ends[1])
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.0125)


def test_a_closure_is_called_with_gradients_on(path: str) -> None:
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = Adam(table.parameters(), lr=0.1)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = table(torch.tensor([1, 2, 2])).square().sum()
        loss.backward()
        return loss

    for _ in range(30):
        losses.append(float(optimizer.step(closure).detach()))
    assert losses[-1] < 0.1 * losses[0]


@every_optimizer
def test_layers_with_sparse_gradients(case: Case, path: str) -> None:
    """An embedding used twice and a bag, against the same with dense gradients."""
    ends = []
    for as_sparse, index in ((True, torch.int64), (True, torch.int32), (False, torch.int64)):
        weight = leaf(6, 5)
        optimizer = case.make(weight)
        for t in range(3):
            ids = torch.tensor([[0, 1, 2], [3, 4, 5], [t, t, 0]], dtype=index)
            optimizer.zero_grad()
            bag = F.embedding_bag(ids, weight, mode="sum", sparse=as_sparse)
            loss = bag.square().sum() + F.embedding(ids[1], weight, sparse=as_sparse).sum()
            loss.backward()
            assert weight.grad is not None
            assert weight.grad.is_sparse == as_sparse
            optimizer.step()
        ends.append(weight.detach())
    for end in ends[:2]:
        torch.testing.assert_close(end, ends[2], atol=1e-12, rtol=1e-12)


def test_autograd_notices_that_the_weights_have_moved(path: str) -> None:
    weight = leaf(4, 3)
    stale = weight.square().sum()
    weight.grad = sparse([1], normal(1, 3), (4, 3))
    SGD([weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()


def test_no_state_before_a_gradient_and_none_without_momentum(path: str) -> None:
    weight = leaf(4, 3)
    optimizer = Adam([weight])
    optimizer.step()
    assert not optimizer.state
    plain = SGD([weight])
    train(plain, weight, 1)
    assert not plain.state_dict()["state"].get(0)


def test_the_room_is_reachable_and_its_names_stay_inside() -> None:
    assert ff.optim.Adam is Adam
    assert set(ff.optim.__all__) == {"SGD", "Adagrad", "Adam", "Penalty", "Yogi"}
    assert not hasattr(ff, "Adam")


@pytest.mark.native
@pytest.mark.parametrize("rows", [1, 2, 2047, 2048, 2049, 5_000_000])
def test_grouping_over_one_to_three_digits(rows: int) -> None:
    """The sort takes as many passes as the rows have digits; sums must come out of each."""
    draw = torch.Generator().manual_seed(rows)
    index = torch.randint(rows, (3000,), generator=draw)
    index[::3] = rows - 1
    values = normal(3000, dtype=torch.float64)
    weight = torch.zeros(rows, dtype=torch.float64, requires_grad=True)
    weight.grad = sparse(index, values, (rows,))
    SGD([weight], lr=1.0).step()
    expected = torch.zeros(rows, dtype=torch.float64).index_add_(0, index, -values)
    torch.testing.assert_close(weight.detach(), expected, atol=1e-12, rtol=0)
