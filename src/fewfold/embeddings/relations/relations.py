"""Prior knowledge about objects: pairs related to anchors, and pairs of dissimilar objects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold import _check
from fewfold._random import randint
from fewfold.embeddings.initial import cooccurrence
from fewfold.embeddings.relations import wordnet
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["Relations", "dissimilarity_penalty"]


@dataclass(frozen=True, eq=False)
class Relations:
    """Pairs (object, anchor) that are related, and pairs of objects that are not.

    The anchors are objects. With S[u, k] = 0 where object u is related to anchor k and 1 elsewhere,
    the penalty of `proximal` is l1 * ||T * S||_1: a related entry is not penalised, only clamped at
    zero. The zeros of S are stored in sparse row order. An anchor is related to itself.

    Args:
        offsets: (V + 1,) int64, where the anchors of each object begin.
        slots: (n,) int64, the numbers 0..K-1 of those anchors, rising within an object.
        anchors: (K,) int64, the object that each anchor is.
        unrelated: (p, 2) int64, objects that should share no anchor; see `dissimilarity_penalty`.

    Example:
        >>> import fewfold as ff
        >>> known = ff.embeddings.Relations.from_edges([(0, 3), (1, 2)], objects=4, anchors=[2, 3])
        >>> known.exempt(None)
        tensor([[False,  True],
                [ True, False],
                [ True, False],
                [False,  True]])

    Reference: Liang, Zaheer, Wang and Ahmed, "Anchor & Transform: learning sparse embeddings for
    large vocabularies", 2021, section 3.3.
    """

    offsets: Tensor
    slots: Tensor
    anchors: Tensor
    unrelated: Tensor = field(default_factory=lambda: torch.empty(0, 2, dtype=torch.int64))

    def __post_init__(self) -> None:
        _anchors(self.anchors, self.objects)
        _check.jagged(self.slots.cpu(), self.offsets.cpu())
        _inside(self.slots, "slots", len(self.anchors))
        if self._keys.diff().le(0).any():
            raise ValueError("slots must rise within each object; write Relations.from_edges(...)")
        _different(self.unrelated, self.objects)

    @classmethod
    def from_edges(
        cls, edges: Any, *, objects: int, anchors: Any, directed: bool = False, unrelated: Any = ()
    ) -> Self:
        """Build from a graph over the objects.

        Args:
            edges: (m, 2) pairs of objects; pairs without an anchor are ignored.
            objects: number of objects V.
            anchors: (K,) the object that each anchor is.
            directed: read (u, v) as "u is related to anchor v", and not as both ways.
            unrelated: (p, 2) pairs of objects to push apart.
        """
        objects = _check.whole_number(objects, "objects")
        anchors = _anchors(_check.int64_vector(anchors, "anchors"), objects)
        pairs = _pairs(edges, "edges")
        _inside(pairs, "edges", objects)
        pairs = pairs if directed else torch.cat([pairs, pairs.flip(1)])
        pairs = torch.cat([pairs, anchors[:, None].expand(-1, 2)])
        slot_of = torch.full((objects,), -1)
        slot_of[anchors] = torch.arange(len(anchors))
        slot = slot_of[pairs[:, 1]]
        keys = (pairs[:, 0] * len(anchors) + slot)[slot >= 0].unique()
        counts = torch.bincount(keys // len(anchors), minlength=objects)
        offsets = F.pad(counts.cumsum(0), (1, 0))
        return cls(offsets, keys % len(anchors), anchors, _pairs(unrelated, "unrelated"))

    @classmethod
    def from_cooccurrence(
        cls,
        documents: Tensor | Iterable[Any],
        *,
        objects: int,
        anchors: Any,
        window: int = 10,
        least: int = 1,
        width: int | None = None,
    ) -> Self:
        """Build from co-occurrence within a window.

        Args:
            documents: lists of ids, or one stream of them; nothing is near across documents.
            objects: number of objects V.
            anchors: (K,) the object that each anchor is.
            window: an object and an anchor at most this far apart occur together.
            least: minimum number of co-occurrences.
            width: maximum number of anchors of an object, besides itself: those with the largest
                count(u, k) / count(k); None for no limit.
        """
        objects = _check.whole_number(objects, "objects")
        anchors = _check.int64_vector(anchors, "anchors")
        edges = cooccurrence.edges(
            documents, objects, _anchors(anchors, objects), window, least, width
        )
        return cls.from_edges(edges, objects=objects, anchors=anchors, directed=True)

    @classmethod
    def from_wordnet(
        cls,
        words: Sequence[str],
        path: str | Path,
        *,
        anchors: Any,
        kinds: Iterable[wordnet.Kind] = ("synonym", "hypernym", "hyponym", "antonym"),
        unrelated_antonyms: bool = False,
    ) -> Self:
        """Build from the relations of WordNet between words, in all their senses.

        Args:
            words: the objects; inflected ones ("markets") are also looked up by their base form.
            path: WordNet's database directory, which holds ``data.noun`` and its siblings.
            anchors: (K,) the number of the word that each anchor is.
            kinds: what an anchor may be to a word in order to be related to it; by default all
                that the paper lists.
            unrelated_antonyms: make pairs of antonyms the unrelated ones, and not a kind of
                relation.
        """
        anchors = _check.int64_vector(anchors, "anchors")
        _anchors(anchors, len(words))
        chosen = wordnet.check_kinds(kinds)
        if unrelated_antonyms and "antonym" in chosen:
            chosen.remove("antonym")
        lexicon = wordnet.Lexicon.read(path)
        edges = wordnet.edges(lexicon, words, anchors.tolist(), chosen)
        unrelated = wordnet.antonyms(lexicon, words) if unrelated_antonyms else []
        return cls.from_edges(
            edges, objects=len(words), anchors=anchors, directed=True, unrelated=unrelated
        )

    def exempt(self, slots: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Return which entries of a transform are not penalised.

        Args:
            slots: None for a transform with all K columns; or (n, s), the anchors of its entries.
            rows: (n,) objects; None for all.

        Returns:
            (n, K) or (n, s) bool, True where the object is related to the anchor.
        """
        n = self.objects if rows is None else len(rows)
        if slots is not None and (slots.dim() != 2 or len(slots) != n):
            raise ValueError(f"slots must have shape ({n}, s), got {tuple(slots.shape)}")
        device = self.slots.device
        if slots is None:
            return self._dense(None if rows is None else rows.to(device))
        rows = torch.arange(n, device=device) if rows is None else rows.to(device)
        keys = rows[:, None] * len(self.anchors) + slots.to(device)
        return _among(keys, self._keys)

    def to(self, device: torch.device | str) -> "Relations":
        """Return a copy on another device."""
        tensors = (self.offsets, self.slots, self.anchors, self.unrelated)
        return Relations(*(tensor.to(device) for tensor in tensors))

    @property
    def objects(self) -> int:
        """Number of objects V."""
        return len(self.offsets) - 1

    def __len__(self) -> int:
        """Return the number of related pairs (object, anchor)."""
        return len(self.slots)

    def __repr__(self) -> str:
        return (
            f"Relations(objects={self.objects}, anchors={len(self.anchors)}, related={len(self)}, "
            f"unrelated={len(self.unrelated)})"
        )

    @cached_property
    def _keys(self) -> Tensor:
        """object * K + anchor of every pair, ascending, for binary search."""
        rows = torch.arange(self.objects, device=self.slots.device)
        rows = rows.repeat_interleave(self.offsets.diff())
        return rows * len(self.anchors) + self.slots

    def _dense(self, rows: Tensor | None) -> Tensor:
        n = self.objects if rows is None else len(rows)
        exempt = torch.zeros(n, len(self.anchors), dtype=torch.bool, device=self.slots.device)
        if rows is None:
            exempt.view(-1)[self._keys] = True
            return exempt
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        at = torch.arange(n, device=rows.device).repeat_interleave(lengths)
        skipped = self.offsets[rows] - F.pad(lengths.cumsum(0), (1, 0))[:-1]
        place = torch.arange(len(at), device=rows.device) + skipped[at]
        exempt[at, self.slots[place]] = True
        return exempt


