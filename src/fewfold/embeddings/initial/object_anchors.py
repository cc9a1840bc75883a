"""Initialisation with objects as anchors: the most frequent ones, or ones far from each other."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fewfold._check import check_scores, fraction, int64_vector
from fewfold._random import normal_, randperm
from fewfold.embeddings.coding.spread_rows import spread_rows
from fewfold.embeddings.initial.initial_anchors import (
    AnchorInitialisation,
    check_finite,
    check_rows,
)
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["Clusters", "Frequent", "FrequentThenClusters", "TfIdf"]

_CANDIDATES = 2**17  # maximum number of objects among which seeds are sampled


class _ObjectAnchors(AnchorInitialisation):
    """Base class: subclasses select the objects that become anchors."""

    vectors: Tensor | None

    @abstractmethod
    def check_values(self, embedding: AnchorEmbedding) -> None:
        """Raise unless the values by which objects are selected fit the embedding."""

    @abstractmethod
    def objects(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        """Return the objects that become anchors, (K,), the best first."""

    def check(self, embedding: AnchorEmbedding) -> None:
        count = len(embedding.anchors)
        most = embedding.num_embeddings - (embedding.padding_idx is not None)
        if count > most:
            raise ValueError(
                f"anchors that are objects must be at most {most} of them, got {count}"
            )
        self.check_values(embedding)
        if self.vectors is not None:
            check_rows(self.vectors, "vectors", embedding, embedding.embedding_dim)

    def apply(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        objects = self.objects(embedding, generator).to(embedding.anchors.device)
        _set_anchor_rows(embedding, objects, generator)
        if self.vectors is not None:
            embedding.anchors.copy_(self.vectors[objects.to(self.vectors.device)])
        return objects


@dataclass(frozen=True, eq=False)
class Frequent(_ObjectAnchors):
    """Anchors are the most frequent objects."""

    counts: Tensor
    """(V,) how often each object occurs"""
    vectors: Tensor | None = None
    """(V, d) initial anchors are the vectors of their objects; random if None"""

    def check_values(self, embedding: AnchorEmbedding) -> None:
        _check_counts(self.counts, embedding)

    def objects(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        return _largest(self.counts, embedding, len(embedding.anchors))


@dataclass(frozen=True, eq=False)
class TfIdf(_ObjectAnchors):
    """Anchors are the objects with the largest tf-idf.

    The score is summed over the documents: counts * log(documents / frequency).

    Example:
        >>> method = TfIdf.of([[0, 1, 1], [0, 2], [0, 3]], objects=4)
        >>> method.scores()
        tensor([0.0000, 2.1972, 1.0986, 1.0986])
    """

    counts: Tensor
    """(V,) how often each object occurs"""
    frequency: Tensor
    """(V,) number of documents with each object"""
    documents: int
    """number of documents"""
    vectors: Tensor | None = None
    """as in `Frequent`"""

    @classmethod
    def of(cls, documents: Iterable[Any], objects: int, vectors: Tensor | None = None) -> Self:
        """Build from lists of ids."""
        counts, frequency, number = torch.zeros(objects), torch.zeros(objects), 0
        for document in documents:
            ids, times = int64_vector(document, "documents").unique(return_counts=True)
            if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < objects:
                raise ValueError(f"documents must hold ids from 0 to objects - 1 = {objects - 1}")
            counts[ids] += times
            frequency[ids] += 1
            number += 1
        return cls(counts, frequency, number, vectors)

    def scores(self) -> Tensor:
        """Return the scores (V,), zero for objects that never occur."""
        rarity = self.documents / self.frequency.clamp(min=1)
        return self.counts * rarity.log()

    def check_values(self, embedding: AnchorEmbedding) -> None:
        _check_counts(self.counts, embedding)
        check_rows(self.frequency, "frequency", embedding)
        check_finite(self.scores(), "counts")

    def objects(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        return _largest(self.scores(), embedding, len(embedding.anchors))


@dataclass(frozen=True, eq=False)
class Clusters(_ObjectAnchors):
    """Anchors are objects far apart in a space of features: the seeds of k-means++.

    `cooccurrence_features` makes such a space from lists of objects.
    """

    features: Tensor
    """(V, f) of any kind"""
    vectors: Tensor | None = None
    """as in `Frequent`; the features themselves if they are to be the anchors"""

    def check_values(self, embedding: AnchorEmbedding) -> None:
        _check_features(self.features, embedding)

    def objects(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        none = torch.empty(0, dtype=torch.int64)
        return _with_far_objects(none, embedding, self.features, generator)


@dataclass(frozen=True, eq=False)
class FrequentThenClusters(_ObjectAnchors):
    """The most frequent objects, then objects far from them and from each other."""

    counts: Tensor
    features: Tensor
    share: float = 0.5
    """share of the anchors that are the most frequent objects"""
    vectors: Tensor | None = None
    """as in `Frequent`"""

    def check_values(self, embedding: AnchorEmbedding) -> None:
        _check_counts(self.counts, embedding)
        fraction(self.share, "share")
        _check_features(self.features, embedding)

    def objects(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        count = round(self.share * len(embedding.anchors))
        frequent = _largest(self.counts, embedding, count)
        return _with_far_objects(frequent, embedding, self.features, generator)


def _check_counts(counts: Tensor, embedding: AnchorEmbedding) -> None:
    check_rows(counts, "counts", embedding)
    check_finite(counts, "counts")


def _check_features(features: Tensor, embedding: AnchorEmbedding) -> None:
    check_scores(features, "features")
    check_rows(features, "features", embedding, features.shape[-1])
    check_finite(features, "features")


def _largest(scores: Tensor, embedding: AnchorEmbedding, count: int) -> Tensor:
    """Return the objects with the largest scores, without the padding."""
    scores = scores.double().cpu()
    if embedding.padding_idx is not None:
        scores = scores.index_fill(0, torch.tensor([embedding.padding_idx]), -torch.inf)
    return scores.argsort(descending=True, stable=True)[:count]


def _with_far_objects(
    first: Tensor, embedding: AnchorEmbedding, features: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Append objects far from the first ones and from each other, up to the number of anchors."""
    count = len(embedding.anchors)
    candidates = randperm(embedding.num_embeddings, first.device, generator=generator)
    candidates = candidates[~torch.isin(candidates, first)]
    if embedding.padding_idx is not None:
        candidates = candidates[candidates != embedding.padding_idx]
    candidates = torch.cat([first, candidates[: max(_CANDIDATES, count)]])
    selected = spread_rows(
        features.detach().cpu()[candidates], count - len(first), generator,
        given=torch.arange(len(first)),
    )  # fmt: skip
    return torch.cat([first, candidates[selected]])


def _set_anchor_rows(
    embedding: AnchorEmbedding, objects: Tensor, generator: torch.Generator | None
) -> None:
    """Set the rows of anchor objects to unit vectors and the others to small random values."""
    transform, slots = embedding.transform, embedding.slots
    normal_(transform, 0, (2 / embedding.num_embeddings) ** 0.5, generator=generator)
    if not embedding.signed:
        transform.abs_()
    if embedding.padding_idx is not None:
        transform[embedding.padding_idx] = 0
    transform[objects] = 0
    column = anchor = torch.arange(len(objects), device=objects.device)
    if slots is not None:
        is_anchor = slots[objects].long() == anchor[:, None]
        column = is_anchor.int().argmax(1)  # the first column if the row does not have the anchor
        slots[objects, column] = anchor.to(slots.dtype)
    transform[objects, column] = 1
