"""When the kernels of Triton are chosen, with a stand-in for a kernel."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

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
    monkeypatch.setattr(dispatch, "_triton_installed", lambda: True)
    dispatch._triton_function.cache_clear()
    yield
    dispatch._triton_function.cache_clear()


def test_a_tensor_on_the_cpu_has_no_triton_kernel() -> None:
    assert dispatch.triton_kernel("double", torch.ones(9)) is None


def test_the_function_of_an_operation_is_found() -> None:
    with dispatch.triton_on_cpu():
        assert dispatch.triton_kernel("double", torch.ones(9)) is double
        assert not dispatch.ready(torch.ones(9))  # native kernels would hide those of Triton
        with dispatch.disabled():
            assert dispatch.triton_kernel("double", torch.ones(9)) is None
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


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for a tensor on a GPU, and for what torch says of that GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: None)
    monkeypatch.setattr(dispatch, "_PLAIN", (SimpleNamespace,))
    monkeypatch.setattr(dispatch, "_batched", lambda t: False)
    monkeypatch.setitem(sys.modules, "fewfold._triton.entmax_rows", first := SimpleNamespace())
    first.entmax_rows = lambda rows, alpha: None
    dispatch.triton_fails.cache_clear()
    yield SimpleNamespace(
        is_cuda=True, device=torch.device("cuda", 0), dtype=torch.float32, layout=torch.strided,
        numel=lambda: 9, is_neg=lambda: False, _is_zerotensor=lambda: False,
    )  # fmt: skip
    dispatch.triton_fails.cache_clear()


def test_kernels_are_chosen_on_a_gpu(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.triton_kernel("double", gpu) is double
    dispatch.show_config()
    assert "Triton kernels where there are some, plain torch otherwise; A GPU" in (
        capsys.readouterr().out
    )


def test_old_gpus_are_left_to_torch(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert dispatch.triton_kernel("double", gpu) is None
    dispatch.show_config()
    assert "plain torch (Triton for compute capability 8.0 or later, got 7.5); A GPU" in (
        capsys.readouterr().out
    )


def test_gpus_on_which_triton_fails_are_left_to_torch_with_a_warning(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(rows: Any, alpha: float) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC\nmore")

    monkeypatch.setattr(sys.modules["fewfold._triton.entmax_rows"], "entmax_rows", fail)
    with pytest.warns(UserWarning, match="plain torch: Failed to find C compiler"):
        assert dispatch.triton_kernel("double", gpu) is None
    assert dispatch.triton_kernel("double", gpu) is None  # and warns once
    dispatch.show_config()
    assert "plain torch (Triton fails: Failed to find C" in capsys.readouterr().out


def test_amd_gpus_are_left_to_torch(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert dispatch.triton_kernel("double", gpu) is None
