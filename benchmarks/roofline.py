"""The time that the GPU kernels should take: the largest of their times at each peak of a GPU.

It is a lower bound, without the time of a launch. Of the peak of matrix products, published kernels
of attention reach a third to three quarters.
"""

from dataclasses import dataclass

import torch

from fewfold._timing import race

__all__ = [
    *("A100", "H100", "GPU", "Work", "adam", "attention", "attention_backward", "draws"),
    *("entmax", "entmax_backward", "linear_loss", "picked_gradients", "picked_scores"),
]

_OPERATIONS = 40  # per entry: 10 steps of the solution, 4 operations each


@dataclass(frozen=True)
class GPU:
    """Peaks of a GPU: bytes per second of memory, operations per second of matrices and vectors."""

    name: str
    bandwidth: float
    matrix: float
    """bfloat16 with sums in float32, without structured sparsity."""
    vector: float
    """float32, outside of the matrix units."""
    units: int
    """Multiprocessors; fewer programs than these leave bandwidth unused."""

    @classmethod
    def measured(cls) -> "GPU":
        """Return the current GPU, with the peaks that a copy and a matrix product reach."""
        rows = torch.empty(2**27, device="cuda")
        square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

        def copy() -> None:
            rows.clone()
            torch.cuda.synchronize()

        def multiply() -> None:
            square @ square
            torch.cuda.synchronize()

        times = race({"copy": copy, "product": multiply}, seconds=2.0)
        matrix = 2 * 8192**3 / times["product"].median
        bandwidth = 2 * rows.nbytes / times["copy"].median
        units = torch.cuda.get_device_properties().multi_processor_count
        return cls(torch.cuda.get_device_name(), bandwidth, matrix, matrix / 16, units)


A100 = GPU("A100 80GB SXM", 2.0e12, 312e12, 19.5e12, 108)
H100 = GPU("H100 SXM", 3.35e12, 989e12, 67e12, 132)


@dataclass(frozen=True)
class Work:
    """Bytes moved from and to memory, and operations, of a kernel of so many programs."""

    bytes: float
    matrix: float = 0.0
    vector: float = 0.0
    programs: int = 2**31

    def seconds(self, gpu: GPU) -> float:
        """Return the largest of the times at the peaks of the GPU."""
        busy = min(1.0, self.programs / gpu.units)
        return (
            max(self.bytes / gpu.bandwidth, self.matrix / gpu.matrix, self.vector / gpu.vector)
            / busy
        )

    def __add__(self, other: "Work") -> "Work":
        """Return the work of two kernels."""
        return Work(
            self.bytes + other.bytes,
            self.matrix + other.matrix,
            self.vector + other.vector,
            min(self.programs, other.programs),
        )


def entmax(rows: int, n: int, b: int = 4, *, candidates: int = 100, short: int = 8192) -> Work:
    """Return the work of sparsemax or 1.5-entmax; `candidates` per row of more than `short`."""
    if n <= short:
        return Work(2 * rows * n * b, vector=_OPERATIONS * rows * n)
    vector = rows * (2 * n + _OPERATIONS * candidates)
    return Work(rows * (2 * n * b + 24 * candidates), vector=vector, programs=rows)


def entmax_backward(
    rows: int, n: int, b: int = 4, *, candidates: int = 100, short: int = 8192
) -> Work:
    """Return the work of the gradient of sparsemax or 1.5-entmax."""
    if n <= short:
        return Work(3 * rows * n * b, vector=8 * rows * n)
    vector = 8 * rows * candidates
    return Work(rows * (n * b + 16 * candidates), vector=vector, programs=rows)


def attention(
    heads: int, queries: int, keys: int, d: int, b: int = 2, *, causal: bool = False,
    active: float = 1.0, steps: int = 3,
) -> Work:  # fmt: skip
    """Return the work of attention: two passes over all keys, the others over `active` blocks.

    Args:
        steps: steps of Newton after the first one.
    """
    pairs = heads * queries * keys * (0.5 if causal else 1.0)
    passes = 2 + active * steps
    return Work(
        2 * heads * (queries + keys) * d * b,
        matrix=2 * pairs * (d * passes + active * d),
        vector=6 * pairs * passes,
    )


def attention_backward(
    heads: int, queries: int, keys: int, d: int, b: int = 2, *, causal: bool = False,
    active: float = 1.0,
) -> Work:  # fmt: skip
    """Return the work of the gradients of attention, whose kernels read the active blocks only."""
    pairs = heads * queries * keys * (0.5 if causal else 1.0) * active
    return Work(
        heads * (4 * queries + 4 * keys) * d * b, matrix=2 * pairs * d * 9, vector=30 * pairs
    )


def linear_loss(rows: int, features: int, classes: int, *, support: int = 50) -> Work:
    """Return the work of `linear_entmax_loss`, forward and backward, with float32 products."""
    touched = rows * support
    return Work(
        4 * (classes * features + rows * features + 3 * touched * features),
        vector=2 * rows * classes * (features + 1) + 6 * touched * features,
    )


def picked_scores(queries: int, picked: int, d: int, b: int = 4) -> Work:
    """Return the work of the scores of `picked` items of each query."""
    entries = queries * picked
    return Work((entries + queries) * d * b + entries * (8 + b), vector=2 * entries * d)


def picked_gradients(queries: int, picked: int, d: int, b: int = 4) -> Work:
    """Return the work of the gradients of these scores, of queries and of items."""
    entries = queries * picked
    return Work(2 * (entries + queries) * d * b + entries * (8 + b), vector=3 * entries * d)


def adam(rows: int, d: int, b: int = 4) -> Work:
    """Return the work of an update of `rows` distinct rows."""
    return Work(7 * rows * d * b + 16 * rows, vector=14 * rows * d)


def draws(queries: int, n: int, cells: int, codebooks: int = 2) -> Work:
    """Return the work of `n` draws per query from the cells of a multi-index."""
    return Work(
        queries * (16 * cells + n * (52 + 16)),
        vector=queries * (cells * 2 * (codebooks + 8) + n * 4 * cells.bit_length()),
    )
