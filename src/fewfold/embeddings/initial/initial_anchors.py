"""Initialisation of anchors: random, from selected objects, or from a pretrained table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fewfold._check import check_scores, fraction, int64_vector, whole_number
from fewfold.embeddings.coding.sparse_coding import learn_dictionary
from fewfold.embeddings.coding.spread_rows import spread_rows
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = [
    "Clusters",
    "Frequent",
    "FrequentThenClusters",
    "Pretrained",
    "RandomBasis",
    "Start",
    "TfIdf",
    "start",
]

_CANDIDATES = 2**17  # maximum number of objects among which seeds are sampled


@dataclass(frozen=True)
class RandomBasis:
    """Random anchors and random weights."""


@dataclass(frozen=True, eq=False)
class Frequent:
    """Anchors are the most frequent objects."""

    counts: Tensor
    """(V,) how often each object occurs"""
    vectors: Tensor | None = None
    """(V, d) the anchors start as the vectors of their objects; None: at random"""


@dataclass(frozen=True, eq=False)
class TfIdf:
    """Anchors are the objects with the largest tf-idf.

    The score is summed over the documents: counts * log(documents / frequency).

    Example:
        >>> how = TfIdf.of([[0, 1, 1], [0, 2], [0, 3]], objects=4)
        >>> how.scores()
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
        often = self.documents / self.frequency.clamp(min=1)
        return self.counts * often.log()


@dataclass(frozen=True, eq=False)
class Clusters:
    """Anchors are objects far apart in a space of features: the seeds of k-means++.

    `cooccurrence_features` makes such a space from lists of objects.
    """

    features: Tensor
    """(V, f) of any kind"""
    vectors: Tensor | None = None
    """as in `Frequent`; the features themselves if they are to be the anchors"""


@dataclass(frozen=True, eq=False)
class FrequentThenClusters:
    """The most frequent objects, then objects far from them and from each other."""

    counts: Tensor
    features: Tensor
    share: float = 0.5
    """share of the anchors that are the most frequent objects"""
    vectors: Tensor | None = None
    """as in `Frequent`"""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Anchors and weights that approximate a table: see `learn_dictionary`."""

    table: Tensor
    """(V, d)"""
    width: int = 8
    """anchors per row, for an embedding that has no width of its own"""
    rounds: int = 10


Start = RandomBasis | Frequent | TfIdf | Clusters | FrequentThenClusters | Pretrained


@torch.no_grad()
def start(
    embedding: AnchorEmbedding, how: Start, generator: torch.Generator | None = None
) -> Tensor:
    """Initialise the anchors and the transform of an embedding, in place.

    The row of an object that is an anchor is the unit vector of that anchor; all other entries of T
    are drawn from a normal distribution of variance 2 / V (absolute values unless signed). Anchors
    are in the order of selection, the best first.

    Args:
        embedding: of either storage.
        how: `RandomBasis()`, `Frequent(counts)`, `TfIdf.of(documents, V)`, `Clusters(features)`,
            `FrequentThenClusters(counts, features)` or `Pretrained(table)`.
        generator: for all random values.

    Returns:
        The objects that are anchors, (K,) int64, for `Relations`; empty if anchors are no objects.

    Example:
        >>> import torch, fewfold as ff
        >>> table = ff.AnchorEmbedding(5, 8, anchors=2)
        >>> ids = start(table, Frequent(torch.tensor([3, 9, 1, 0, 7])))
        >>> ids, table.transform[ids]
        (tensor([1, 4]), tensor([[1., 0.], [0., 1.]], grad_fn=<IndexBackward0>))

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), section 3.1.
    """
    _check_start(embedding, how)  # before anything is drawn
    embedding.attached.before_read(None)
    embedding.reset_parameters(generator)
    if isinstance(how, RandomBasis):
        return torch.empty(0, dtype=torch.int64)
    if isinstance(how, Pretrained):
        _approximate(embedding, how, generator)
        return torch.empty(0, dtype=torch.int64)
    objects = _objects(embedding, how, generator)
    _set_anchor_rows(embedding, objects.to(embedding.anchors.device), generator)
    if how.vectors is not None:
        embedding.anchors.copy_(how.vectors[objects])
    return objects


def _check_start(embedding: AnchorEmbedding, how: Start) -> None:
    """Raise unless the initialisation fits the embedding."""
    if not isinstance(how, Start):
        raise TypeError(
            "how must be RandomBasis(), Frequent(...), TfIdf.of(...), Clusters(...), "
            f"FrequentThenClusters(...) or Pretrained(...), got {type(how).__name__}"
        )
    if isinstance(how, RandomBasis):
        return
    count = len(embedding.anchors)
    if isinstance(how, Pretrained):
        check_scores(how.table, "table")
        _check_rows(how.table, "table", embedding, embedding.embedding_dim)
        if count > len(how.table):
            raise ValueError(f"anchors must be at most the rows {len(how.table)}, got {count}")
        _check_finite(how.table, "table")
        whole_number(how.width, "width")
        whole_number(how.rounds, "rounds", 0)
        return
    room = embedding.num_embeddings - (embedding.padding_idx is not None)
    if count > room:
        raise ValueError(f"anchors that are objects must be at most {room} of them, got {count}")
    if not isinstance(how, Clusters):
        _check_rows(how.counts, "counts", embedding)
        _check_finite(how.counts, "counts")
    if isinstance(how, TfIdf):
        _check_rows(how.frequency, "frequency", embedding)
        _check_finite(how.scores(), "counts")
    if isinstance(how, FrequentThenClusters):
        fraction(how.share, "share")
    if isinstance(how, (Clusters, FrequentThenClusters)):
        check_scores(how.features, "features")
        _check_rows(how.features, "features", embedding, how.features.shape[-1])
        _check_finite(how.features, "features")
    if how.vectors is not None:
        _check_rows(how.vectors, "vectors", embedding, embedding.embedding_dim)


def _check_finite(given: Tensor, name: str) -> None:
    if not given.isfinite().all():
        raise ValueError(f"{name} must be finite, got infinities or NaN")


def _objects(
    embedding: AnchorEmbedding,
    how: Frequent | TfIdf | Clusters | FrequentThenClusters,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the objects that become anchors."""
    count = len(embedding.anchors)
    if isinstance(how, TfIdf):
        return _largest(how.scores(), embedding, count)
    if isinstance(how, Frequent):
        return _largest(how.counts, embedding, count)
    first = torch.empty(0, dtype=torch.int64)
    if isinstance(how, FrequentThenClusters):
        first = _largest(how.counts, embedding, round(how.share * count))
    return torch.cat([first, _far_apart(embedding, how.features, count, first, generator)])


