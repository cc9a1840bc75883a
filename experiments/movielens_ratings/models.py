"""Matrix factorisation of ratings, with user and item tables of several kinds."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.compact_tables import sparse_table
from fewfold.embeddings.table.embedding import AnchorEmbedding

WIDTH = 16  # of the vectors
Make = Callable[[Tensor, torch.Generator], nn.Module]
"""A table for as many rows as there are counts, which say how often each is used."""


class Factors(nn.Module):
    """stars = <u + u0, v + v0> + bias, with optional global offsets u0 and v0.

    A row that is zero is then an average user or an average film, and what a table says is how the
    others differ.
    """

    def __init__(
        self, make: Make, counts: tuple[Tensor, Tensor], mean: float, *, offset: bool, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.users, self.items = (make(its, generator) for its in counts)
        start = torch.randn(WIDTH, generator=generator) / WIDTH**0.5
        self.offsets = nn.ParameterList([nn.Parameter(start.clone()) for _ in range(2 * offset)])
        self.bias = nn.Parameter(torch.tensor(mean - offset * float(start @ start)))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the predicted stars of pairs."""
        vectors = [self.users(users), self.items(items)]
        if self.offsets:
            vectors = [one + offset for one, offset in zip(vectors, self.offsets, strict=True)]
        stars: Tensor = (vectors[0] * vectors[1]).sum(1) + self.bias
        return stars

    @property
    def tables(self) -> list[AnchorEmbedding]:
        """The anchor tables of the model."""
        return [one for one in (self.users, self.items) if isinstance(one, AnchorEmbedding)]

    @torch.no_grad()
    def size(self) -> int:
        """Number of parameters as published, plus the offsets; without the bias."""
        count: int = sum(offset.numel() for offset in self.offsets)
        for table in (self.users, self.items):
            if not isinstance(table, AnchorEmbedding):
                count += sum(param.numel() for param in table.parameters())
            else:  # anchors that are not learnt are the axes: nobody needs to keep those
                count += table.size() if table.anchors.requires_grad else table.nonzeros()
        return count


def dense(counts: Tensor, generator: torch.Generator) -> nn.Module:
    """Build a dense table."""
    table = nn.Embedding(len(counts), WIDTH)
    nn.init.normal_(table.weight, std=0.1, generator=generator)
    return table


def sparse_rows(counts: Tensor, generator: torch.Generator) -> nn.Module:
    """Build a dense table for an L1 penalty on every entry: the anchors are unit vectors."""
    table = sparse_table(len(counts), WIDTH, generator=generator)
    with torch.no_grad():
        table.transform.mul_(0.1)
    return table


def anchored(anchors: int, *, length: float = 1.0, weight: float = 0.1) -> Make:
    """Return a builder of anchor tables with anchors of this norm and weights up to `weight`.

    Anchors come in pairs of opposites, so that a row may lie to either side with one entry.
    """

    def make(counts: Tensor, generator: torch.Generator) -> nn.Module:
        table = AnchorEmbedding(len(counts), WIDTH, anchors=anchors, generator=generator)
        with torch.no_grad():
            table.anchors.mul_(length / WIDTH**0.5)
            table.anchors[1::2] = -table.anchors[: anchors // 2 * 2 : 2]
            table.transform.uniform_(0, weight, generator=generator)
        return table

    return make


def plainly_anchored(anchors: int) -> Make:
    """Return a builder of tables initialised as in the authors' code: nothing is negative."""

    def make(counts: Tensor, generator: torch.Generator) -> nn.Module:
        table = AnchorEmbedding(len(counts), WIDTH, anchors=anchors, generator=generator)
        with torch.no_grad():
            table.anchors.normal_(0, (2 / anchors) ** 0.5, generator=generator).abs_()
            table.transform.normal_(0, (2 / len(counts)) ** 0.5, generator=generator).abs_()
        return table

    return make


class MixedDimension(nn.Module):
    """Table in blocks by frequency; rarer blocks are narrower and projected to the full width.

    Blocks have equal shares of the uses, and widths in proportion to (rows in it)^-temperature,
    rounded to powers of two.

    Reference: Ginart, Naumov, Mudigere, Yang, Zou, "Mixed dimension embeddings", 2019.
    """

    place: Tensor

    def __init__(
        self,
        counts: Tensor,
        blocks: int,
        temperature: float,
        generator: torch.Generator,
        width: int = WIDTH,
    ) -> None:
        super().__init__()
        order = counts.argsort(descending=True, stable=True)
        uses = (counts[order] + 1).double().cumsum(0)
        block = (uses / uses[-1] * blocks).ceil().long().clamp(max=blocks) - 1
        sizes = [size for size in torch.bincount(block).tolist() if size]
        self.register_buffer("place", order.argsort())
        widths = _widths(sizes, temperature, width)
        self.blocks = nn.ModuleList(
            nn.Embedding(size, width) for size, width in zip(sizes, widths, strict=True)
        )
        self.widen = nn.ModuleList(
            nn.Identity() if narrow == width else nn.Linear(narrow, width, bias=False)
            for narrow in widths
        )
        for layer in (*self.blocks, *self.widen):
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=0.1, generator=generator)
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors (n, d) of ids (n,)."""
        parts = zip(self.blocks, self.widen, strict=True)  # a batch is larger than the table
        whole = torch.cat([widen(block.weight) for block, widen in parts])
        return F.embedding(self.place[ids], whole)


def _widths(sizes: Sequence[int], temperature: float, width: int) -> list[int]:
    shares = [min((size / sizes[0]) ** -temperature, 1.0) for size in sizes]
    return [max(2 ** round(math.log2(width * share)), 1) for share in shares]


def mixed_dimension(blocks: int, temperature: float) -> Make:
    """Return a builder of mixed-dimension tables."""
    return lambda counts, generator: MixedDimension(counts, blocks, temperature, generator)
