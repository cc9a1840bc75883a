"""Find the classes that can be in the support, without storing all scores.

The scores are computed in chunks of classes. Any subset of the scores of a row gives a lower bound
on its threshold: scores below the bound are discarded, and the bound rises with every chunk. The
remaining candidates are a small multiple of the support.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.maps import native_threshold
from fewfold.maps.entmax import entmax

__all__ = ["BLOCK", "Candidates", "Layer", "find_candidates", "widen"]

BLOCK = 1024  # rows that are processed together
_BUFFER = 1 << 20  # scores per chunk: small enough to stay in the cache until they are filtered
_BUFFER_GPU = 1 << 22  # the same for the L2 cache of a GPU
_RUN = 64  # consecutive scores that are discarded by one comparison
_MAX_FRACTION = 64  # a row has at most classes / _MAX_FRACTION candidates ...
_MAX_COUNT = 1024  # ... or this many, whichever is larger; otherwise it is crowded


@dataclass(frozen=True)
class Layer:
    """Linear output layer that is applied to chunks of its classes."""

    weight: Tensor  # (classes, features)
    bias: Tensor | None  # (classes,)

    def detach(self) -> "Layer":
        """Return the layer with detached tensors."""
        return Layer(self.weight.detach(), None if self.bias is None else self.bias.detach())

    def step(self, rows: int, size: int | None) -> int:
        """Return the number of classes per chunk: `size`, or what fits into the cache."""
        buffer = _BUFFER_GPU if self.weight.is_cuda else _BUFFER
        return min(size or max(256, buffer // max(rows, 1)), len(self.weight))

    def part(self, start: int, stop: int) -> "Layer":
        """Return the layer of the classes from `start` to `stop`."""
        return Layer(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])

    def scores(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the scores (rows, classes) in float32 or wider."""
        hidden, weight = widen(hidden), widen(self.weight).t()
        if out is None:  # autocast does not change the dtype of a product with `out`
            out = hidden.new_empty(len(hidden), weight.shape[1])
        if self.bias is None:
            return torch.mm(hidden, weight, out=out)
        return torch.addmm(widen(self.bias), hidden, weight, out=out)

    def chunks(self, hidden: Tensor, size: int | None) -> Iterator[tuple[int, Tensor]]:
        """Yield the first class and the scores of each chunk, in a reused buffer."""
        rows, hidden = len(hidden), widen(hidden)
        step = self.step(rows, size)
        buffer = hidden.new_empty(rows * step)
        for start in range(0, len(self.weight), step):
            part = self.part(start, start + step)
            out = buffer[: rows * len(part.weight)].view(rows, len(part.weight))
            yield start, part.scores(hidden, out)

    def at(self, hidden: Tensor, index: Tensor) -> Tensor:
        """Return the score of one class per row."""
        scores = (widen(hidden) * widen(self.weight[index])).sum(-1)
        return scores if self.bias is None else scores + widen(self.bias[index])


def widen(values: Tensor) -> Tensor:
    """Convert half precision to float32; return other dtypes unchanged."""
    return values.float() if values.element_size() < 4 else values


@dataclass(frozen=True)
class Candidates:
    """Classes that can be in the support, ordered by row."""

    row: Tensor  # (m,) int64, ascending
    column: Tensor  # (m,) int64
    score: Tensor  # (m,)
    crowded: Tensor  # (rows,) bool: too many to store; a crowded row has no candidates here


def find_candidates(
    hidden: Tensor, layer: Layer, alpha: float, chunk_size: int | None = None
) -> Candidates:
    """Return the classes whose probability under entmax with `alpha` can be positive.

    At alpha = 1 all classes have positive probability, and all rows are crowded.
    """
    rows = hidden.shape[0]
    if alpha == 1.0:
        none = hidden.new_zeros(0, dtype=torch.int64)
        crowded = hidden.new_ones(rows, dtype=torch.bool)
        return Candidates(none, none, hidden.new_zeros(0), crowded)
    parts = [
        _find(hidden[start : start + BLOCK], layer, alpha, chunk_size)
        for start in range(0, rows, BLOCK)
    ]
    return Candidates(
        torch.cat([part.row + number * BLOCK for number, part in enumerate(parts)]),
        torch.cat([part.column for part in parts]),
        torch.cat([part.score for part in parts]),
        torch.cat([part.crowded for part in parts]),
    )


