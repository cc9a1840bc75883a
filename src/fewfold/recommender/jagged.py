"""Rows of different lengths in one tensor (CSR layout)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfold._check import int64_vector
from fewfold._torch import transferred

__all__ = ["Jagged", "check_range", "offsets_of"]


class Jagged(NamedTuple):
    """Concatenated rows of different lengths: row r is ``values[offsets[r]:offsets[r + 1]]``.

    Attributes:
        values: (m,) int64.
        offsets: (rows + 1,) int64, from 0 to m; as for `embedding_bag` with
            ``include_last_offset=True``.
    """

    values: Tensor
    offsets: Tensor

    def to(self, device: torch.device) -> "Jagged":
        """Return the same on a device."""
        return Jagged(transferred(self.values, device), transferred(self.offsets, device))

    @property
    def lengths(self) -> Tensor:
        """Length of each row, (rows,)."""
        return self.offsets.diff()

    @property
    def row(self) -> Tensor:
        """Row of each value, (m,)."""
        lengths = self.lengths
        every = torch.arange(len(lengths), device=lengths.device)
        return torch.repeat_interleave(every, lengths)

    def rows(self, ids: Any) -> "Jagged":
        """Return the rows `ids`, in this order; a slice returns a view."""
        if isinstance(ids, slice):
            start, stop, _ = ids.indices(len(self.offsets) - 1)
            offsets = self.offsets[start : stop + 1]
            return Jagged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        offsets, positions = self.positions(ids)
        return Jagged(self.values[positions], offsets)

    def positions(self, ids: Any) -> tuple[Tensor, Tensor]:
        """Return the offsets of the rows `ids`, and the positions of their entries in `values`."""
        chosen = int64_vector(ids, "ids").to(self.offsets.device)
        check_range(chosen, len(self.offsets) - 1, "ids", "rows")
        starts = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - starts
        offsets = offsets_of(lengths)
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
        return offsets, torch.arange(int(offsets[-1]), device=offsets.device) + shift

    def select(self, mask: Tensor) -> "Jagged":
        """Return the values where `mask` (m,) is true, in the same rows."""
        before = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
        return Jagged(self.values[mask], before[self.offsets])

    def isin(self, others: "Jagged") -> Tensor:
        """Return (m,) true where the same row of `others` has the value too."""
        most = _above(self, others)
        return torch.isin(self.row * most + self.values, others.row * most + others.values)

    def union(self, others: "Jagged") -> "Jagged":
        """Merge the rows with those of `others`, which have other values; values are sorted."""
        most = _above(self, others)
        keys = torch.cat([part.row * most + part.values for part in (self, others)])
        return Jagged(keys.sort().values % most, self.offsets + others.offsets)

    def append(self, others: "Jagged") -> "Jagged":
        """Append each row of `others` to the same row."""
        order = torch.cat([self.row, others.row]).sort(stable=True).indices
        values = torch.cat([self.values, others.values])[order]
        return Jagged(values, self.offsets + others.offsets)

    def sets(self) -> "Jagged":
        """Return the different values of each row, sorted."""
        most = _above(self)
        keys = (self.row * most + self.values).unique()
        lengths = torch.bincount(keys // most, minlength=len(self.offsets) - 1)
        return Jagged(keys % most, offsets_of(lengths))


def offsets_of(lengths: Tensor) -> Tensor:
    """Return the offsets, (rows + 1,), of rows with these lengths."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def check_range(values: Tensor, size: int, name: str, what: str) -> None:
    """Raise unless every value is in [0, size); name the first that is not."""
    if len(values) == 0 or 0 <= int(values.min()) <= int(values.max()) < size:
        return
    wrong = (values < 0) | (values >= size)
    at = int(wrong.nonzero()[0])
    raise ValueError(
        f"{name} must be between 0 and {size - 1}, as there are {size} {what}; "
        f"got {int(values[at])} in row {at}"
    )


def _above(*parts: Jagged) -> int:
    """Return a number above all values."""
    return 1 + max(int(part.values.max()) if len(part.values) else 0 for part in parts)
