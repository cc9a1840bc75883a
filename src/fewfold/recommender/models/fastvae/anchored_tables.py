"""Item tables of a FastVAE made of anchors: one sparse transform for inputs and outputs."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold.embeddings.files.save_load import packed_anchors, unpacked_anchors
from fewfold.embeddings.files.stored_anchors import Stored
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow
from fewfold.embeddings.sparsify.top_entries import cut_rows
from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.embeddings.table.sparse_rows import draw_slots, empty_table
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.models.fastvae.shared_transform import (
    FixedQueries,
    OutputVectors,
    two_uses,
)
from fewfold.recommender.models.fastvae.tables import Tables, bags

if TYPE_CHECKING:
    from fewfold.recommender.models.fastvae.compression import CompressedTables

__all__ = ["AnchoredTables"]

_START = 0.2  # initial scale of the transform; anchors have its inverse, and so move more evenly
_BEGIN, _END = 0.1, 0.6  # parts of the steps between which entries are dropped
_FIRST, _STEP = 16, 16  # anchors at first and per change, where their number is found in training
_PER_ANCHOR = 2.5e-4  # nats per interaction that an anchor must gain
_POPULAR = 0.75  # an item's share of the entries is its count to this power
_BLOCK = 1 << 18  # items whose vectors are computed at once


class AnchoredTables(Tables):
    """Tables in which item i is a row t_i of a sparse transform, times anchors.

        E_i = t_i A,    q_i = t_i B + bias_i,

    with the same t_i for the input and the output vector. The bias is the weight of one more
    anchor, which is a one in the bias's column.

    Training starts with all entries of t_i; between a tenth and six tenths of the steps the
    smallest are dropped, by a constant factor, and the others are trained to the end.

    Args:
        items: number of items.
        anchors: how many, or `Anchors`: also how many of them an item has.
        hidden: width of the input vectors.
        latent: width of the latent.

    Attributes:
        options: the `Anchors`.
        table: the transform and the anchors, an `AnchorEmbedding` of width hidden + latent + 1.

    Example:
        >>> from fewfold.recommender import AnchoredTables, Anchors, FastVAE
        >>> model = FastVAE(AnchoredTables(1000, Anchors(count=16, width=4)))
        >>> model.outputs().shape
        torch.Size([1000, 64])
    """

    table: AnchorEmbedding
    _own_rows: slice | None = None  # the items whose rows the table has; all by default

    def __init__(
        self, items: int, anchors: int | str | Anchors, hidden: int = 200, latent: int = 63
    ) -> None:
        super().__init__(items, hidden, latent)
        self.options = Anchors.of(anchors)
        self._packed: dict[str, Tensor] | None = None
        self._narrowing: Narrowing | None = None
        self._scales: Tensor | None = None  # of which entries are whole multiples, if they are
        self._decoder_transform: Tensor | None = None  # of this step, after `bag`

    @classmethod
    @torch.no_grad()
    def of(cls, found: "CompressedTables", options: Anchors, hidden: int, latent: int) -> Self:
        """Return the tables that trained ones have been compressed to."""
        rows, used = found.transform.shape
        tables = cls(rows, options, hidden, latent)
        table = tables.table = tables._new_table(rows, None, torch.Generator())
        table.transform.zero_()[:, :used] = found.transform
        table.anchors.zero_()[:used] = found.anchors
        tables._scales = F.pad(found.steps, (0, options.most + 1 - used), value=1.0)
        return tables

    @classmethod
    def unpack(cls, packed: dict[str, Tensor], options: Anchors, hidden: int, latent: int) -> Self:
        """Return the tables that `packed` was taken of."""
        tables = cls(1, options, hidden, latent)  # the number of items follows from the tensors
        tables._load_packed(packed)
        return tables

    def reset_inputs(self, generator: torch.Generator) -> None:
        """Do nothing: `reset_outputs` draws the weights of both."""

    @torch.no_grad()
    def reset_outputs(self, generator: torch.Generator) -> None:
        """Draw the transform and the anchors; biases are zero."""
        hidden, latent = self.hidden, self.latent
        full = self.options.held_in_full(self.count)
        if not full and self.options.count is None:
            raise ValueError(
                f"of {self.count} items too many numbers would be held to find how many anchors "
                "they need; say how many: Anchors(256)"
            )
        table = self._drawn_rows(None if full else self.options.per_item(cut=False) + 1, generator)
        table.transform[:, 0] = 0
        if table.slots is not None:
            table.slots[:, 0] = 0
        table.anchors.zero_()
        inputs, outputs = table.anchors[1:, :hidden], table.anchors[1:, hidden:-1]
        inputs.normal_(0, hidden**-0.5 / _START, generator=generator)
        outputs.normal_(0, 0.5 * latent**-0.5 / _START, generator=generator)
        table.anchors[0, -1] = 1
        self.table = table

    def _drawn_rows(self, width: int | None, generator: torch.Generator) -> AnchorEmbedding:
        """Return a table with random rows; the first entry of each is for the bias."""
        table = self._new_table(self.count, width, generator)
        table.transform.normal_(0, self._deviation(width), generator=generator)
        if table.slots is not None:
            others = torch.empty_like(table.slots[:, 1:])
            draw_slots(others, self.options.most, generator)
            table.slots[:, 1:] = others + 1
        return table

    def _deviation(self, width: int | None) -> float:
        """Return the initial scale of the transform's entries."""
        return float(_START * (width or self.options.most) ** -0.5)

    def _new_table(
        self, rows: int, width: int | None, generator: torch.Generator
    ) -> AnchorEmbedding:
        return AnchorEmbedding(
            rows, self.hidden + self.latent + 1, anchors=self.options.most + 1, width=width,
            signed=True, sparse=True, generator=generator,
        )  # fmt: skip

    @property
    def row_parameters(self) -> list[nn.Parameter]:
        """The transform."""
        return [self.table.transform]

    @property
    def shared_parameters(self) -> list[nn.Parameter]:
        """The anchors."""
        return [self.table.anchors]

    @property
    def _input_anchors(self) -> Tensor:
        return self._active_anchors()[:, : self.hidden]

    @property
    def _output_anchors(self) -> Tensor:
        return self._active_anchors()[:, self.hidden :]

    def _active_anchors(self) -> Tensor:
        """Return the anchors, with zeros for inactive ones: their weights have no effect.

        The first is that of the bias, unless no item has one, and has no gradient: it is fixed.
        """
        anchors, active = self.table.anchors, self.table.active
        bias = int(self.is_bias[0])
        return torch.cat([
            anchors[:bias].detach(), anchors[bias:active], torch.zeros_like(anchors[active:])
        ])  # fmt: skip

    def bag(self, history: Jagged, scale: Tensor) -> Tensor:
        """Return the sum of the input vectors of each row's items times `scale`, (rows, hidden)."""
        table = self.table
        if table.slots is None:
            return self._sums(table.transform, None, history, scale)
        transform, self._decoder_transform = two_uses(table.transform)
        bag = self._sums(transform, table.slots, history, scale)
        if table.attached.watching and bag.requires_grad:
            after = table.embedding_dim - self.hidden

            def keep(gradient: Tensor) -> None:
                each = (gradient * scale.unsqueeze(1))[history.row]
                table.attached.record(history.values, F.pad(each, (0, after)))

            bag.register_hook(keep)
        return bag

    def _sums(
        self, transform: Tensor, slots: Tensor | None, history: Jagged, scale: Tensor
    ) -> Tensor:
        """Return `bag`, of rows of this transform."""
        if slots is None:  # the sum of products is the product of the sum
            return bags(transform, history, scale, sparse=self.sparse) @ self._input_anchors
        anchors = self._input_anchors.contiguous()
        return mixed_bags(anchors, transform, slots, *history, scale, sparse=self.sparse)

    def loss(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the objective of queries (rows, latent + 1) and the output vectors."""
        table = self.table
        if table.slots is None:
            # The score q . (t B) is (B q) . t: the transform is the table, and narrower.
            if isinstance(objective, SampledSoftmax):
                proposal = FixedQueries(objective.proposal, queries.detach())
                objective = replace(objective, proposal=proposal)
            return objective(queries @ self._output_anchors.T, table.transform, history, generator)
        vectors = self._decoder_vectors()
        if isinstance(objective, SampledSoftmax):
            return objective(queries, vectors, history, generator)
        return objective(queries, vectors(self._every()), history, generator)

    def _every(self) -> Tensor:
        """Return the ids of all rows of the table."""
        return torch.arange(self.table.num_embeddings, device=self.table.anchors.device)

    def _decoder_vectors(self) -> OutputVectors:
        """Return the output vectors of a table with slots, for the loss of a step."""
        transform, self._decoder_transform = self._decoder_transform, None
        return OutputVectors(
            self.table, self.table.transform if transform is None else transform,
            self._output_anchors.contiguous(),
        )  # fmt: skip

    @torch.no_grad()
    def input_vectors(self) -> Tensor:
        """Return the input vectors of all items, (items, hidden), without gradient."""
        return self.table.weight[:, : self.hidden]

    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Return the output vectors, bias last, of all items or those given, without gradient."""
        table, anchors = self.table, self._output_anchors.detach()
        transform = table.transform.detach()
        if table.slots is None:
            return (transform if ids is None else transform[ids]) @ anchors
        ids = self._every() if ids is None else ids
        anchors = anchors.contiguous()
        out = empty_table(len(ids), anchors.shape[1], anchors.dtype, anchors.device)
        blocks = zip(out.split(_BLOCK), ids.split(_BLOCK), strict=True)
        for rows, block in blocks:  # to bound the memory of intermediate results
            rows.copy_(mixed(anchors, transform, table.slots, block, sparse=False))
        return out

    @property
    def packed(self) -> dict[str, Tensor]:
        """The table as it is saved: few bits for an entry, a byte for a number of an anchor."""
        if self._packed is None:
            raise ValueError("the table is not in the form in which it is saved; call finalize()")
        return self._packed

    def saved(self) -> dict[str, Tensor]:
        """Return the packed table, as a saved model names its tensors."""
        return {f"table.{name}": value for name, value in self.packed.items()}

    def finalize(self) -> None:
        """Drop entries that training has not dropped yet, and round to what is saved.

        What is measured from then on is what a saved model gives.
        """
        if self._narrowing is not None and self.table.slots is None:
            with torch.no_grad():
                cut_rows(self.table.transform, self._narrowing.of_rows(self._narrowing.end))
        self._pack(self._whole_table())

    def _whole_table(self) -> AnchorEmbedding:
        """Return the table with the rows of all items."""
        return self.table

    def _pack(self, table: AnchorEmbedding) -> None:
        packed, _ = packed_anchors(
            table, anchors=torch.int8, values=torch.int8, bits=self.options.bits,
            scales=self._scales,
        )  # fmt: skip
        self._load_packed(packed)

    def _load_packed(self, tensors: dict[str, Tensor]) -> None:
        stored = Stored.bare(tensors, bits=self.options.bits, signed=True)
        wide = self.hidden + self.latent + 1
        if stored.dim != wide:
            raise ValueError(f"anchors must be {wide} wide, got {stored.dim}")
        table = unpacked_anchors(stored)
        table.sparse = True
        self.table, self._packed, self._scales = table, tensors, tensors["value_scales"]
        self.count = table.num_embeddings

    @torch.no_grad()
    def with_new_items(self, near: Tensor, weights: Tensor) -> "AnchoredTables":
        """Return finalized tables with more items, weighted means of rows of the transform."""
        table, count = self.table, len(self.table.anchors)
        full = torch.zeros(self.count, count)
        if table.slots is None:
            full.copy_(table.transform)
        else:
            full.scatter_add_(1, table.slots.long(), table.transform)
        mean = (full[near] * weights.unsqueeze(2)).sum(1)
        most = int((full != 0).sum(1).max())
        best = mean.abs().topk(min(most, count), 1).indices
        new = torch.zeros_like(mean).scatter(1, best, mean.gather(1, best))
        rows = self.count + len(mean)
        larger = AnchorEmbedding(rows, table.embedding_dim, anchors=count, signed=True)
        larger.anchors.copy_(table.anchors)
        larger.transform.copy_(torch.cat([full, new]))
        grown = AnchoredTables(rows, self.options, self.hidden, self.latent)
        grown._scales = self._scales
        grown._pack(larger)
        return grown

    @property
    def is_bias(self) -> Tensor:
        """(anchors,) whether an anchor is that of the bias, zero except for the bias column."""
        return (self.table.anchors.detach()[:, :-1] == 0).all(1)

    @torch.no_grad()
    def without_bias(self) -> AnchorEmbedding:
        """Return a copy of the table in which no item has a weight of the bias's anchor."""
        table, bias = copy.deepcopy(self.table), self.is_bias
        if table.slots is None:
            table.transform[:, bias] = 0
        else:
            table.transform[bias[table.slots.long()]] = 0
        return table

    def growth(self) -> AnchorGrowth | None:
        """Return what finds the number of anchors, if `Anchors.count` is None."""
        if self.options.count is not None:
            return None
        free = _PER_ANCHOR * 1e-6  # the number of non-zeros is set by the narrowing
        return AnchorGrowth(
            self.table, l1=free, per_anchor=_PER_ANCHOR, start=_FIRST + 1, step=_STEP
        )

    def row_optimizer(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """Return an optimiser of the transform that also drops its small entries."""
        self._scales = self._packed = None
        if self.table.slots is not None:
            return proximal(optimizer, self.table, l1=0.0, regrow=Regrow(until=int(_END * steps)))
        narrowing = Narrowing(
            first=self.options.most + 1,
            last=self.options.per_item(cut=False),
            after=int(_BEGIN * steps),
            over=max(1, int((_END - _BEGIN) * steps)),
            shares=(counts + 1.0) ** _POPULAR,
            rows=self._own_rows,
        )
        self._narrowing = narrowing
        return proximal(optimizer, self.table, l1=0.0, keep=narrowing)
