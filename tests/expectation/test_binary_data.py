"""Negative log-likelihoods of Bernoulli distributions: the kernel against plain torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from fewfold._native import dispatch
from fewfold.expectation import bernoulli_cost, linear_bernoulli_cost
from fewfold.expectation.binary_data import _plain

pytestmark = pytest.mark.native

INF = math.inf
# Around the vectors of every instruction set: 4 to 16 numbers.
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 784)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


def drawn(pairs: int, rows: int, *event: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(pairs + sum(event))
    logits = 5 * torch.randn(pairs, *event, generator=draw, dtype=dtype)
    target = torch.rand(rows, *event, generator=draw, dtype=dtype)
    return logits, target, torch.randint(rows, (pairs,), generator=draw)


def both(logits: Tensor, target: Tensor, row: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
    found = []
    for function in (bernoulli_cost, _plain):
        leaf = logits.clone().requires_grad_()
        costs = function(leaf, target, row)
        found.append((costs.detach(), torch.autograd.grad(costs, leaf, grad)[0]))
    return found


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_equals_plain_torch(width: int, dtype: torch.dtype) -> None:
    for pairs in (1, 2, 7):
        given = drawn(pairs, 3, width, dtype=dtype)
        (costs, pulls), (plain, slow) = both(*given, torch.randn(pairs, dtype=dtype))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(costs, plain, atol=tolerance * width, rtol=tolerance)
        torch.testing.assert_close(pulls, slow, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("biased", [False, True])
def test_linear_layer(biased: bool, width: int, dtype: torch.dtype) -> None:
    for pairs in (1, 5):
        _, target, row = drawn(pairs, 3, width, dtype=dtype)
        draw = torch.Generator().manual_seed(width)
        shapes = ((pairs, 4), (width, 4), (width,))
        given = [
            torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes
        ]
        inputs, weight, bias = given if biased else (*given[:2], None)
        leaves = given if biased else given[:2]
        costs = linear_bernoulli_cost(inputs, weight, bias, target, row)
        plain = _plain(F.linear(inputs, weight, bias), target, row)
        tolerance = 4 * TOLERANCE[dtype]
        torch.testing.assert_close(costs, plain, atol=tolerance * width, rtol=tolerance)
        grad = torch.randn(pairs, generator=draw, dtype=dtype)
        again = torch.autograd.grad(costs, leaves, grad, retain_graph=True)
        fast = torch.autograd.grad(costs, leaves, grad)  # the slopes are still there
        slow = torch.autograd.grad(plain, leaves, grad)
        for one, two, three in zip(fast, slow, again, strict=True):
            torch.testing.assert_close(one, two, atol=tolerance * width, rtol=10 * tolerance)
            torch.testing.assert_close(one, three, atol=0, rtol=0)


@pytest.mark.parametrize("only", [0, 1, 2])
def test_linear_layer_of_which_one_part_learns(only: int) -> None:
    _, target, row = drawn(5, 3, 7, dtype=torch.float64)
    given = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 4), (7, 4), (7,))]
    leaf = given[only].requires_grad_()
    (fast,) = torch.autograd.grad(linear_bernoulli_cost(*given, target, row).sum(), leaf)
    (slow,) = torch.autograd.grad(_plain(F.linear(*given), target, row).sum(), leaf)
    torch.testing.assert_close(fast, slow)
    for tensor in given:
        assert tensor.requires_grad == (tensor is leaf)
    with torch.no_grad():
        found = linear_bernoulli_cost(*given, target, row)
    torch.testing.assert_close(found, _plain(F.linear(*given), target, row).detach())


def test_linear_layer_elsewhere() -> None:
    _, target, row = drawn(5, 3, 7, dtype=torch.float64)
    given = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 4), (7, 4), (7,))]
    leaves = [tensor.requires_grad_() for tensor in given]

    def total(*parts: Tensor) -> Tensor:
        return linear_bernoulli_cost(*parts, target, row)

    assert torch.autograd.gradcheck(total, leaves)
    assert torch.autograd.gradgradcheck(total, leaves)
    plain = [leaf.detach() for leaf in leaves]
    pushed = torch.func.grad(lambda w: total(plain[0], w, plain[2]).sum())(plain[1])
    (wanted,) = torch.autograd.grad(total(*leaves).sum(), leaves[1])
    torch.testing.assert_close(pushed, wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = total(*(part.float() for part in plain))
    torch.testing.assert_close(found.double(), total(*plain), atol=0.2, rtol=0.1)
    with pytest.raises(ValueError, match=r"with the event \(7,\) of the logits, got \(3, 6\)"):
        linear_bernoulli_cost(*plain, target[:, :6], row)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_logits_of_any_size(dtype: torch.dtype) -> None:
    # Every scale between the smallest numbers and the largest, each alone in its row.
    most = math.log10(torch.finfo(dtype).max) - 1
    sizes = 10 ** torch.linspace(-most, most, 400, dtype=dtype)
    logits = torch.cat([sizes, -sizes, torch.zeros(1, dtype=dtype)])[:, None]
    target = torch.tensor([[0.0], [1.0], [0.3]], dtype=dtype)
    for which in range(3):
        row = torch.full((len(logits),), which)
        (costs, pulls), (plain, slow) = both(logits, target, row, torch.ones_like(row, dtype=dtype))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(costs, plain, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(pulls, slow, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("special", [INF, -INF, math.nan])
def test_numbers_that_are_not_finite(special: float, dtype: torch.dtype) -> None:
    logits, target, row = drawn(6, 2, 19, dtype=dtype)
    target = target.round()
    logits[0, 3], logits[1, 16], logits[2, 18] = special, special, special
    (costs, pulls), (plain, slow) = both(logits, target, row, torch.ones(6, dtype=dtype))
    torch.testing.assert_close(costs, plain, equal_nan=True, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(pulls, slow, equal_nan=True, atol=1e-6, rtol=1e-5)


def test_threads_share_the_pairs() -> None:
    given = drawn(301, 11, 7, 113, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        (costs, pulls), (plain, slow) = both(*given, torch.randn(301))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(costs, plain)
    torch.testing.assert_close(pulls, slow, atol=2e-6, rtol=1e-5)


def test_other_layouts_and_dtypes() -> None:
    logits, target, row = drawn(8, 4, 6, dtype=torch.float64)
    wanted = _plain(logits, target.round(), row)
    wide = torch.stack([logits, logits], -1)[..., 0]
    assert not wide.is_contiguous()
    torch.testing.assert_close(bernoulli_cost(wide, target.round().bool(), row), wanted)
    torch.testing.assert_close(bernoulli_cost(logits, target.round().long(), row[:]), wanted)
    half = bernoulli_cost(logits.bfloat16(), target.round(), row)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), wanted, atol=0.1, rtol=0.05)
    strided = torch.stack([row, row], 1)[:, 1]
    torch.testing.assert_close(bernoulli_cost(logits, target.round(), strided), wanted)


@pytest.mark.parametrize("event", [(), (5,), (0,), (2, 3)])
@pytest.mark.parametrize("pairs", [0, 4])
def test_empty_and_scalar_events(pairs: int, event: tuple[int, ...]) -> None:
    logits, target, row = drawn(pairs, 3, *event, dtype=torch.float64)
    wanted = F.binary_cross_entropy_with_logits(logits, target[row], reduction="none")
    found = bernoulli_cost(logits, target, row)
    torch.testing.assert_close(found, wanted.reshape(pairs, math.prod(event)).sum(1))


def test_derivatives() -> None:
    logits, target, row = drawn(4, 3, 5, dtype=torch.float64)
    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bernoulli_cost(x, target, row), leaf)
    assert torch.autograd.gradgradcheck(lambda x: bernoulli_cost(x, target, row), leaf)
    learnt = target.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: bernoulli_cost(logits.detach(), t, row), learnt)


def test_transforms() -> None:
    logits, target, row = drawn(4, 3, 5, dtype=torch.float64)
    costs = bernoulli_cost(logits, target, row)

    def total(x: Tensor) -> Tensor:
        return bernoulli_cost(x, target, row).sum()

    leaf = logits.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(total)(logits), wanted)
    one_by_one = torch.func.vmap(lambda x, r: bernoulli_cost(x[None], target, r[None])[0])
    torch.testing.assert_close(one_by_one(logits, row), costs)
    _, pushed = torch.func.jvp(total, (logits,), (torch.ones_like(logits),))
    torch.testing.assert_close(pushed, wanted.sum())


@pytest.mark.skipif(not dispatch.available(), reason="needs the kernels")
def test_rows_that_are_not_there() -> None:
    logits, target, row = drawn(4, 3, 5, dtype=torch.float64)
    for wrong in (3, -1):
        row[2] = wrong
        with pytest.raises(IndexError):
            bernoulli_cost(logits, target, row)


def test_errors() -> None:
    logits, target, row = drawn(4, 3, 5, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"row must be int64, got torch.int32; write row.long\(\)"):
        bernoulli_cost(logits, target, row.int())
    with pytest.raises(TypeError, match="logits must have a real floating-point dtype"):
        bernoulli_cost(logits.long(), target, row)
    with pytest.raises(TypeError, match=r"target must be a torch.Tensor, got list"):
        bernoulli_cost(logits, [0.0], row)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"logits must be \(m, \*event\) for the m=3 pairs"):
        bernoulli_cost(logits, target, row[:3])
    with pytest.raises(ValueError, match=r"with the event \(5,\) of the logits, got \(3, 4\)"):
        bernoulli_cost(logits, target[:, :4], row)


def test_expectation_of_the_cost() -> None:
    torch.manual_seed(0)
    scores, target = torch.randn(5, 6, requires_grad=True), torch.rand(5, 9)
    weight = torch.randn(6, 9, requires_grad=True)
    grads = []
    for function in (bernoulli_cost, _plain):
        out = ff.expect(
            lambda atoms, row, cost=function: cost(atoms @ weight, target, row),
            scores,
            ff.SparseMarginal(k=4),
            ff.structures.Bits(),
        )
        grads.append(torch.autograd.grad(out.loss, (scores, weight)))
    for fast, slow in zip(*grads, strict=True):
        torch.testing.assert_close(fast, slow)
