"""Adam for the rows that have a gradient.

For R rows of d entries of b bytes: 7 R d b + 16 R bytes (weight, two moments and gradient are read,
the first three written, in random rows), and 14 R d operations. A dense Adam moves 7 n d b bytes
for all n rows.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["row_adam"]

BLOCK = 1024  # entries of a row that are updated at once


@triton.jit
def _update(
    index_ptr, grad_ptr, weight_ptr, memory_ptr, step_ptr, d, lr, decay, shrink, sign,
    HAS_INDEX: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr,
    LOG2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0).to(tl.int64)
    row = entry
    if HAS_INDEX:
        row = tl.load(index_ptr + entry).to(tl.int64)
    age = tl.load(step_ptr + row) + 1
    # In float64: 1 - b2^t loses three digits in float32.
    wide = age.to(tl.float64)
    step = (lr / (1 - tl.exp(wide * LOG1))).to(tl.float32)
    root = tl.sqrt(1 - tl.exp(wide * LOG2)).to(tl.float32)
    for start in range(0, d, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < d
        weight = tl.load(weight_ptr + row * d + i, mask=inside, other=0.0).to(tl.float32)
        grad = sign * tl.load(grad_ptr + entry * d + i, mask=inside, other=0.0).to(tl.float32)
        mean_at = memory_ptr + row * 2 * d + i
        mean = tl.load(mean_at, mask=inside, other=0.0).to(tl.float32)
        square = tl.load(mean_at + d, mask=inside, other=0.0).to(tl.float32)
        weight *= shrink
        grad += decay * weight
        mean += (1 - BETA1) * (grad - mean)
        square = square * BETA2 + (1 - BETA2) * grad * grad
        weight -= step * mean / (tl.sqrt(square) / root + EPS)
        tl.store(weight_ptr + row * d + i, weight.to(weight_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_at, mean.to(memory_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_at + d, square.to(memory_ptr.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # all threads have read the count
    tl.store(step_ptr + row, age)


def row_adam(
    weight: Tensor,
    memory: Tensor,
    step: Tensor,
    index: Tensor | None,
    grad: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Update distinct rows of a contiguous table and of its state in place; all if no index."""
    count = len(grad)
    if count == 0:
        return
    d = grad.numel() // count
    logs = [math.log(beta) if beta else -1e4 for beta in betas]
    _update[(count,)](
        grad if index is None else index, grad, weight, memory, step, d, lr,
        0.0 if decoupled else weight_decay, 1 - lr * weight_decay if decoupled else 1.0,
        -1.0 if maximize else 1.0, HAS_INDEX=index is not None, BETA1=betas[0], BETA2=betas[1],
        LOG1=logs[0], LOG2=logs[1], EPS=eps,
        BLOCK=min(BLOCK, triton.next_power_of_2(d)), num_warps=1 if d <= 128 else 4,
    )  # fmt: skip
    torch.autograd.graph.increment_version([weight])
