"""When the kernels of Triton are chosen, with a stand-in for a kernel."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fewfold._native import dispatch


def double(rows: Tensor) -> Tensor:
    return rows * 2


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One operation, of float32 tensors of at least four elements."""
    operation = dispatch._Operation("stand_in", (torch.float32,), elements=4)
    monkeypatch.setitem(dispatch._TRITON, "double", operation)
    module = SimpleNamespace(double=double)
    monkeypatch.setitem(sys.modules, "fewfold._triton.stand_in", module)  # type: ignore[arg-type]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "triton_available", lambda: True)
    dispatch._triton_function.cache_clear()
    yield
    dispatch._triton_function.cache_clear()


def test_a_tensor_on_the_cpu_has_no_triton_kernel() -> None:
    assert dispatch.triton_kernel("double", torch.ones(9)) is None


def test_the_function_of_an_operation_is_found() -> None:
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("double", torch.ones(9)) is double
        assert not dispatch.ready(torch.ones(9))  # native kernels would hide those of Triton
    assert dispatch.triton_kernel("double", torch.ones(9)) is None


def test_what_an_operation_does_not_take_is_left_to_torch() -> None:
    fitting = torch.ones(9)
    refused = {
        "unknown operation": ("triple", (fitting,)),
        "dtype": ("double", (fitting.double(),)),
        "too few elements": ("double", (torch.ones(3),)),
        "another device": ("double", (fitting, torch.ones(9, device="meta"))),
        "sparse": ("double", (fitting, fitting.to_sparse())),
        "a negative view": ("double", (torch._neg_view(fitting),)),
    }
    with dispatch.triton_on_cpu():
        for why, (name, tensors) in refused.items():
            assert dispatch.triton_kernel(name, *tensors) is None, why


def test_no_kernel_runs_under_a_transform() -> None:
    def choose(row: Tensor) -> Tensor:
        found.append(dispatch.triton_kernel("double", row))
        return row.sum()

    found: list[object] = []
    with dispatch.triton_on_cpu():
        torch.func.vmap(choose)(torch.ones(2, 9))
        torch.func.grad(choose)(torch.ones(9))
        torch.func.jvp(choose, (torch.ones(9),), (torch.ones(9),))
    assert found == [None, None, None]


def test_the_interpreter_must_be_chosen_before_python_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"), dispatch.triton_on_cpu():
        pass
