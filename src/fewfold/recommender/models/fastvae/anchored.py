"""FastVAE whose two tables are mixes of few anchors, by one transform for both."""

import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold.embeddings.files.save_load import packed_anchors, unpacked_anchors
from fewfold.embeddings.files.stored_anchors import Stored
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.sparsify.schedules import Narrowing, Regrow
from fewfold.embeddings.sparsify.top_entries import cut_rows
from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.embeddings.table.sparse_rows import draw_slots
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.compression import squeeze
from fewfold.recommender.models.fastvae.encoder_bag import bags
from fewfold.recommender.models.fastvae.network import FastVAE, Objective, SampledSoftmax
from fewfold.recommender.models.fastvae.shared_transform import Decoder, Seeing, twice

__all__ = ["AnchorVAE", "Anchors"]

_START = 0.2  # of the transform, where anchors have so much more: they move the table more evenly
_BEGIN, _END = 0.1, 0.6  # parts of the steps between which entries are dropped
_MOST, _FIRST, _STEP = 256, 16, 16  # anchors, where their number is found
_PER_ANCHOR = 2.5e-4  # nats of an interaction that an anchor has to be worth
_POPULAR = 0.75  # an item's share of the entries is its count to this power
_BLOCK = 1 << 18  # items whose vectors are made at once
_FULL = 1 << 25  # entries of a transform that is held in full
_CUT, _TRAINED = 24, 8  # entries of an item, where nobody says how many


@dataclass(frozen=True)
class Anchors:
    """How small the tables of a recommender are to be.

    Attributes:
        count: anchors, each of the width of both tables together. None: their number is found in
            training, by what a twentieth of the users, kept out of it, would lose and gain.
        width: non-zeros of an item, on average over the items. Where trained tables are cut 24 by
            default, beside its bias; they are cheap, for which anchors they are need not be said.
            Where anchors are trained 8 by default, its bias among them (beside them where items
            are too many for a transform that is held in full).
        bits: of a non-zero as it is kept, from 2 to 8.
    """

    count: int | None = 64
    width: int | None = None
    bits: int = 8

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number(self.count, "count")
        if not 2 <= whole_number(self.bits, "bits") <= 8:
            raise ValueError(f"bits must be between 2 and 8, got {self.bits}")
        if self.width is not None and whole_number(self.width, "width") > self.most:
            raise ValueError(f"width must be at most count={self.most}, got {self.width}")

    @classmethod
    def of(cls, asked: "int | str | Anchors") -> "Anchors":
        """So many, or `"auto"`: as many as training finds; `Anchors` are what they are.

        Example:
            >>> Anchors.of("auto") == Anchors(count=None), Anchors.of(16).count
            (True, 16)
        """
        if isinstance(asked, Anchors):
            return asked
        if asked == "auto":
            return cls(None)
        if not isinstance(asked, int) or isinstance(asked, bool):
            raise TypeError(f'anchors must be how many, "auto" or Anchors(...), got {asked!r}')
        return cls(asked)

    def per_item(self, *, cut: bool) -> int:
        """The width, where none was given that which suits tables that are cut or trained."""
        return min(_CUT if cut else _TRAINED, self.most) if self.width is None else self.width

    @property
    def most(self) -> int:
        """Anchors that there is room for."""
        return _MOST if self.count is None else self.count

    def cuts(self, items: int) -> bool:
        """Whether trained tables of so many items can be cut to these, or they must be trained."""
        return self.count is not None and items * (self.count + 1) <= _FULL


