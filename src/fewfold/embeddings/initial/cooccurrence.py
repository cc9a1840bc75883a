"""Co-occurrence of objects and anchors within a window in lists of ids."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fewfold import _check

__all__ = ["edges"]


def edges(
    documents: Tensor | Iterable[Any],
    objects: int,
    anchors: Tensor,
    window: int = 10,
    least: int = 1,
    width: int | None = None,
) -> Tensor:
    """Return pairs (object, anchor object), (m, 2), within `window` at least `least` times.

    Example:
        >>> import torch
        >>> from fewfold.embeddings.initial.cooccurrence import edges
        >>> edges([[0, 1, 2], [3, 1]], objects=4, anchors=torch.tensor([1]), window=1).tolist()
        [[0, 1], [2, 1], [3, 1]]
    """
    window = _check.whole_number(window, "window")
    least = _check.whole_number(least, "least")
    tokens, document = _joined(documents, objects)
    slot_of = torch.full((objects,), -1)
    slot_of[anchors] = torch.arange(len(anchors))
    slots = slot_of[tokens]
    keys = []
    for distance in range(1, min(window, len(tokens) - 1) + 1):
        together = document[distance:] == document[:-distance]
        for near, of in (
            (slots[distance:], tokens[:-distance]),
            (slots[:-distance], tokens[distance:]),
        ):
            chosen = together & (near >= 0)
            keys.append(of[chosen] * len(anchors) + near[chosen])
    met, count = torch.cat(keys or [tokens[:0]]).unique(return_counts=True)
    met, count = met[count >= least], count[count >= least]
    row, slot = met // len(anchors), met % len(anchors)
    pairs = torch.stack([row, anchors[slot]], 1)
    if width is None:
        return pairs
    # count(u, k) / count(k) orders the anchors of one object as mutual information does.
    lift = count / torch.bincount(tokens, minlength=objects)[pairs[:, 1]]
    return pairs[_best(row, lift, pairs[:, 0] != pairs[:, 1], _check.whole_number(width, "width"))]


def _best(row: Tensor, lift: Tensor, other: Tensor, width: int) -> Tensor:
    """Return the indices of the `width` largest lifts of each row, without self-pairs."""
    order = torch.argsort(lift, descending=True, stable=True)
    order = order[other[order]]
    order = order[torch.argsort(row[order], stable=True)]
    start = torch.searchsorted(row[order].contiguous(), row[order])
    rank = torch.arange(len(order)) - start
    return order[rank < width]


def _joined(documents: Tensor | Iterable[Any], objects: int) -> tuple[Tensor, Tensor]:
    """Return all tokens and the index of the document of each."""
    lists = [documents] if isinstance(documents, Tensor) else list(documents)
    if lists and not isinstance(documents, Tensor) and torch.as_tensor(lists[0]).dim() == 0:
        lists = [lists]  # one stream as a plain list
    parts = [_check.int64_vector(one, "documents") for one in lists]
    tokens = torch.cat(parts or [torch.empty(0, dtype=torch.int64)])
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < objects:
        raise ValueError(f"documents must hold ids from 0 to objects - 1 = {objects - 1}")
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    return tokens, torch.arange(len(parts)).repeat_interleave(lengths)
