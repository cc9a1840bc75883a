"""Queries of torch's state inside its transforms, traces and modes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from fewfold import _torch
from fewfold.structured.sparsemap import sparsemap_operator

EXPORTS_UNTOLD = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 does not tell whether it exports"
)
QUESTIONS = ("runs_directly", "values_visible", "under_transform", "under_vmap", "forward_mode")


def _dual(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with forward_ad.dual_level():
        function(x)


def _counted(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with FlopCounterMode(display=False):
        function(x)


WAYS = {
    "plain": (lambda f, x: f(x), {"runs_directly", "values_visible"}),
    "no grad": (lambda f, x: torch.no_grad()(f)(x), {"runs_directly", "values_visible"}),
    "vmap": (lambda f, x: torch.func.vmap(f)(x), {"under_transform", "under_vmap"}),
    "grad": (lambda f, x: torch.func.grad(f)(x), {"under_transform"}),
    "jvp": (lambda f, x: torch.func.jvp(f, (x,), (x,)), {"under_transform", "forward_mode"}),
    "grad of vmap": (
        lambda f, x: torch.func.grad(lambda y: torch.func.vmap(f)(y).sum())(x),
        {"under_transform", "under_vmap"},
    ),
    "dual numbers": (_dual, {"values_visible", "forward_mode"}),
    "dispatch mode": (_counted, {"values_visible"}),
    "trace": (lambda f, x: torch.jit.trace(f, x, check_trace=False), {"values_visible"}),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_state_of_torch(name: str) -> None:
    way, expected = WAYS[name]
    seen: list[set[str]] = []

    def look(x: Tensor) -> Tensor:
        seen.append({question for question in QUESTIONS if getattr(_torch, question)()})
        return x.sum()

    way(look, torch.ones(3))
    assert seen == [expected]
    assert not _torch.compiled()


class _Asks(torch.nn.Module):
    """Adds 1 if a compiler is looking, and 10 if operations run at once."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1 if _torch.compiled() else x
        return x + 10 if _torch.runs_directly() else x


@EXPORTS_UNTOLD
def test_a_compiler_is_told_from_an_exporter() -> None:
    x = torch.zeros(())
    assert _Asks()(x) == 10
    assert torch.compile(_Asks(), backend="eager", fullgraph=True)(x) == 1
    assert torch.export.export(_Asks(), (x,)).module()(x) == 0


def test_eager_takes_plain_tensors_on_the_cpu() -> None:
    class Own(Tensor):
        pass

    plain = torch.ones(2)
    assert _torch.eager(plain, torch.nn.Parameter(plain), 2.0, None)
    assert not _torch.eager(plain, plain.as_subclass(Own))
    assert _torch.untransformed(plain.as_subclass(Own))
    for answer in (_torch.eager, _torch.untransformed):
        assert not answer(plain, torch.ones(2, device="meta"))


def test_gradients_in_a_batch_are_no_plain_tensors() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            seen.append((_torch.eager(grad), _torch.untransformed(grad)))
            return grad

    x = torch.ones(2, requires_grad=True)
    y = Look.apply(x)
    torch.autograd.grad(y, x, torch.ones(2), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert seen == [(True, True), (False, False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (5, 3, 2), (65, 33, 17)]
)
@pytest.mark.parametrize("onednn", [True, False])
def test_linear_is_that_of_torch(
    onednn: bool,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not onednn:
        monkeypatch.setattr(_torch, "_ONEDNN", None)
    rows, size, outputs = shape
    draw = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, size, generator=draw, dtype=dtype)
    weight = torch.randn(outputs, size, generator=draw, dtype=dtype)
    bias = torch.randn(outputs, generator=draw, dtype=dtype)
    wanted = torch.nn.functional.linear(inputs, weight, bias)
    by_columns = inputs.T.contiguous().T, weight.T.contiguous().T
    for one, two in ((inputs, weight), by_columns):
        found = _torch.linear(one, two, bias)
        torch.testing.assert_close(found, wanted)
        assert found.is_contiguous()
        torch.testing.assert_close(_torch.linear(one, two), one @ two.T)


@pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 derives fewer schemas"
)
def test_schemas_of_operators_are_those_that_torch_derives() -> None:
    def run(
        a: Tensor, b: Tensor | None, c: list[bool], d: list[Tensor], e: int, f: float
    ) -> Tensor:
        return a

    def several(a: Tensor) -> list[Tensor]:
        return [a]

    for function in (run, several):
        expected = torch.library.infer_schema(function, mutates_args=())
        assert _torch.operator_schema(function) == expected


def test_operators_written_out_have_the_schema_of_their_function() -> None:
    for operator in (sparsemap_operator._marginals, sparsemap_operator._pull):
        expected = _torch.operator_schema(operator._init_fn)
        assert str(operator._opoverload._schema).partition("(")[2] == expected.partition("(")[2]
