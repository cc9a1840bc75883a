"""The two paths of computation: native kernels and plain torch."""

import os
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from fewfold import _native

# For tests that call the kernels themselves; where they must be there, their absence is an error.
kernels_only = [
    pytest.mark.native,
    pytest.mark.skipif(
        _native.instruction_set() is None and not os.environ.get("CI"),
        reason="the kernels are not built or switched off",
    ),
]


def on_path(name: str) -> AbstractContextManager[None]:
    """A context in which the maps run natively, or in pure torch."""
    if name == "torch":
        return _native.disabled()
    if _native.ready(torch.zeros(1)):
        return nullcontext()
    if os.environ.get("FEWFOLD_NATIVE") == "0":
        pytest.skip("FEWFOLD_NATIVE=0 asks for pure torch")
    if os.environ.get("CI"):
        pytest.fail("the extension is not built; to test without it set FEWFOLD_NATIVE=0")
    pytest.skip("the extension is not built: pip install -e .")
