"""Baseline compact embeddings: hashed, frequency-cut, mixed-dimension, low-rank and sparse tables.

None of them is part of fewfold; experiments compare anchor tables with them.
"""

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
    """Base class: `weight`, `logits` and `size` for tables with the interface of `nn.Embedding`."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_embeddings = whole_number(num_embeddings, "num_embeddings")
        self.embedding_dim = whole_number(embedding_dim, "embedding_dim")

    def size(self) -> int:
        """Number of parameters; hash and rank indices are not counted."""
        return sum(param.numel() for param in self.parameters())

    @property
    def weight(self) -> Tensor:
        """Materialised table (rows, d), differentiable."""
        device = next(self.parameters()).device
        return self(torch.arange(self.num_embeddings, device=device))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the scores of all rows, (..., rows)."""
        return F.linear(hidden, self.weight, bias)

    def extra_repr(self) -> str:
        """Return the sizes shown by `print`."""
        return f"{self.num_embeddings}, {self.embedding_dim}, size={self.size()}"


class HashedEmbedding(CompactEmbedding):
    """Embedding with a vector per frequent object and hashed, shared vectors for the others.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d.
        keep: number of frequent objects with a vector of their own.
        buckets: number of vectors shared by all others, assigned at random.
        generator: for the assignment and the initial values.

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
        """Return the vectors `(*shape, d)` of ids of any shape."""
        return F.embedding(_at(self.place, input), self.vectors)


class FrequentEmbedding(CompactEmbedding):
    """Embedding of the most frequent objects; the vector of every other object is zero.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d.
        keep: number of objects with a vector.
        generator: for the initial values.

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
        """Return the vectors `(*shape, d)` of ids of any shape."""
        place = _at(self.place, input)
        known = place < len(self.vectors)
        found = F.embedding(torch.where(known, place, 0), self.vectors)
        return found.where(known.unsqueeze(-1), 0.0)


class MixedDimEmbedding(CompactEmbedding):
    """Mixed-dimension embedding: shorter vectors, projected to length d, for rarer objects.

    Objects are ranked by frequency and cut into blocks of equal mass, so that an object of block b
    has probability about 1 / n_b, n_b its number of objects. A block has dimension
    d (n_b / n_0)^-temperature, rounded to a power of two; a block with a smaller dimension than d
    has a projection matrix.

    Args:
        counts: (V,) how often each object occurs.
        embedding_dim: d, that of the first block.
        blocks: maximum number of blocks.
        temperature: 0 gives every block dimension d.
        generator: for the initial values.

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
        ranked = ranked.unique(return_inverse=True)[1]  # drop empty blocks
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
        """Build blocks of these dimensions from the objects in this order."""
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
        """Return the vectors `(*shape, d)` of ids of any shape."""
        ids = input.flatten()
        block, place = _at(self.block, ids), _at(self.place, ids)
        out: Tensor = self.blocks[0].new_zeros(len(ids), self.embedding_dim)
        for b, (vectors, projection) in enumerate(zip(self.blocks, self.projections, strict=True)):
            here = (block == b).nonzero()[:, 0]
            found = F.embedding(place[here], vectors)
            out = out.index_copy(0, here, found @ projection if len(projection) else found)
        return out.view(*input.shape, self.embedding_dim)


class LowRankEmbedding(MixedDimEmbedding):
    """Low-rank embedding: vectors of length `rank` and one projection to length d.

    `low_rank` in `special_anchor_tables` is the same as an `AnchorEmbedding`.

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
    """Build a table for `proximal` to sparsify entry by entry: the anchors are the unit vectors.

    The transform is the table itself. `nonzeros()` is its size; `size()` also counts the unit
    vectors, which are constant.

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
        table.transform.mul_(embedding_dim**0.5)  # variance one, as in nn.Embedding
    table.anchors.requires_grad_(False)
    return table


@torch.no_grad()
def slim(table: Tensor, threshold: float) -> int:
    """Set entries of absolute value at most `threshold` to zero, in place; return the number left.

    The last step of network slimming: train with `l1 * table.abs().sum()` added to the loss, then
    call this on `nn.Embedding.weight` or on the `transform` of an anchor table.

    Example:
        >>> weight = torch.tensor([0.5, -0.01, 0.0, -2.0])
        >>> slim(weight, 0.1), weight
        (2, tensor([ 0.5000,  0.0000,  0.0000, -2.0000]))

    Reference: Liu, Li, Shen, Huang, Yan and Zhang, Network slimming (2017).
    """
    table.masked_fill_(table.abs() <= non_negative_number(threshold, "threshold"), 0.0)
    return int(table.count_nonzero())


def _at(values: Tensor, ids: Tensor) -> Tensor:
    """Return `values[ids]`; raise IndexError for ids out of range, negative ones included."""
    try:
        return F.embedding(ids.long(), values.unsqueeze(1)).squeeze(-1)
    except IndexError:
        raise refuse_id(ids, len(values)) from None


def _own_first(counts: Tensor, keep: int, others: Tensor) -> Tensor:
    """Number the most frequent objects 0, 1, ...; the others keep their value in `others`."""
    if counts.dim() != 1:
        raise ValueError(f"counts must be (rows,), got shape {tuple(counts.shape)}")
    best = counts.argsort(descending=True, stable=True)[:keep]
    return others.index_copy(0, best, torch.arange(len(best)))
