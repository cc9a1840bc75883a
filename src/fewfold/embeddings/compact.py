"""Other small tables to compare with: hashed, cut by frequency, of mixed dimension, or sparse."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import non_negative_number, whole_number
from fewfold.embeddings.table.anchor_sums import refuse_id
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = [
    "CompactEmbedding",
    "FrequentEmbedding",
    "HashedEmbedding",
    "LowRankEmbedding",
    "MixedDimEmbedding",
    "slim",
    "sparse_table",
]


class CompactEmbedding(nn.Module):
    """What these tables share with `nn.Embedding`, and their `size` in parameters."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_embeddings = whole_number(num_embeddings, "num_embeddings")
        self.embedding_dim = whole_number(embedding_dim, "embedding_dim")

    def size(self) -> int:
        """Parameters to be kept; hashes and ranks by frequency are not counted."""
        return sum(param.numel() for param in self.parameters())

    @property
    def weight(self) -> Tensor:
        """The table itself, (rows, d), with a gradient."""
        device = next(self.parameters()).device
        return self(torch.arange(self.num_embeddings, device=device))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Scores of all rows, (..., rows)."""
        return F.linear(hidden, self.weight, bias)

    def extra_repr(self) -> str:
        """What a person wants to see."""
        return f"{self.num_embeddings}, {self.embedding_dim}, size={self.size()}"


class HashedEmbedding(CompactEmbedding):
    """The most frequent objects have a vector of their own; the others share some.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d.
        keep: so many objects have their own.
        buckets: so many vectors for all others, who are spread over them at random.
        generator: for that and for the first values.

    Example:
        >>> table = HashedEmbedding(torch.tensor([5, 1, 9, 2, 3]), 4, keep=2, buckets=2)
        >>> table(torch.arange(5)).shape, table.size()
        (torch.Size([5, 4]), 16)
    """

    place: Tensor

    def __init__(
        self,
        counts: Tensor,
        embedding_dim: int,
        *,
        keep: int,
        buckets: int = 1000,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(len(counts), embedding_dim)
        whole_number(keep, "keep", 0)
        drawn = torch.randint(whole_number(buckets, "buckets"), (len(counts),), generator=generator)
        self.register_buffer("place", _own_first(counts, keep, keep + drawn))
        first = torch.randn(min(keep, len(counts)) + buckets, embedding_dim, generator=generator)
        self.vectors = nn.Parameter(first)

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape to their vectors, (*shape, d)."""
        return F.embedding(_at(self.place, input), self.vectors)


