"""Maps of plain tensors in one call of compiled code, and which inputs are left to Python."""

import sys

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import dispatch
from tests.test_torch import WAYS

_EXCHANGE = hasattr(Tensor, "__dlpack_c_exchange_api__")

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not dispatch.available(), reason="the kernels are not built"),
    pytest.mark.skipif(not _EXCHANGE, reason="this torch has no exchange API of DLPack"),
]

MAPS = {
    "sparsemax": (ff.sparsemax, 2.0, False),
    "entmax 1.1": (lambda x: ff.entmax(x, 1.1), 1.1, False),
    "entmax 1.5": (lambda x: ff.entmax(x, 1.5), 1.5, False),
    "normmax": (lambda x: ff.normmax(x, 2.0), 2.0, True),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numbers_are_those_of_plain_torch(name: str, dtype: torch.dtype) -> None:
    function, alpha, norm = MAPS[name]
    generator = torch.Generator().manual_seed(0)
    for shape in [(1,), (5,), (3, 64), (3, 65), (2, 1, 4100), (70, 2, 33), (2049, 40)]:
        scores = 3 * torch.randn(shape, generator=generator, dtype=dtype)
        probs = dispatch.map_directly(scores, alpha, norm)
        with dispatch.disabled():
            expected = function(scores)
        assert probs is not None
        torch.testing.assert_close(probs, expected, rtol=0, atol=2e-6)
        assert probs.is_contiguous()
        assert probs.data_ptr() != scores.data_ptr()


def test_scores_without_an_answer() -> None:
    infinite = torch.tensor([[1.0, torch.inf, torch.inf], [torch.nan, 0.0, 1.0], [-torch.inf] * 3])
    probs = dispatch.map_directly(infinite, 1.5, False)
    assert probs is not None
    assert probs[0].tolist() == [0.0, 0.5, 0.5]
    assert bool(probs[1].isnan().all())
    assert probs[2].tolist() == [0.0, 0.0, 0.0]


def test_the_result_is_an_ordinary_tensor() -> None:
    scores = torch.randn(4, 6)
    probs = dispatch.map_directly(scores, 2.0, False)
    assert type(probs) is Tensor
    assert sys.getrefcount(probs) == 2
    before = probs.clone()
    del scores
    torch.testing.assert_close(probs, before)
    probs.add_(1).requires_grad_().sum().backward()
    assert bool((probs.grad == 1).all())
    with torch.inference_mode():
        inside = dispatch.map_directly(torch.randn(4), 2.0, False)
        assert inside is not None
        assert inside.is_inference()


def test_parameters_without_recording_are_taken() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4))
    assert dispatch.map_directly(weight, 2.0, False) is None
    with torch.no_grad():
        probs = dispatch.map_directly(weight, 2.0, False)
    assert type(probs) is Tensor
    assert not probs.requires_grad


class _Own(Tensor):
    """A subclass, whose operations may mean something else."""


@pytest.mark.parametrize("name", MAPS)
def test_what_records_gradients_is_handed_over(name: str) -> None:
    _, alpha, norm = MAPS[name]
    given = []

    def record(*arguments: object) -> Tensor:
        given.append(arguments)
        return answer

    scores, answer = torch.randn(3, 4, requires_grad=True), torch.zeros(1)
    assert dispatch.map_directly(scores, alpha, norm, record) is answer
    assert given == [(scores, alpha, norm)]
    with torch.no_grad():
        assert dispatch.map_directly(scores, alpha, norm, record) is not answer
    assert dispatch.map_directly(scores.detach(), alpha, norm, record) is not answer
    assert dispatch.map_directly(scores.mT, alpha, norm, record) is None
    assert len(given) == 1


def test_errors_of_what_records_gradients_reach_the_caller() -> None:
    def record(*_: object) -> Tensor:
        raise ArithmeticError("nothing to record")

    with pytest.raises(ArithmeticError, match="nothing to record"):
        dispatch.map_directly(torch.randn(3, 4, requires_grad=True), 2.0, False, record)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_plain_torch(name: str, dtype: torch.dtype) -> None:
    function, alpha, norm = MAPS[name]
    generator = torch.Generator().manual_seed(0)
    for shape in [(1,), (5,), (3, 64), (3, 65), (2, 1, 4100), (70, 2, 33), (2049, 40)]:
        scores = torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)
        grad = torch.randn(shape, generator=generator, dtype=dtype)
        with dispatch.disabled():
            probs = function(scores)
            (expected,) = torch.autograd.grad(probs, scores, grad)
        with torch.no_grad():
            pulled = dispatch.pull_directly(probs, grad, alpha, norm)
        assert pulled is not None
        torch.testing.assert_close(pulled, expected, rtol=1e-4, atol=1e-4)
        assert not pulled.requires_grad