def _largest(scores: Tensor, embedding: AnchorEmbedding, count: int) -> Tensor:
    scores = scores.double().cpu()
    if embedding.padding_idx is not None:
        scores = scores.index_fill(0, torch.tensor([embedding.padding_idx]), -torch.inf)
    return scores.argsort(descending=True, stable=True)[:count]


def _far_apart(
    embedding: AnchorEmbedding,
    features: Tensor,
    count: int,
    first: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    among = torch.randperm(embedding.num_embeddings, generator=generator)
    among = among[~torch.isin(among, first)]
    if embedding.padding_idx is not None:
        among = among[among != embedding.padding_idx]
    among = torch.cat([first, among[: max(_CANDIDATES, count)]])
    found = spread_rows(
        features.detach()[among].cpu(), count - len(first), generator,
        given=torch.arange(len(first)),
    )  # fmt: skip
    return among[found]


def _set_anchor_rows(
    embedding: AnchorEmbedding, objects: Tensor, generator: torch.Generator | None
) -> None:
    """Set the rows of anchor objects to unit vectors and the others to small random values."""
    transform, slots = embedding.transform, embedding.slots
    transform.normal_(0, (2 / embedding.num_embeddings) ** 0.5, generator=generator)
    if not embedding.signed:
        transform.abs_()
    if embedding.padding_idx is not None:
        transform[embedding.padding_idx] = 0
    transform[objects] = 0
    place = number = torch.arange(len(objects), device=objects.device)
    if slots is not None:
        own = slots[objects].long() == number[:, None]
        place = own.int().argmax(1)  # the first place if the row does not have the anchor
        slots[objects, place] = number.to(slots.dtype)
    transform[objects, place] = 1


def _approximate(
    embedding: AnchorEmbedding, how: Pretrained, generator: torch.Generator | None
) -> None:
    width = embedding.width or min(how.width, len(embedding.anchors))
    found = learn_dictionary(
        how.table, len(embedding.anchors), width, signed=embedding.signed, rounds=how.rounds,
        generator=generator,
    )  # fmt: skip
    embedding.anchors.copy_(found.anchors)
    if embedding.slots is None:
        embedding.transform.zero_()
        rows = torch.arange(len(found.slots), device=found.slots.device)[:, None]
        embedding.transform[rows, found.slots] = found.weights.to(embedding.transform.dtype)
    else:
        embedding.transform.copy_(found.weights)
        embedding.slots.copy_(found.slots)
    if embedding.padding_idx is not None:
        embedding.transform[embedding.padding_idx] = 0


def _check_rows(given: Tensor, name: str, embedding: AnchorEmbedding, *tail: int) -> None:
    shape = (embedding.num_embeddings, *tail)
    if not isinstance(given, Tensor) or tuple(given.shape) != shape:
        came = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{name} must be a tensor of shape {shape}, got {came}")
