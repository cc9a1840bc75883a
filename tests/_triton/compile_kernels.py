"""Compile the kernels for GPUs on a machine without one.

`python -m tests._triton.compile_kernels` calls the functions of the kernels on CPU tensors, but
compiles each kernel for an A100 (sm_80) and an H100 (sm_90) instead of running it, and prints the
shared memory that it uses. Unlike the interpreter, this checks types and control flow, and that a
kernel fits; it checks no result. `--quick` compiles the most used ones, for one target.
"""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fewfold._triton import (
    attention,
    attention_backward,
    candidate_streams,
    cell_draws,
    entmax_backward,
    entmax_rows,
    picked_rows,
    row_adam,
)
from fewfold._triton.attention_inputs import AttentionInputs

__all__ = ["Compiler", "main"]

SHARED = 99 * 1024  # bytes of a program on an RTX 30 or RTX 40; data centre GPUs have more
_NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


class Compiler:
    """Stands in for the launch of a kernel: compiles it for the arguments of the call."""

    def __init__(self, targets: tuple[int, ...]) -> None:
        self.targets = targets
        self.kernels: dict[str, str] = {}
        """What each kernel uses, by its name and types."""

    def run(self, kernel: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Compile a kernel; the arguments are those of `JITFunction.run`."""
        values = dict(zip(kernel.arg_names, given, strict=False))
        values |= {name: one for name, one in options.items() if name in kernel.arg_names}
        # As a launch does: a whole number of 1 is a constant, for which the code is specialised.
        constants = {
            p.name: values[p.name]
            for p in kernel.params
            if p.is_constexpr or (isinstance(values[p.name], int) and values[p.name] == 1)
        }
        signature = {
            name: "constexpr" if name in constants else _type(values[name])
            for name in kernel.arg_names
        }
        launch = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
        shown = {name: getattr(one, "value", one) for name, one in constants.items()}
        name = f"{kernel.__module__.split('.')[-1]}.{kernel.fn.__name__} {shown} {signature}"
        if name in self.kernels:
            return
        used = []
        for target in self.targets:
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            found = triton.compile(source, target=GPUTarget("cuda", target, 32), options=launch)
            if found.metadata.shared > SHARED:
                raise ValueError(f"{name} needs {found.metadata.shared} bytes of shared memory")
            used.append(f"sm_{target}: {found.metadata.shared}")
        self.kernels[name] = ", ".join(used)
        print(f"{name}\n    shared bytes {self.kernels[name]}", flush=True)


def _type(value: Any) -> str:
    """Return Triton's name of the type of an argument."""
    if isinstance(value, Tensor):
        return f"*{_NAMES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


def _rows(dtypes: tuple[torch.dtype, ...], alphas: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
    for dtype in dtypes:
        for alpha in alphas:
            for n in sizes:
                rows = torch.zeros(4, n, dtype=dtype)
                probs, *kept = entmax_rows.entmax_rows(rows, alpha)
                learns = isinstance(alpha, Tensor)
                entmax_backward.entmax_rows_backward(probs, rows, alpha, *kept, learns)


def _ones() -> None:
    """Call with sizes of 1, for which the code differs."""
    one = torch.zeros(1, 1)
    probs, *kept = entmax_rows.entmax_rows(one, 1.5)
    entmax_backward.entmax_rows_backward(probs, one, 1.5, *kept)
    head = one.view(1, 1, 1)
    given = AttentionInputs(head, head, head, head.view(1, 1, 1, 1), True, 1.0, 1.5)
    out, stats = attention.sparse_attention(given)
    attention_backward.sparse_attention_backward(given, stats, out, False)
    streams = candidate_streams.candidate_streams(one, 1.5, 1)
    streams.push(one, 0)
    streams.push(one, 1)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    picked_rows.picked_dots(one, one, ids, None)
    picked_rows.picked_pulls(one, one, ids, None, one, None, one)
    scores, code = one, torch.zeros(1, 1, dtype=torch.int32)
    start, chance = torch.arange(2), torch.zeros(2, 1, 1, dtype=torch.float64)
    cell_draws.draw_cells(scores, code, one[0], start, code[0], None, None, chance)
    row_adam.row_adam(
        one, torch.zeros(1, 2, 1), code[0], None, one, lr=1.0, betas=(0.0, 0.999), eps=1e-8,
        weight_decay=0.0, decoupled=False, maximize=False,
    )  # fmt: skip


def _attention(cases: tuple[tuple[torch.dtype, int, Any, str], ...]) -> None:
    for dtype, d, alpha, mask in cases:
        query, key = torch.zeros(2, 100, d, dtype=dtype), torch.zeros(1, 100, d, dtype=dtype)
        masks = {"bool": torch.ones(1, 2, 100, 100) > 0, "float": torch.ones(1, 2, 100, 100)}
        given = AttentionInputs(query, key, key, masks.get(mask), mask == "causal", 1.0, alpha)
        out, stats = attention.sparse_attention(given)
        learns = isinstance(alpha, Tensor)
        attention_backward.sparse_attention_backward(given, stats, out, learns)


def _others(dtypes: tuple[torch.dtype, ...]) -> None:
    ids = torch.zeros(4, 5, dtype=torch.int64)
    offsets = torch.arange(0, 25, 5)
    for dtype in dtypes:
        streams = candidate_streams.candidate_streams(torch.zeros(4, 8, dtype=dtype), 1.5, 1024)
        streams.push(torch.zeros(4, 2000), 0)
        queries, table = torch.zeros(4, 64, dtype=dtype), torch.zeros(9, 64, dtype=dtype)
        by, values = torch.zeros(4, 5, dtype=dtype), torch.zeros(20, 64, dtype=dtype)
        picked_rows.picked_dots(queries, table, ids, None)
        pull = picked_rows.picked_pulls(queries, table, ids, None, by, None, values)
        picked_rows.picked_pulls(queries, table, ids.view(-1), offsets, by, pull, values)
        memory, step = torch.zeros(9, 2, 64, dtype=dtype), torch.zeros(9, dtype=torch.int32)
        for index in (None, torch.arange(4)):
            row_adam.row_adam(
                table, memory, step, index, queries, lr=0.1, betas=(0.9, 0.999), eps=1e-8,
                weight_decay=0.0, decoupled=False, maximize=False,
            )  # fmt: skip
    scores, code = torch.zeros(4, 8), torch.zeros(2, 16, dtype=torch.int32)
    start, item = torch.arange(17), torch.zeros(16, dtype=torch.int32)
    edge, chance = torch.zeros(17, dtype=torch.float64), torch.zeros(2, 4, 5, dtype=torch.float64)
    for weights in ((None, None), (edge, torch.zeros(16))):
        cell_draws.draw_cells(scores, code, torch.zeros(16), start, item, *weights, chance)


def _calls(quick: bool) -> Iterator[None]:
    single, half = torch.float32, torch.bfloat16
    if quick:
        yield _rows((single,), (1.5,), (100, 9000))
        yield _attention(((half, 64, 1.5, "causal"),))
        yield _others((single,))
        yield _ones()
        return
    yield _rows((single,), (1.25, 1.5, 2.0, 3.0, torch.full((4, 1), 1.5)), (100, 8192, 9000))
    yield _rows((half, torch.float64), (1.5,), (100, 9000))
    learnt = torch.full((2, 1), 1.5)
    yield _attention(((single, 64, 1.5, "causal"), (single, 128, 2.0, ""), (half, 64, 1.3, "bool")))
    yield _attention(
        ((half, 128, 1.5, "causal"), (half, 256, 1.5, "float"), (half, 64, learnt, ""))
    )
    yield _others((single, half))


def main(arguments: list[str]) -> None:
    """Compile the kernels."""
    warnings.simplefilter("ignore")
    quick = "--quick" in arguments
    compiler = Compiler((80,) if quick else (80, 90))

    def run(self: Any, *given: Any, **options: Any) -> None:
        compiler.run(self, *given, **options)

    JITFunction.run = run
    for _ in _calls(quick):
        pass
    print(f"{len(compiler.kernels)} kernels compiled")


if __name__ == "__main__":
    main(sys.argv[1:])
