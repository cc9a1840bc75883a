"""Lookup of kernels by name, and the error if there is none."""

import pytest
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import runs_directly
from tests.test_torch import WAYS

present = pytest.mark.skipif(not dispatch.available(), reason="the kernels are not built")


@present
@pytest.mark.native
def test_a_kernel_is_found_by_its_name_and_dtype() -> None:
    kernels = dispatch.kernels
    assert dispatch.kernel("forward", torch.float32) is kernels.forward_f32  # type: ignore[union-attr]
    assert dispatch.kernel("forward", torch.float64) is kernels.forward_f64  # type: ignore[union-attr]
    assert dispatch.kernel("thin") is kernels.thin  # type: ignore[union-attr]
    with pytest.raises(AttributeError, match="no_such_kernel"):
        dispatch.kernel("no_such_kernel")


@present
def test_a_kernel_can_be_present_and_switched_off() -> None:
    with dispatch.disabled():
        assert dispatch.available()
        assert not dispatch.enabled()
        assert not dispatch.ready(torch.zeros(1))


def test_without_the_compiled_module_the_error_says_what_to_call_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "_MODULES", {})
    assert not dispatch.available()
    with pytest.raises(RuntimeError, match=r"'thin' .* call dispatch.ready"):
        dispatch.kernel.__wrapped__("thin")


@present
@pytest.mark.parametrize("name", WAYS)
def test_kernels_run_where_eager_shortcuts_do(name: str) -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append((dispatch.ready(), runs_directly()))
        return x.sum()

    WAYS[name][0](look, torch.ones(3))
    ((ready, directly),) = seen
    assert ready == directly