def test_rows_with_infinite_scores_are_reported() -> None:
    scores = torch.randn(3, 4)
    probs, infinite = dispatch.kernel("map_known")(scores, 1.5, False, 1)
    assert torch.equal(probs, ff.entmax(scores))
    assert not infinite
    scores[1, 2] = torch.inf
    probs, infinite = dispatch.kernel("map_known")(scores, 1.5, False, 1)
    assert probs[1].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert infinite
    assert dispatch.kernel("map_known")(scores.mT, 1.5, False, 1) is None


OTHERS = {
    "records gradients": lambda: torch.randn(3, 4, requires_grad=True),
    "has gaps": lambda: torch.randn(3, 8)[:, ::2],
    "is transposed": lambda: torch.randn(3, 4).mT,
    "is empty": lambda: torch.randn(0, 4),
    "has rows without entries": lambda: torch.randn(4, 0),
    "is a number": lambda: torch.tensor(1.0),
    "is in half precision": lambda: torch.randn(3, 4).half(),
    "is of integers": lambda: torch.arange(4),
    "has no memory": lambda: torch.empty(3, 4, device="meta"),
    "is sparse": lambda: torch.eye(3).to_sparse(),
    "is of a subclass": lambda: torch.randn(3, 4).as_subclass(_Own),
    "is negated when it is read": lambda: torch._neg_view(torch.randn(3, 4)),
    "is a zero without memory": lambda: torch._efficientzerotensor((3, 4)),
    "is no tensor": lambda: [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_inputs_are_left_to_python(name: str) -> None:
    assert dispatch.map_directly(OTHERS[name](), 2.0, False) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHERS)
def test_other_gradients_are_left_to_python(name: str) -> None:
    plain = torch.full((3, 4), 0.25)
    with torch.no_grad():
        found = [
            dispatch.pull_directly(plain, OTHERS[name](), 2.0, False),  # type: ignore[arg-type]
            dispatch.pull_directly(OTHERS[name](), plain, 2.0, False),  # type: ignore[arg-type]
        ]
    records = name == "records gradients"  # which counts while they are recorded alone
    assert [pulled is not None for pulled in found] == [records, records]
    assert dispatch.pull_directly(plain, plain, 2.0, False) is None


def test_gradients_of_another_shape_or_type_are_left_to_python() -> None:
    plain = torch.full((3, 4), 0.25)
    with torch.no_grad():
        assert dispatch.pull_directly(plain, plain.view(4, 3), 2.0, False) is None
        assert dispatch.pull_directly(plain, plain[:2], 2.0, False) is None
        assert dispatch.pull_directly(plain, plain.double(), 2.0, False) is None
        with dispatch.disabled():
            assert dispatch.pull_directly(plain, plain, 2.0, False) is None
        with pytest.raises(ValueError, match="alpha must be above 1 and at most 2"):
            dispatch.pull_directly(plain, plain, 3.0, False)


@pytest.mark.parametrize("name", WAYS)
def test_it_runs_where_operations_run_at_once(name: str) -> None:
    plain, seen = torch.ones(3), []

    def look(x: Tensor) -> Tensor:
        seen.append((dispatch.ready(plain), dispatch.map_directly(plain, 2.0, False) is not None))
        return x.sum()

    WAYS[name][0](look, torch.ones(3))
    ((ready, direct),) = seen
    assert ready == direct


def test_gradients_in_a_batch_are_left_to_python() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            seen.append(dispatch.map_directly(grad, 2.0, False))
            return grad

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Look.apply(x), x, torch.eye(3), is_grads_batched=True)
    assert seen == [None]


def test_it_can_be_switched_off_and_refuses_other_alphas() -> None:
    scores = torch.randn(3, 4)
    with dispatch.disabled():
        assert dispatch.map_directly(scores, 2.0, False) is None
    for alpha in (1.0, 2.5, float("nan")):
        with pytest.raises(ValueError, match="alpha must be above 1 and at most 2"):
            dispatch.map_directly(scores, alpha, False)