def dissimilarity_penalty(
    embedding: AnchorEmbedding,
    pairs: Tensor,
    weight: float,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Penalty on anchors shared by pairs of dissimilar objects, as a loss term.

        weight * sum over (u, v) of abs(t_u) . abs(t_v)

    The cost depends on the number of pairs only, not on the vocabulary.

    Args:
        embedding: of either storage.
        pairs: (p, 2) int64 objects, such as ``relations.unrelated``.
        weight: factor of the sum; the literature gives no value.
        samples: number of pairs to sample with replacement for an unbiased estimate; None for
            all pairs.
        generator: for the sampling.

    Returns:
        A scalar, with gradient to the transform.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.embeddings.relations.relations import dissimilarity_penalty
        >>> table = ff.AnchorEmbedding(3, 8, anchors=2)
        >>> with torch.no_grad():
        ...     _ = table.transform.copy_(torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0]]))
        >>> dissimilarity_penalty(table, torch.tensor([[0, 1], [1, 2]]), 0.5).item()  # (3 + 0) / 2
        1.5
    """
    weight = _check.non_negative_number(weight, "weight")
    pairs = _pairs(pairs, "pairs").to(embedding.transform.device)
    if samples is not None:
        samples = _check.whole_number(samples, "samples")
        if samples < len(pairs):
            weight *= len(pairs) / samples
            pairs = pairs[randint(len(pairs), (samples,), pairs.device, generator=generator)]
    embedding.attached.before_read(pairs.flatten())
    rows = F.embedding(pairs, embedding.transform, sparse=embedding.sparse).abs()
    first, second = rows.unbind(1)
    if embedding.slots is None:
        shared = (first * second)[:, : embedding.active]
        return weight * shared.sum()
    left, right = embedding.slots[pairs].unbind(1)
    same = (left[:, :, None] == right[:, None]).to(rows.dtype)
    return weight * torch.einsum("pi,pj,pij->", first, second, same)


def _inside(ids: Tensor, name: str, size: int) -> None:
    """Raise unless all ids are from 0 to size - 1."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        wrong = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
        raise ValueError(f"{name} must be between 0 and {size - 1}, got {wrong}")