def _find(hidden: Tensor, layer: Layer, alpha: float, chunk_size: int | None) -> Candidates:
    """Return the candidates of one block of rows."""
    most = max(layer.weight.shape[0] // _MAX_FRACTION, _MAX_COUNT)
    on_gpu = dispatch.triton_kernel("candidate_streams", hidden, layer.weight)
    if on_gpu is not None or native_threshold.covers(hidden, alpha):
        make: Any = on_gpu or native_threshold.Streams
        streams = make(hidden, alpha, most)
        for start, scores in layer.chunks(hidden, chunk_size):
            streams.push(scores, start)
        column, score, count = streams.take()
        return Candidates(torch.repeat_interleave(count.clamp(min=0)), column, score, count < 0)
    pool = _Pool(hidden, most, alpha)
    for step, (start, scores) in enumerate(layer.chunks(hidden, chunk_size)):
        if step == 0:
            pool.raise_bound(scores)
        pool.add(*filter_chunk(scores, pool.bound, start))
        if (step + 1) & step == 0:  # after 1, 2, 4, ... chunks: the bound rises ever more slowly
            pool.compact()
        if bool(pool.crowded.all()):
            break
    pool.compact()
    return pool.candidates()


def filter_chunk(scores: Tensor, bound: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, class and value of the scores above the bound of their row, ordered by row.

    One pass computes the maxima of short runs; only runs above the bound are searched. NaN passes
    the filter, so that the loss becomes NaN.
    """
    width = scores.shape[1]
    run = _RUN if width % _RUN == 0 else width
    beats = ~(scores.view(len(scores), -1, run).amax(-1) <= bound.unsqueeze(1))
    hit = beats.view(-1).nonzero().squeeze(1)
    owner = hit // (width // run)
    some = scores.view(-1, run)[hit]
    place, column = (~(some <= bound[owner].unsqueeze(1))).nonzero(as_tuple=True)
    first = hit % (width // run) * run + start
    return owner[place], first[place] + column, some[place, column]


class _Pool:
    """Candidates found so far, in a matrix with one row per row of scores, filled from the left."""

    def __init__(self, like: Tensor, most: int, alpha: float) -> None:
        self._alpha = alpha
        self._limit = most
        rows, device = like.shape[0], like.device
        self._score = widen(like).new_full((rows, 0), -math.inf)
        self._column = torch.zeros((rows, 0), dtype=torch.int64, device=device)
        self._count = torch.zeros(rows, dtype=torch.int64, device=device)
        self.bound = self._score.new_full((rows,), -math.inf)
        self.crowded = torch.zeros(rows, dtype=torch.bool, device=device)

    def add(self, row: Tensor, column: Tensor, score: Tensor) -> None:
        """Add new candidates, ordered by row."""
        if row.numel() == 0:
            return
        new = torch.bincount(row, minlength=len(self._count))
        width = int((self._count + new).max())
        if width > max(self._score.shape[1], 64):
            self.compact()  # most stored candidates may be below the current bound
            stays = ~self.crowded[row]
            row, column, score = row[stays], column[stays], score[stays]
            new = torch.bincount(row, minlength=len(self._count))
            width = int((self._count + new).max())
        self._widen(width)
        rank = torch.arange(len(row), device=row.device) - (new.cumsum(0) - new)[row]
        slot = row * self._score.shape[1] + self._count[row] + rank
        self._score.view(-1)[slot] = score
        self._column.view(-1)[slot] = column
        self._count += new

    def compact(self) -> None:
        """Raise the bound with all candidates, drop those below it, and mark crowded rows."""
        width = int(self._count.max()) if len(self._count) else 0
        if width == 0:
            return
        self.raise_bound(self._score[:, :width])
        found = self.candidates()
        counts = torch.bincount(found.row, minlength=len(self._count))
        self.crowded |= counts > self._limit
        self.bound[self.crowded] = math.inf
        self._count.zero_()
        self._score.fill_(-math.inf)
        stays = ~self.crowded[found.row]
        self.add(found.row[stays], found.column[stays], found.score[stays])

    def candidates(self) -> Candidates:
        """Return the candidates above the bound."""
        used = torch.arange(self._score.shape[1], device=self._count.device)
        used = used < self._count.unsqueeze(1)
        keep = used & ~(self._score <= self.bound.unsqueeze(1))
        row, place = keep.nonzero(as_tuple=True)
        return Candidates(row, self._column[row, place], self._score[row, place], self.crowded)

    def raise_bound(self, scores: Tensor) -> None:
        """Raise the bound to the threshold of these scores, which is at most that of all scores."""
        power = self._alpha - 1
        top = scores.amax(1)
        largest = entmax(scores, self._alpha).amax(1)
        floor = top - largest**power / power
        # Rounding must not drop an entry of the support.
        floor = floor - 16 * torch.finfo(floor.dtype).eps * (top.abs() + 1 + 1 / power)
        better = floor.isfinite() & (floor > self.bound)
        self.bound = torch.where(better, floor, self.bound)

    def _widen(self, width: int) -> None:
        """Grow the matrices to at least `width` columns."""
        have = self._score.shape[1]
        if width <= have:
            return
        more = max(width, 2 * have, 64) - have
        rows = self._score.shape[0]
        pad = self._score.new_full((rows, more), -math.inf)
        self._score = torch.cat([self._score, pad], 1)
        self._column = torch.cat([self._column, self._column.new_zeros(rows, more)], 1)
