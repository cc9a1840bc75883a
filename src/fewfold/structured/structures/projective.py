"""Projective trees in plain torch: Eisner's algorithm with any reduction."""

import math

import torch
from torch import Tensor

from fewfold.structured.structures.semirings import Reduce

__all__ = ["inside"]


def inside(scores: Tensor, single: bool, reduce: Reduce) -> Tensor:
    """Reduce the scores of all projective trees to (...,); -inf where there are none.

    Args:
        scores: (..., n, n) by head and word, the root on the diagonal.
        single: whether exactly one word is attached to the root.
        reduce: `best_of`, `log_sum_of` or `sample_of(generator)`.
    """
    arcs, empty = _attach_absent_words(scores, single)
    root = arcs.diagonal(dim1=-2, dim2=-1)
    if not single:  # the root is the first position, and has no head
        arcs = torch.cat([root.unsqueeze(-2), arcs], -2)
        arcs = torch.nn.functional.pad(arcs, (1, 0), value=-math.inf)
    right, left = _spans(arcs, reduce)
    if not single:
        return right[-1][..., 0]
    n = root.shape[-1]
    each = [left[r][..., 0] + right[n - 1 - r][..., r] + root[..., r] for r in range(n)]
    return torch.where(empty, 0.0, reduce(torch.stack(each, -1)))


def _spans(arcs: Tensor, reduce: Reduce) -> tuple[list[Tensor], list[Tensor]]:
    """Values of complete spans headed by their first and last position, by width, then start."""
    n = arcs.shape[-1]
    zeros = torch.zeros_like(arcs[..., 0])
    right, left = [zeros], [zeros]
    to_right, to_left = [zeros], [zeros]  # with an arc between both ends
    for d in range(1, n):
        count = n - d
        split = reduce(_join_spans(right, left, [(k, d - 1 - k, k + 1) for k in range(d)], count))
        to_right.append(split + arcs.diagonal(d, -2, -1))
        to_left.append(split + arcs.diagonal(-d, -2, -1))
        ways = [(k, d - k, k) for k in range(d + 1)]
        right.append(reduce(_join_spans(to_right, right, ways[1:], count)))
        left.append(reduce(_join_spans(left, to_left, ways[:-1], count)))
    return right, left


def _join_spans(
    first: list[Tensor], second: list[Tensor], ways: list[tuple[int, int, int]], count: int
) -> Tensor:
    """Values (..., count, ways) of a span of width a joined to one of width b, `step` later."""
    both = [first[a][..., :count] + second[b][..., step : step + count] for a, b, step in ways]
    return torch.stack(both, -1)


def _attach_absent_words(scores: Tensor, single: bool) -> tuple[Tensor, Tensor]:
    """Attach absent words to a neighbour, and return whether no word is present.

    Such an arc crosses no other, has score 0 and is unique, so results do not change.
    """
    n = scores.shape[-1]
    absent = (scores == -math.inf).all(-2)
    without = (scores == -math.inf) | absent.unsqueeze(-1) | absent.unsqueeze(-2)
    leading = absent.long().cumprod(-1).bool()
    head = torch.arange(n, device=scores.device) - 1
    head = torch.where(leading, head + 2, head) if single else head.clamp(min=0)
    place = torch.arange(n, device=scores.device).unsqueeze(-1)
    attached = absent.unsqueeze(-2) & (place == head.unsqueeze(-2))
    return scores.masked_fill(without, -math.inf).masked_fill(attached, 0.0), absent.all(-1)
