"""Initialisation of an anchor table: random, or from a pretrained table."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores, whole_number
from fewfold.embeddings.coding.sparse_coding import learn_dictionary
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = [
    "AnchorInitialisation",
    "Pretrained",
    "RandomBasis",
    "check_finite",
    "check_rows",
    "initialise_anchors",
]


class AnchorInitialisation(ABC):
    """Base class of the methods of `initialise_anchors`."""

    @abstractmethod
    def check(self, embedding: AnchorEmbedding) -> None:
        """Raise unless the method fits the embedding; called before anything is sampled."""

    @abstractmethod
    def apply(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        """Change the parameters, after their reset; return the objects that are anchors, (K,)."""


@dataclass(frozen=True)
class RandomBasis(AnchorInitialisation):
    """Random anchors and random weights."""

    def check(self, embedding: AnchorEmbedding) -> None:
        pass

    def apply(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        return _no_objects(embedding)


@dataclass(frozen=True, eq=False)
class Pretrained(AnchorInitialisation):
    """Anchors and weights that approximate a table: see `learn_dictionary`."""

    table: Tensor
    """(V, d)"""
    width: int = 8
    """anchors per row, for an embedding that has no width of its own"""
    rounds: int = 10

    def check(self, embedding: AnchorEmbedding) -> None:
        count = len(embedding.anchors)
        check_scores(self.table, "table")
        check_rows(self.table, "table", embedding, embedding.embedding_dim)
        if count > len(self.table):
            raise ValueError(f"anchors must be at most the rows {len(self.table)}, got {count}")
        check_finite(self.table, "table")
        whole_number(self.width, "width")
        whole_number(self.rounds, "rounds", 0)

    def apply(self, embedding: AnchorEmbedding, generator: torch.Generator | None) -> Tensor:
        width = embedding.width or min(self.width, len(embedding.anchors))
        code = learn_dictionary(
            self.table, len(embedding.anchors), width, signed=embedding.signed, rounds=self.rounds,
            generator=generator,
        )  # fmt: skip
        embedding.anchors.copy_(code.anchors)
        if embedding.slots is None:
            embedding.transform.zero_()
            slots = code.slots.to(embedding.transform.device)
            embedding.transform.scatter_(1, slots, code.weights.to(embedding.transform))
        else:
            embedding.transform.copy_(code.weights)
            embedding.slots.copy_(code.slots)
        if embedding.padding_idx is not None:
            embedding.transform[embedding.padding_idx] = 0
        return _no_objects(embedding)


@torch.no_grad()
def initialise_anchors(
    embedding: AnchorEmbedding,
    method: AnchorInitialisation,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Initialise the anchors and the transform of an embedding, in place.

    The row of an object that is an anchor is the unit vector of that anchor; all other entries of T
    are sampled from a normal distribution of variance 2 / V (absolute values unless signed).
    Anchors are in the order of selection, the best first.

    Args:
        embedding: of either storage.
        method: `RandomBasis()`, `Frequent(counts)`, `TfIdf.of(documents, V)`, `Clusters(features)`,
            `FrequentThenClusters(counts, features)` or `Pretrained(table)`.
        generator: for all random values.

    Returns:
        The objects that are anchors, (K,) int64, for `Relations`; empty if anchors are not objects.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.embeddings import Frequent
        >>> table = ff.AnchorEmbedding(5, 8, anchors=2)
        >>> ids = initialise_anchors(table, Frequent(torch.tensor([3, 9, 1, 0, 7])))
        >>> ids, table.transform[ids]
        (tensor([1, 4]), tensor([[1., 0.], [0., 1.]], grad_fn=<IndexBackward0>))

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), section 3.1.
    """
    if not isinstance(method, AnchorInitialisation):
        raise TypeError(
            "method must be RandomBasis(), Frequent(...), TfIdf.of(...), Clusters(...), "
            f"FrequentThenClusters(...) or Pretrained(...), got {type(method).__name__}"
        )
    method.check(embedding)
    embedding.attached.before_read(None)
    embedding.reset_parameters(generator)
    return method.apply(embedding, generator)


def check_finite(values: Tensor, name: str) -> None:
    """Raise unless all values are finite."""
    if not values.isfinite().all():
        raise ValueError(f"{name} must be finite, got infinities or NaN")


def check_rows(values: Tensor, name: str, embedding: AnchorEmbedding, *tail: int) -> None:
    """Raise unless `values` is a tensor (rows of the embedding, *tail)."""
    shape = (embedding.num_embeddings, *tail)
    if not isinstance(values, Tensor) or tuple(values.shape) != shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name} must be a tensor of shape {shape}, got {got}")


def _no_objects(embedding: AnchorEmbedding) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=embedding.anchors.device)
