"""Windows of item sequences: cut to a length, batched by length, padded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.recommender.interactions import Jagged

__all__ = ["Windows", "padded"]


@dataclass(frozen=True, eq=False)
class Windows:
    """Parts of sequences, as ranges of one flat tensor of items.

    Attributes:
        values: (m,) items of all sequences.
        starts: (rows,) where each window starts in `values`.
        lengths: (rows,) number of items of each window.
    """

    values: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def last(cls, sequences: Jagged, length: int) -> "Windows":
        """Return the last `length` items of each sequence."""
        lengths = sequences.lengths.clamp(max=length)
        return cls(sequences.values, sequences.offsets[1:] - lengths, lengths)

    @classmethod
    def every(cls, sequences: Jagged, length: int) -> "Windows":
        """Return windows of at most `length` + 1 items with every neighbouring pair in just one.

        A longer sequence is cut from its end; neighbouring windows share one item.
        """
        pairs = (sequences.lengths - 1).clamp(min=0)
        counts = -(-pairs // length)
        row = torch.repeat_interleave(counts)
        number = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
        ends = sequences.offsets[1:][row] - number * length
        starts = (ends - length - 1).clamp(min=sequences.offsets[:-1][row])
        return cls(sequences.values, starts, ends - starts)

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the items of these rows, and where there are any; see `padded`."""
        return padded(self.values, self.starts[rows], self.lengths[rows])

    def batches(self, tokens: int, generator: torch.Generator) -> list[Tensor]:
        """Return all rows in random batches of about equal lengths, always as many.

        A batch has at most `tokens` places, padding included, but at least one row.
        """
        shuffled = torch.randperm(len(self.lengths), generator=generator)
        by_length = self.lengths[shuffled].sort(stable=True)
        found = _cut(shuffled[by_length.indices], by_length.values.tolist(), tokens)
        order = torch.randperm(len(found), generator=generator).tolist()
        return [found[place] for place in order]


def _cut(rows: Tensor, lengths: list[int], tokens: int) -> list[Tensor]:
    """Cut rows of increasing lengths into batches of at most `tokens` padded places."""
    sizes, start = [], 0
    for end, length in enumerate(lengths):
        if end > start and (end - start + 1) * length > tokens:
            sizes.append(end - start)
            start = end
    sizes.append(len(lengths) - start)
    return list(rows.split(sizes))


def padded(values: Tensor, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return ranges of `values` as rows (rows, longest), padded on the right, and a mask.

    The padding holds item 0: no earlier position of a causal network can see it.
    """
    steps = torch.arange(int(lengths.max()) if len(lengths) else 0)
    there = steps < lengths.unsqueeze(1)
    at = (starts.unsqueeze(1) + steps).where(there, 0)
    return values[at].where(there, 0), there