class AnchorVAE(FastVAE):
    """A `FastVAE` in which item i is a row t_i of a sparse transform, times anchors.

        E_i = t_i A,    q_i = t_i B + bias_i,

    with the same t_i for what it is as an input and what it is as an output. The bias is the
    weight of one more anchor, which is a one in the bias's column. All else is as in `FastVAE`.

    Training starts with all entries of t_i; between a tenth and six tenths of the steps the
    smallest are dropped, by a constant factor, and what is left is trained to the end.

    Args:
        items: how many.
        anchors: how many, or `Anchors`: also how few of them an item is made of.
        hidden, latent, layers, dropout, seed: as in `FastVAE`.

    Example:
        >>> import fewfold as ff
        >>> from fewfold.recommender import AnchorVAE, Anchors
        >>> model = AnchorVAE(items=1000, anchors=Anchors(count=16, width=4))
        >>> model.outputs().shape
        torch.Size([1000, 64])
    """

    def __init__(
        self,
        items: int,
        anchors: int | str | Anchors,
        *,
        hidden: int = 200,
        latent: int = 63,
        layers: int = 1,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.chosen, self.hidden = Anchors.of(anchors), hidden
        self._packed: dict[str, Tensor] | None = None
        self._narrowing: Narrowing | None = None
        self._grid: Tensor | None = None  # of which entries are whole multiples, where they are
        super().__init__(
            items, hidden=hidden, latent=latent, layers=layers, dropout=dropout, seed=seed
        )

    def _make_inputs(self, items: int, hidden: int, generator: torch.Generator) -> None:
        pass  # made with the outputs

    @torch.no_grad()
    def _make_items(self, items: int, latent: int, generator: torch.Generator) -> None:
        count, hidden = self.chosen.most, self.hidden
        few = items * (count + 1) > _FULL
        if few and self.chosen.count is None:
            raise ValueError(
                f"of {items} items too many numbers would be held to find how many anchors they "
                "need; say how many: Anchors(256)"
            )
        width = self.chosen.per_item(cut=False) + 1 if few else None
        table = AnchorEmbedding(
            items, hidden + latent + 1, anchors=count + 1, width=width, signed=True, sparse=True,
            generator=generator,
        )  # fmt: skip
        entries = width or count
        table.transform.normal_(0, _START * entries**-0.5, generator=generator)
        table.transform[:, 0] = 0
        if table.slots is not None:  # the first of each is the bias
            others = torch.empty_like(table.slots[:, 1:])
            draw_slots(others, count, generator)
            table.slots[:, 1:], table.slots[:, 0] = others + 1, 0
        table.anchors.zero_()
        inputs, outputs = table.anchors[1:, :hidden], table.anchors[1:, hidden:-1]
        inputs.normal_(0, hidden**-0.5 / _START, generator=generator)
        outputs.normal_(0, 0.5 * latent**-0.5 / _START, generator=generator)
        table.anchors[0, -1] = 1
        self.table = table

    @classmethod
    @torch.no_grad()
    def from_dense(
        cls,
        model: FastVAE,
        anchors: int | Anchors,
        interactions: Interactions,
        *,
        seed: int = 0,
    ) -> "AnchorVAE":
        """The nearest to a trained model with dense tables; it may be trained on.

        Of ordered anchors an item has the first few, `width` on average by how often it is met, and
        its bias. Anchors and mixes are those with the least squared error of scores, and entries
        are whole numbers of few bits: see `compression`. Takes seconds, and for a while
        three to four times the memory of the dense tables.

        Args:
            model: which.
            anchors: how many, or `Anchors`: also how few for an item, and in how many bits.
            interactions: the model was trained on.
            seed: of the users whose scores are looked at.

        Example:
            >>> import fewfold as ff
            >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
            >>> dense = ff.recommender.FastVAE(items=4, hidden=8, latent=2)
            >>> _ = ff.recommender.train(dense, log, epochs=3, progress=False)
            >>> from fewfold.recommender import AnchorVAE, Anchors
            >>> few = AnchorVAE.from_dense(dense, Anchors(count=3, width=2, bits=6), log)
            >>> few.settle()
            >>> few.packed["values"].dtype, few.outputs().shape
            (torch.uint8, torch.Size([4, 3]))
        """
        if isinstance(model, AnchorVAE):
            raise TypeError("the model has anchors already; give the FastVAE with dense tables")
        anchors = Anchors.of(anchors)
        if interactions.items != model.count:
            raise ValueError(
                f"the model has {model.count} items, the interactions {interactions.items}; "
                "give those it was trained on"
            )
        if not anchors.cuts(model.count):
            raise ValueError(
                f"the transform of {model.count} items and {anchors} is not held in full; "
                "say how many anchors, fewer of them, or train an AnchorVAE from the start"
            )
        hidden, rows = model.inputs.shape[1], model.count
        width = anchors.per_item(cut=True)
        made = cls(
            rows, replace(anchors, width=width), hidden=hidden, latent=model.latent,
            layers=len(model.layers.layers), dropout=model.dropout,
        )  # fmt: skip
        rest = {
            name: value for name, value in model.state().items() if name not in ("inputs", "items")
        }
        made.load_state_dict({**made.table_state(), **rest})
        made.shortcut = model.shortcut
        count = min(anchors.most, hidden + model.latent, rows)
        found = squeeze(
            model, interactions, count=count, width=min(width, count), bits=anchors.bits, seed=seed
        )  # fmt: skip
        made.table.transform.zero_()[:, : count + 1] = found.transform
        made.table.anchors[1:].zero_()
        made.table.anchors[: count + 1] = found.anchors
        made._grid = F.pad(found.steps, (0, anchors.most - count), value=1.0)
        return made

    @property
    def count(self) -> int:
        """How many items there are."""
        return self.table.num_embeddings

    @property
    def tables(self) -> list[torch.nn.Parameter]:
        """The transform, whose gradients are sparse."""
        return [self.table.transform]

    @property
    def shared_parameters(self) -> list[torch.nn.Parameter]:
        """The anchors."""
        return [self.table.anchors]

    @property
    def _into(self) -> Tensor:
        return self._live()[:, : self.hidden]

    @property
    def _out(self) -> Tensor:
        return self._live()[:, self.hidden :]

    def _live(self) -> Tensor:
        """The anchors, those not in use as zeros, so that nothing depends on their weights.

        That of the bias comes first, unless no item has one, and has no gradient: it stays.
        """
        anchors, active = self.table.anchors, self.table.active
        bias = int(self.is_bias[0])
        return torch.cat([
            anchors[:bias].detach(), anchors[bias:active], torch.zeros_like(anchors[active:])
        ])  # fmt: skip

    def _bag(self, history: Jagged, by: Tensor) -> Tensor:
        table = self.table
        if table.slots is None:  # the mix of sums is the sum of mixes
            return bags(table.transform, history, by, sparse=self.sparse) @ self._into
        transform, self._other = twice(table.transform)
        bag = mixed_bags(
            self._into.contiguous(), transform, table.slots, *history, by, sparse=self.sparse
        )
        if table.attached.watching and bag.requires_grad:
            after = table.embedding_dim - self.hidden

            def keep(gradient: Tensor) -> None:
                each = (gradient * by.unsqueeze(1))[history.row]
                table.attached.record(history.values, F.pad(each, (0, after)))

            bag.register_hook(keep)
        return bag

    def _fit(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        # The score q . (t B) is (B q) . t: the transform is the table, and few numbers wide.
        table, lifted = self.table, queries @ self._out.T
        if table.slots is None:
            if isinstance(objective, SampledSoftmax):
                seen = Seeing(objective.proposal, queries.detach())
                objective = replace(objective, proposal=seen)
            return objective(lifted, table.transform, history, generator)
        few = Decoder(table, self._other, self._out.contiguous())
        if isinstance(objective, SampledSoftmax):
            return objective(queries, few, history, generator)
        return objective(queries, few(torch.arange(self.count)), history, generator)

    @torch.no_grad()
    def entries(self) -> Tensor:
        """The encoder's item vectors, (items, hidden), without a gradient."""
        return self.table.weight[:, : self.hidden]

    def outputs(self) -> Tensor:
        """The decoder's item vectors, bias last, (items, latent + 1), without a gradient."""
        table = self.table
        if table.slots is None:
            return table.transform.detach() @ self._out.detach()
        anchors, transform = self._out.detach().contiguous(), table.transform.detach()
        out = dispatch.table(self.count, anchors.shape[1], dtype=anchors.dtype)
        for block in torch.arange(self.count).split(_BLOCK):  # what is made on the way stays small
            out[block[0] : block[-1] + 1] = mixed(
                anchors, transform, table.slots, block, sparse=False
            )
        return out

    @property
    def packed(self) -> dict[str, Tensor]:
        """The table as it is kept: few bits for a weight, a byte for a number of an anchor."""
        if self._packed is None:
            raise ValueError("the table is not in the form in which it is kept; call settle()")
        return self._packed

    def settle(self) -> None:
        """Round to what is kept, so that whatever is measured from now on is what will ship.

        Where training ended before all entries were dropped, the rest are dropped here.
        """
        if self._narrowing is not None and self.table.slots is None:
            with torch.no_grad():
                cut_rows(self.table.transform, self._narrowing.of_rows(self._narrowing.end))
        self._pack(self.table)

    def _pack(self, table: AnchorEmbedding) -> None:
        packed, _ = packed_anchors(
            table, anchors=torch.int8, values=torch.int8, bits=self.chosen.bits, scales=self._grid
        )
        self.take(packed)

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Become the model with this table."""
        stored = Stored.bare(tensors, bits=self.chosen.bits, signed=True)
        wide = self.hidden + self.latent + 1
        if stored.dim != wide:
            raise ValueError(f"anchors must be {wide} wide, got {stored.dim}")
        table = unpacked_anchors(stored)
        table.sparse = True
        self.table, self._packed, self._grid = table, tensors, tensors["value_scales"]

    @torch.no_grad()
    def take_grown(self, model: "AnchorVAE", near: Tensor, weights: Tensor) -> None:
        """Become a settled model with more items, means of the transforms of those near them.

        Args:
            model: which.
            near: (new, n) items near each new one.
            weights: (new, n) of the mean.
        """
        table, count = model.table, len(model.table.anchors)
        whole = torch.zeros(model.count, count)
        if table.slots is None:
            whole.copy_(table.transform)
        else:
            whole.scatter_add_(1, table.slots.long(), table.transform)
        mean = (whole[near] * weights.unsqueeze(2)).sum(1)
        most = int((whole != 0).sum(1).max())
        best = mean.abs().topk(min(most, count), 1).indices
        few = torch.zeros_like(mean).scatter(1, best, mean.gather(1, best))
        made = AnchorEmbedding(
            model.count + len(mean), table.embedding_dim, anchors=count, signed=True
        )
        made.anchors.copy_(table.anchors)
        made.transform.copy_(torch.cat([whole, few]))
        self._grid = model._grid
        self._pack(made)

    @property
    def is_bias(self) -> Tensor:
        """(anchors,) whether it is that of the bias, which is nothing but its column."""
        return (self.table.anchors.detach()[:, :-1] == 0).all(1)

    @torch.no_grad()
    def without_bias(self) -> AnchorEmbedding:
        """The table without the anchor of the bias: what remains says what items are."""
        table, bias = copy.deepcopy(self.table), self.is_bias
        if table.slots is None:
            table.transform[:, bias] = 0
        else:
            table.transform[bias[table.slots.long()]] = 0
        return table

    def table_state(self) -> dict[str, Tensor]:
        """The part of `state_dict` that belongs to the table."""
        return {f"table.{name}": value for name, value in self.table.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """What is kept of `state_dict` as it is: all but the table."""
        whole = self.state_dict()
        return {name: value for name, value in whole.items() if not name.startswith("table.")}

    def growth(self) -> AnchorGrowth | None:
        """What finds the number of anchors, if that is to be found."""
        if self.chosen.count is not None:
            return None
        free = _PER_ANCHOR * 1e-6  # non-zeros have a number of their own
        return AnchorGrowth(
            self.table, l1=free, per_anchor=_PER_ANCHOR, start=_FIRST + 1, step=_STEP
        )

    def kept_sparse(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """An optimiser of the transform that also drops its small entries, within so many steps."""
        self._grid = self._packed = None
        if self.table.slots is not None:
            return proximal(optimizer, self.table, l1=0.0, regrow=Regrow(until=int(_END * steps)))
        narrowing = Narrowing(
            first=self.chosen.most + 1,
            last=self.chosen.per_item(cut=False),
            after=int(_BEGIN * steps),
            over=max(1, int((_END - _BEGIN) * steps)),
            shares=(counts + 1.0) ** _POPULAR,
        )
        self._narrowing = narrowing
        return proximal(optimizer, self.table, l1=0.0, keep=narrowing)
