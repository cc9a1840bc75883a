"""Tables with row i on rank i % world: initial rows, sums of gradients, rows of a proposal."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import look_up
from fewfold.sampling.item_rows import ItemRows

__all__ = ["ShardedRows", "check_shares", "drawn_rows", "sum_shared"]

_ROWS = 4096  # drawn at once; a multiple of 16, the numbers that torch draws together


def check_shares(group: Group, items: int) -> None:
    """Raise ValueError if a process would have no items."""
    if items < group.world:
        raise ValueError(
            f"tables of {items} items cannot be divided among {group.world} processes; start fewer"
        )


def drawn_rows(group: Group, out: Tensor, count: int, draw: Callable[[int], Tensor]) -> None:
    """Fill a process's part of a table with rows that are drawn for all processes, in blocks.

    Torch draws the same numbers in blocks as at once if no block is very short.

    Args:
        group: the processes.
        out: (owned rows, d) the part of this process.
        count: number of rows of all processes.
        draw: returns so many new rows, (n, d).
    """
    owned = 0
    for rows in _blocks(count):
        block = draw(len(rows))
        own = block[(group.rank - rows.start) % group.world :: group.world]
        out[owned : owned + len(own)] = own
        owned += len(own)


def _blocks(count: int) -> Iterator[range]:
    start = 0
    while start < count:
        stop = count if count - start < 2 * _ROWS else start + _ROWS
        yield range(start, stop)
        start = stop


def sum_shared(
    group: Group,
    numbers: Tensor,
    shared: Sequence[nn.Parameter],
    rows: Tensor,
    counts: list[int],
    meanwhile: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum numbers and the gradients of shared parameters over processes; gather rows.

    Args:
        group: the processes.
        numbers: (n,) of this process.
        shared: parameters that are the same in all processes.
        rows: of this process.
        counts: number of rows of each process.
        meanwhile: called while the others are waited for.

    Returns:
        The rows of all processes, and the sums (n,).
    """
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in shared]
    flat = torch.cat([*(grad.flatten() for grad in grads), numbers])
    every, flat = group.gather_and_sum(rows, counts, flat, "layers and input gradients", meanwhile)
    *parts, numbers = flat.split([*(p.numel() for p in shared), len(numbers)])
    for param, grad in zip(shared, parts, strict=True):
        param.grad = grad.view(param.shape)
    return every, numbers


class ShardedRows(ItemRows):
    """Item vectors of which this process has some."""

    def __init__(self, local: Tensor, group: Group, count: int) -> None:
        super().__init__(local)
        self._group, self._count = group, count

    @property
    def count(self) -> int:
        """Number of all items."""
        return self._count

    def with_rows(self, local: Tensor) -> Self:
        """Return other vectors of the same items."""
        return type(self)(local, self._group, self._count)

    def take(self, ids: Tensor) -> Tensor:
        """Return the vectors of these items, fetched from their owners."""
        return look_up(self._group, self.local, ids, "proposal")

    def gather(self, values: Tensor) -> Tensor:
        """Return what every process computed of its vectors, for all items."""
        return self._group.merge(values, self._count, "proposal")