class FrequentEmbedding(CompactEmbedding):
    """The most frequent objects have a vector; that of all others is zero.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d.
        keep: so many have one.
        generator: for the first values.

    Example:
        >>> table = FrequentEmbedding(torch.tensor([5, 1, 9]), 4, keep=2)
        >>> table(torch.tensor([1])).detach(), table.size()
        (tensor([[0., 0., 0., 0.]]), 8)
    """

    place: Tensor

    def __init__(
        self,
        counts: Tensor,
        embedding_dim: int,
        *,
        keep: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(len(counts), embedding_dim)
        whole_number(keep, "keep")
        none = torch.full((len(counts),), keep)
        self.register_buffer("place", _own_first(counts, keep, none))
        first = torch.randn(min(keep, len(counts)), embedding_dim, generator=generator)
        self.vectors = nn.Parameter(first)

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape to their vectors, (*shape, d)."""
        place = _at(self.place, input)
        known = place < len(self.vectors)
        found = F.embedding(torch.where(known, place, 0), self.vectors)
        return found.where(known.unsqueeze(-1), 0.0)


class MixedDimEmbedding(CompactEmbedding):
    """Frequent objects have long vectors, rare ones short vectors and a projection to length d.

    Objects are ranked by frequency and cut into blocks of equal mass, so that an object of block b
    has probability about 1 / n_b, n_b its number of objects. A block has dimension
    d (n_b / n_0)^-temperature, rounded to a power of two; one that is shorter than d has a matrix
    to get there.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d, that of the first block.
        blocks: so many at most.
        temperature: 0 keeps d everywhere.
        generator: for the first values.

    Example:
        >>> table = MixedDimEmbedding(1000 / torch.arange(1.0, 501), 16, blocks=4, temperature=0.6)
        >>> [tuple(block.shape) for block in table.blocks]
        [(3, 16), (13, 8), (75, 2), (409, 1)]

    Reference: Ginart, Naumov, Mudigere, Yang and Zou, Mixed dimension embeddings (2021).
    """

    block: Tensor
    place: Tensor

    def __init__(
        self,
        counts: Tensor,
        embedding_dim: int,
        *,
        blocks: int = 8,
        temperature: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        counts = counts.double()
        order = counts.argsort(descending=True, stable=True)
        mass = counts[order].cumsum(0)
        middle = (mass - counts[order] / 2) / mass[-1].clamp(min=1e-300)
        ranked = (middle * whole_number(blocks, "blocks")).long().clamp(max=blocks - 1)
        ranked = ranked.unique(return_inverse=True)[1]  # none is empty
        size = torch.bincount(ranked)
        wanted = embedding_dim * (size / size[0]) ** -non_negative_number(
            temperature, "temperature"
        )
        dims = (2 ** wanted.log2().round()).clamp(1, embedding_dim).long().tolist()
        self._cut(order, ranked, [d if b else embedding_dim for b, d in enumerate(dims)],
                  embedding_dim, generator)  # fmt: skip

    def _cut(
        self,
        order: Tensor,
        ranked: Tensor,
        dims: Sequence[int],
        embedding_dim: int,
        generator: torch.Generator | None,
    ) -> None:
        """Blocks of these dimensions, of the objects in this order."""
        CompactEmbedding.__init__(self, len(order), embedding_dim)
        size = torch.bincount(ranked)
        place = torch.arange(len(order)) - (size.cumsum(0) - size)[ranked]
        self.register_buffer("block", torch.empty_like(order).scatter_(0, order, ranked))
        self.register_buffer("place", torch.empty_like(order).scatter_(0, order, place))
        self.blocks = nn.ParameterList(
            torch.randn(int(n), d, generator=generator)
            for n, d in zip(size.tolist(), dims, strict=True)
        )
        self.projections = nn.ParameterList(
            torch.randn(d if d < embedding_dim else 0, embedding_dim, generator=generator) / d**0.5
            for d in dims
        )

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape to their vectors, (*shape, d)."""
        ids = input.flatten()
        block, place = _at(self.block, ids), _at(self.place, ids)
        out: Tensor = self.blocks[0].new_zeros(len(ids), self.embedding_dim)
        for b, (vectors, projection) in enumerate(zip(self.blocks, self.projections, strict=True)):
            here = (block == b).nonzero()[:, 0]
            found = F.embedding(place[here], vectors)
            out = out.index_copy(0, here, found @ projection if len(projection) else found)
        return out.view(*input.shape, self.embedding_dim)


class LowRankEmbedding(MixedDimEmbedding):
    """All objects have vectors of length `rank` and one projection to length d.

    `low_rank` is the same as an `AnchorEmbedding`.

    Example:
        >>> LowRankEmbedding(100, 16, 4).size()
        464
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        rank: int,
        generator: torch.Generator | None = None,
    ) -> None:
        if whole_number(rank, "rank") >= embedding_dim:
            raise ValueError(f"rank must be less than embedding_dim={embedding_dim}, got {rank}")
        order = torch.arange(whole_number(num_embeddings, "num_embeddings"))
        self._cut(order, torch.zeros_like(order), [rank], embedding_dim, generator)


def sparse_table(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **options: Any
) -> AnchorEmbedding:
    """A plain table that `proximal` makes sparse, entry by entry: anchors are the unit vectors.

    Its transform is the table itself and `nonzeros()` what there is to keep; `size()` also counts
    the unit vectors, which never change.

    Example:
        >>> import torch, fewfold as ff
        >>> table = sparse_table(100, 8)
        >>> optimizer = ff.proximal(torch.optim.SGD([table.transform], lr=1.0), table, l1=0.1)
        >>> torch.equal(table.weight, table.transform), table.nonzeros()
        (True, 800)

    Reference: Sun, Guo, Lan, Xu and Cheng, Sparse word embeddings using l1 regularized online
    learning (2016).
    """
    table = AnchorEmbedding(
        num_embeddings, embedding_dim, padding_idx, anchors=embedding_dim, signed=True, **options
    )
    with torch.no_grad():
        table.anchors.copy_(torch.eye(embedding_dim))
        table.transform.mul_(embedding_dim**0.5)  # variance one, as that of nn.Embedding
    table.anchors.requires_grad_(False)
    return table


@torch.no_grad()
def slim(table: Tensor, threshold: float) -> int:
    """Set entries of at most this size to zero, in place; returns how many are left.

    The end of network slimming: train with `l1 * table.abs().sum()` added to the loss, then cut.
    For a full table, `nn.Embedding.weight`, or the `transform` of anchors.

    Example:
        >>> weight = torch.tensor([0.5, -0.01, 0.0, -2.0])
        >>> slim(weight, 0.1), weight
        (2, tensor([ 0.5000,  0.0000,  0.0000, -2.0000]))

    Reference: Liu, Li, Shen, Huang, Yan and Zhang, Network slimming (2017).
    """
    table.masked_fill_(table.abs() <= non_negative_number(threshold, "threshold"), 0.0)
    return int(table.count_nonzero())


def _at(values: Tensor, ids: Tensor) -> Tensor:
    """`values[ids]`, where an id below zero is none."""
    try:
        return F.embedding(ids.long(), values.unsqueeze(1)).squeeze(-1)
    except IndexError:
        raise refuse_id(ids, len(values)) from None


def _own_first(counts: Tensor, keep: int, others: Tensor) -> Tensor:
    """0, 1, ... for the most frequent objects, what is given for the others."""
    if counts.dim() != 1:
        raise ValueError(f"counts must be (rows,), got shape {tuple(counts.shape)}")
    best = counts.argsort(descending=True, stable=True)[:keep]
    return others.index_copy(0, best, torch.arange(len(best)))
