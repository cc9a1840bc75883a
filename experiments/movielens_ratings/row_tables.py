"""User and item tables as flat arrays: anchored, dense, penalised, in blocks of several widths."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from experiments.movielens_ratings.models import WIDTH, MixedDimension
from fewfold.embeddings.table.embedding import AnchorEmbedding


@dataclass
class RowTable:
    """Rows of one or several blocks; the vector of a row is x A, with the anchors A of its block.

    `values` and `anchors` are flat. Without anchors (`identity`) a row is its own vector.
    """

    values: Tensor
    anchors: Tensor
    block: Tensor
    """block of each row"""
    widths: Tensor
    """entries of a row, by block"""
    identity: Tensor
    """whether the anchors of a block are the axes, and not learnt"""
    penalised: bool
    """whether the L1 penalty applies to the rows"""
    fresh: Callable[[torch.Generator], "RowTable"]
    """the same table with other first values"""
    active: int = 0
    """anchors in use, of a table with one block"""
    width: int = WIDTH
    """entries of a vector"""
    start: Tensor = field(init=False)
    anchor_start: Tensor = field(init=False)

    def __post_init__(self) -> None:
        wide = self.widths[self.block].long()
        self.start = wide.cumsum(0) - wide
        learnt = self.widths.long() * self.width * (1 - self.identity.long())
        self.anchor_start = learnt.cumsum(0) - learnt
        self.active = self.active or int(self.widths.max())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.block)

    @property
    def non_negative(self) -> bool:
        """Whether entries stay non-negative: in the authors' code where there is a penalty."""
        return self.penalised

    def transform(self) -> Tensor:
        """Return the columns in use, of a table with one block."""
        return self.values.view(self.rows, -1)[:, : self.active]

    def vectors(self) -> Tensor:
        """Return all vectors (rows, width)."""
        found = torch.empty(self.rows, self.width)
        for number, wide in enumerate(self.widths.tolist()):
            rows = (self.block == number).nonzero()[:, 0]
            part = self.values[self.start[rows, None] + torch.arange(wide)]
            if not self.identity[number]:
                begin = int(self.anchor_start[number])
                anchors = self.anchors[begin : begin + wide * self.width]
                anchors = anchors.view(wide, self.width)
                used = min(wide, self.active)
                part = part[:, :used] @ anchors[:used]
            found[rows] = part
        return found

    def nonzeros(self) -> int:
        """Return the number of non-zeros of the rows."""
        return int((self.transform() if len(self.widths) == 1 else self.values).count_nonzero())

    def size(self) -> int:
        """Return non-zeros and anchors; all entries of a table without a penalty."""
        anchors = self.active * self.width if len(self.widths) == 1 else len(self.anchors)
        if len(self.widths) == 1 and self.identity[0]:
            anchors = 0
        return (self.nonzeros() if self.penalised else len(self.values)) + anchors

    def embedding(self) -> AnchorEmbedding:
        """Return an anchored table as an embedding, with the anchors in use."""
        found = AnchorEmbedding(self.rows, self.width, anchors=self.active)
        with torch.no_grad():
            found.transform.copy_(self.transform())
            found.anchors.copy_(self.anchors.view(-1, self.width)[: self.active])
        return found


def positive(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return the first values of the authors' code, |N(0, 2 / rows)|."""
    return (torch.randn(rows, columns, generator=generator) * (2 / rows) ** 0.5).abs()


Make = Callable[[Tensor, torch.Generator], RowTable]
"""A table for as many rows as there are counts, which say how often each is used."""


def anchored_rows(
    anchors: int, *, active: int = 0, first: Callable[..., Tensor] = positive
) -> Make:
    """Return a builder of anchored tables; `first` makes the first values of the anchors."""

    def make(counts: Tensor, generator: torch.Generator) -> RowTable:
        values = positive(len(counts), anchors, generator).flatten()
        vectors = positive(anchors, WIDTH, generator).flatten()
        single = torch.tensor([anchors], dtype=torch.int32)
        block = torch.zeros(len(counts), dtype=torch.int32)
        return RowTable(
            values, vectors, block, single, torch.tensor([0], dtype=torch.int32), True,
            lambda other: make(counts, other), active,
        )  # fmt: skip

    return make


def dense_rows(*, penalised: bool = False) -> Make:
    """Return a builder of dense tables, with or without an L1 penalty on all entries."""

    def make(counts: Tensor, generator: torch.Generator) -> RowTable:
        values = positive(len(counts), WIDTH, generator).flatten()
        single = torch.tensor([WIDTH], dtype=torch.int32)
        block = torch.zeros(len(counts), dtype=torch.int32)
        return RowTable(
            values, torch.empty(0), block, single, torch.tensor([1], dtype=torch.int32), penalised,
            lambda other: make(counts, other),
        )  # fmt: skip

    return make


def mixed_rows(blocks: int, temperature: float, width: int = WIDTH) -> Make:
    """Return a builder of tables whose rarer rows are narrower and projected to the full width."""

    def make(counts: Tensor, generator: torch.Generator) -> RowTable:
        plan = MixedDimension(counts, blocks, temperature, torch.Generator(), width)
        sizes = [len(block.weight) for block in plan.blocks]
        widths = [block.weight.shape[1] for block in plan.blocks]
        block = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[plan.place]
        parts = [positive(size, wide, generator) for size, wide in zip(sizes, widths, strict=True)]
        ordered = [row for part in parts for row in part]
        values = [ordered[place] for place in plan.place.tolist()]
        anchors = [positive(wide, width, generator).flatten() for wide in widths if wide < width]
        identity = torch.tensor([wide == width for wide in widths], dtype=torch.int32)
        return RowTable(
            torch.cat(values), torch.cat(anchors), block.int(),
            torch.tensor(widths, dtype=torch.int32), identity, False,
            lambda other: make(counts, other), width=width,
        )  # fmt: skip

    return make
