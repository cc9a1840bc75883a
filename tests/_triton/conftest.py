"""Run Triton's kernels by its interpreter on CPU tensors; without Triton collect nothing.

`TRITON_INTERPRET=0` in the environment collects those tests alone that run on a GPU as well.
"""

import importlib
import importlib.util
import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py", "compile_kernels.py"]
elif os.environ["TRITON_INTERPRET"] == "0":
    collect_ignore_glob = [f"test_{name}*" for name in ("attention", "entmax", "linear", "rows")]


@pytest.fixture
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply matrices of bfloat16, which it holds as the bits of integers."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder, language = interpreter.interpreter_builder, interpreter.tl
    product = builder.create_dot

    def wide(factor: Any) -> Any:
        if factor.dtype.scalar != language.bfloat16:
            return factor
        bits = factor.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), language.float32)

    def create_dot(a: Any, b: Any, *rest: Any) -> Any:
        return product(wide(a), wide(b), *rest)

    monkeypatch.setattr(builder, "create_dot", create_dot)
