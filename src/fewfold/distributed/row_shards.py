"""Tables of which each process has some rows, as values that are read block by block."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.distributed.group import Group

__all__ = ["RowShards"]


@dataclass(frozen=True, eq=False)
class RowShards:
    """A table whose row i is on rank i % world, as row i // world of its part.

    Attributes:
        part: (owned rows, ...) the rows of this process.
        count: number of rows of all processes.
        group: the processes.

    Example:
        >>> import torch
        >>> from fewfold.distributed import Group, RowShards
        >>> table = RowShards(torch.arange(6.0).view(3, 2), 3, Group())  # of one process
        >>> table.shape, table.nbytes
        ((3, 2), 24)
    """

    part: Tensor
    count: int
    group: Group

    def __post_init__(self) -> None:
        owned = self.group.owned(self.count)
        if len(self.part) != owned:
            raise ValueError(
                f"rank {self.group.rank} must have {owned} of {self.count} rows, got "
                f"{len(self.part)}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of the whole table."""
        return self.part.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole table."""
        return (self.count, *self.part.shape[1:])

    @property
    def nbytes(self) -> int:
        """Of the whole table."""
        return self.count * self.part.shape[1:].numel() * self.part.element_size()

    def collect(self) -> Tensor | None:
        """Return the whole table on rank 0, None on the others."""
        return self.group.collect(self.part.detach(), self.count)

    def fetch(self, ranges: Sequence[range]) -> Tensor:
        """Return consecutive rows of the table, other ones in each process.

        All processes call this together, with the same ranges.

        Args:
            ranges: for each rank the rows that it gets, perhaps none.
        """
        world, own = self.group.world, ranges[self.group.rank]
        part, width = self.part.detach(), self.part.shape[1:].numel()
        if world == 1:
            return part[own.start : own.stop]
        sent = [part[_place(each, self.group.rank, world)] for each in ranges]
        # As bytes, which all backends send.
        rows = torch.cat(sent).reshape(sum(map(len, sent)), width).view(torch.uint8)
        places = [_place(own, rank, world) for rank in range(world)]
        receive = [place.stop - place.start for place in places]
        got = self.group.exchange(rows, list(map(len, sent)), receive, "tables").split(receive)
        found = rows.new_empty(len(own), rows.shape[1])
        for rank, block in enumerate(got):
            found[(rank - own.start) % world :: world] = block
        return found.view(part.dtype).view(len(own), *part.shape[1:])


def _place(rows: range, rank: int, world: int) -> slice:
    """Return where the part of a rank has those of consecutive rows that it owns."""
    return slice(len(range(rank, rows.start, world)), len(range(rank, rows.stop, world)))