def _different(pairs: Tensor, objects: int) -> None:
    """Raise unless these are pairs of two different objects."""
    _inside(_pairs(pairs, "unrelated"), "unrelated", objects)
    same = pairs[pairs[:, 0] == pairs[:, 1]] if pairs.numel() else pairs
    if len(same):
        raise ValueError(f"unrelated must pair different objects, got {tuple(same[0].tolist())}")


def _pairs(pairs: Any, name: str) -> Tensor:
    given = pairs if isinstance(pairs, Tensor) else torch.as_tensor(pairs)
    if given.numel() == 0:
        return torch.empty(0, 2, dtype=torch.int64, device=given.device)
    if given.dim() != 2 or given.shape[1] != 2:
        raise ValueError(f"{name} must have shape (m, 2), got {tuple(given.shape)}")
    if given.is_floating_point() or given.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {given.dtype}; write {name}.long()")
    return given.to(torch.int64)


def _anchors(anchors: Tensor, objects: int) -> Tensor:
    if not len(anchors):
        raise ValueError("anchors must name at least one object, got none")
    _inside(anchors, "anchors", objects)
    if len(anchors.unique()) < len(anchors):
        raise ValueError("anchors must be different objects, got one of them twice")
    return anchors


def _among(keys: Tensor, rising: Tensor) -> Tensor:
    if not len(rising):
        return torch.zeros_like(keys, dtype=torch.bool)
    place = torch.searchsorted(rising, keys).clamp_(max=len(rising) - 1)
    return rising[place] == keys
