"""Constituency trees: binary bracketings of a sentence, labelled or not."""

import itertools
import math
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.dynamic_program import DynamicProgram, present_first
from fewfold.structured.structures.semirings import Semiring

__all__ = ["ConstituencyTree"]


@registered
@dataclass(frozen=True)
class ConstituencyTree(DynamicProgram):
    """Binary trees over n words; scores are `(..., n, n)`, or `(..., n, n, L)` with labels.

    [i, j] with i <= j is the score of a constituent from word i to word j. The constituents of a
    tree are the whole sentence, every single word, and the two halves of each constituent of
    several words: 2 n - 1 in total. Scores with i > j are ignored. With labels, [i, j, l] is the
    score of the constituent with label l, and each constituent has exactly one label.

    A word whose span [i, i] is masked is absent: the words around it become adjacent, and spans
    that begin or end with it are unavailable. So sentences of a batch may differ in length.

    Args:
        labelled: whether constituents have labels.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.0, 0.4, 0.0], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]])
        >>> ff.sparsemap(scores, ff.structures.ConstituencyTree())
        tensor([[1.0000, 0.6500, 1.0000],
                [0.0000, 1.0000, 0.3500],
                [0.0000, 0.0000, 1.0000]])

    References: Younger, "Recognition and parsing of context-free languages in time n^3", 1967;
    Baker, "Trainable grammars for speech recognition", 1979, for the sum over all trees.
    """

    _: KW_ONLY
    labelled: bool = False

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Number of dimensions of an instance."""
        return 3 if self.labelled else 2

    def check(self, event: torch.Size) -> None:
        if event[0] != event[1] or not event.numel():
            raise ValueError(
                "scores of a constituency tree must be square, by first and last word"
                f"{', with at least one label' if self.labelled else ''}, got {tuple(event)}"
            )

    def slots(self, event: torch.Size) -> Tensor:
        return torch.arange(event[0] ** 2).repeat_interleave(event[2] if self.labelled else 1)

    def width(self, event: torch.Size) -> int:
        return event[0] ** 2

    def inside(self, scores: Tensor, ring: Semiring) -> Tensor:
        """CKY recursion: the value of a span is its score plus the reduction over its splits."""
        impossible = scores == -math.inf
        spans = ring.lift(scores)
        if self.labelled:
            spans, impossible = ring.pick(spans), impossible.all(-1)
        order, length = present_first(~impossible.diagonal(dim1=1, dim2=2))
        spans = spans.gather(-2, order.unsqueeze(-1).expand(spans.shape))
        spans = spans.gather(-1, order.unsqueeze(-2).expand(spans.shape))
        n = spans.shape[-1]
        cells = spans.diagonal(dim1=-2, dim2=-1)
        starts, ends, whole = [cells], [cells], [cells[..., 0]]  # indexed by first and by last word
        for wider in range(1, n):
            left = torch.stack(starts, -1)[..., : n - wider, :]
            right = torch.stack(ends, -1)[..., wider:, :].flip(-1)
            split = ring.pick(ring.join(left, right))
            cells = ring.combine(split, spans.diagonal(wider, -2, -1))
            starts.append(F.pad(cells, (0, wider), value=-math.inf))
            ends.append(F.pad(cells, (wider, 0), value=-math.inf))
            whole.append(cells[..., 0])
        every = torch.stack(whole, -1)
        last = (length - 1).clamp(min=0).unsqueeze(-1)
        found = every.gather(-1, last.expand(*every.shape[:-1], 1)).squeeze(-1)
        empty = ring.lift(torch.zeros_like(length, dtype=scores.dtype))
        return torch.where(length == 0, empty, found)

    def count(self, event: torch.Size) -> int:
        n = event[0]
        shapes = math.comb(2 * n - 2, n - 1) // n
        return int(shapes * (event[2] ** (2 * n - 1) if self.labelled else 1))

    def enumerate(self, event: torch.Size) -> Tensor:
        labels = range(event[2] if self.labelled else 1)
        found = []
        for spans in _brackets(0, event[0] - 1):
            for chosen in itertools.product(labels, repeat=len(spans)):
                one = torch.zeros(*event[:2], len(labels), dtype=torch.bool)
                first, last = zip(*spans, strict=True)
                one[list(first), list(last), list(chosen)] = True
                found.append(one.view(event))
        return torch.stack(found)


def _brackets(first: int, last: int) -> list[list[tuple[int, int]]]:
    """All binary trees over the words from first to last, each a list of spans."""
    if first == last:
        return [[(first, last)]]
    return [
        [(first, last), *left, *right]
        for split in range(first, last)
        for left in _brackets(first, split)
        for right in _brackets(split + 1, last)
    ]
