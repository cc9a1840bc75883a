"""FastVAE whose two tables are mixes of few anchors, by one transform for both."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold import _native
from fewfold._check import whole_number
from fewfold.embeddings.embedding import AnchorEmbedding
from fewfold.embeddings.export import packed_anchors, unpacked_anchors
from fewfold.embeddings.growth import AnchorGrowth
from fewfold.embeddings.layout import spread
from fewfold.embeddings.mix import mixed, mixed_bags
from fewfold.embeddings.proximal import proximal
from fewfold.embeddings.schedules import Narrowing, Regrow
from fewfold.embeddings.stored import FORMAT, VERSION, Stored
from fewfold.embeddings.winners import cut_rows
from fewfold.optim.rows import RowOptimizer
from fewfold.recommender.bag import bags
from fewfold.recommender.fastvae import FastVAE, Objective, SampledSoftmax
from fewfold.recommender.interactions import Jagged
from fewfold.sampling.proposal import Given, Proposal

__all__ = ["AnchorVAE", "Anchors"]

_START = 0.2  # of the transform, where anchors have so much more: they move the table more evenly
_BEGIN, _END = 0.1, 0.6  # parts of the steps between which entries are dropped
_MOST, _FIRST, _STEP = 256, 16, 16  # anchors, where their number is found
_PER_ANCHOR = 2.5e-4  # nats of an interaction that an anchor has to be worth
_HEAVY = 4.0  # an error of an output is as bad as one of so many inputs
_POPULAR = 0.75  # an item's share of the entries is its count to this power
_BLOCK = 1 << 18  # items whose vectors are made at once
_FULL = 1 << 25  # entries of a transform that is held in full


@dataclass(frozen=True)
class Anchors:
    """How small the tables of a recommender are to be.

    Attributes:
        count: anchors, each of the width of both tables together. None: their number is found in
            training, by what a twentieth of the users, kept out of it, would lose and gain.
        width: non-zeros of an item, on average over the items.
    """

    count: int | None = 64
    width: int = 8

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number(self.count, "count")
        whole_number(self.width, "width")
        if self.width > self.most:
            raise ValueError(f"width must be at most count={self.most}, got {self.width}")

    @property
    def most(self) -> int:
        """Anchors that there is room for."""
        return _MOST if self.count is None else self.count


class AnchorVAE(FastVAE):
    """A `FastVAE` in which item i is a row t_i of a sparse transform, times anchors.

        E_i = t_i A,    q_i = t_i B + bias_i,

    with the same t_i for what it is as an input and what it is as an output. The bias is the
    weight of one more anchor, which is a one in the bias's column. All else is as in `FastVAE`.

    Training starts with all entries of t_i; between a tenth and six tenths of the steps the
    smallest are dropped, by a constant factor, and what is left is trained to the end.

    Args:
        items: how many.
        anchors: how many, and how few of them an item is made of.
        hidden, latent, layers, dropout, seed: as in `FastVAE`.

    Example:
        >>> import fewfold as ff
        >>> model = ff.AnchorVAE(items=1000, anchors=ff.Anchors(count=16, width=4))
        >>> model.outputs().shape
        torch.Size([1000, 64])
    """

    def __init__(
        self,
        items: int,
        anchors: Anchors,
        *,
        hidden: int = 200,
        latent: int = 63,
        layers: int = 1,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.chosen, self.hidden = anchors, hidden
        self._packed: dict[str, Tensor] | None = None
        self._narrowing: Narrowing | None = None
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
        width = self.chosen.width + 1 if few else None
        table = AnchorEmbedding(
            items, hidden + latent + 1, anchors=count + 1, width=width, signed=True, sparse=True,
            generator=generator,
        )  # fmt: skip
        entries = width or count
        table.transform.normal_(0, _START * entries**-0.5, generator=generator)
        table.transform[:, 0] = 0
        if table.slots is not None:  # the first of each is the bias
            others = torch.empty_like(table.slots[:, 1:])
            spread(others, count, generator)
            table.slots[:, 1:], table.slots[:, 0] = others + 1, 0
        table.anchors.zero_()
        inputs, outputs = table.anchors[1:, :hidden], table.anchors[1:, hidden:-1]
        inputs.normal_(0, hidden**-0.5 / _START, generator=generator)
        outputs.normal_(0, 0.5 * latent**-0.5 / _START, generator=generator)
        table.anchors[0, -1] = 1
        table.anchors.register_hook(_but_the_bias)
        self.table = table

    @classmethod
    @torch.no_grad()
    def from_dense(cls, model: FastVAE, anchors: Anchors, counts: Tensor) -> "AnchorVAE":
        """The nearest to a trained model with dense tables, to be trained on.

        The two tables side by side, outputs four times as heavy and items by the root of how often
        they are met, are cut to as many singular vectors as there are anchors. Of these an item
        has the first few, as many as its share by count; `width` of them on average.

        Args:
            model: which.
            anchors: how many, and how few for an item.
            counts: (items,) how often each is met.
        """
        hidden, rows = model.inputs.shape[1], model.count
        made = cls(
            rows, anchors, hidden=hidden, latent=model.latent, layers=len(model.layers.layers),
            dropout=model.dropout,
        )  # fmt: skip
        if made.table.slots is not None or anchors.count is None:
            raise ValueError(f"the transform of {rows} items and {anchors} is not held in full")
        rest = {
            name: value for name, value in model.state().items() if name not in ("inputs", "items")
        }
        made.load_state_dict({**made.table_state(), **rest})
        heavy = (counts.to(model.inputs.dtype) + 1).sqrt().unsqueeze(1)
        both = torch.cat([model.inputs, _HEAVY * model.items[:, :-1]], 1) * heavy
        count = min(anchors.count, both.shape[1], rows)
        # The singular vectors of few columns, from their products: rows may be many.
        _, vectors = torch.linalg.eigh((both.T @ both).double())
        kept = vectors[:, -count:].flip(1).to(both.dtype)  # the largest first
        share = both @ kept / heavy
        size = share.square().mean().sqrt() / (_START * count**-0.5)
        if anchors.width < count:
            shares = (counts + 1.0) ** _POPULAR
            own = Narrowing(first=count, last=anchors.width, over=1, shares=shares).of_rows(1)
            share = torch.where(torch.arange(count) < own.unsqueeze(1), share, 0)
        made.table.transform.zero_()
        made.table.transform[:, 1 : count + 1] = share / size
        made.table.transform[:, 0] = model.items[:, -1]
        made.table.anchors[1:].zero_()
        made.table.anchors[1 : count + 1, :hidden] = kept[:hidden].T * size
        made.table.anchors[1 : count + 1, hidden:-1] = kept[hidden:].T * size / _HEAVY
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
        """The anchors, those not in use as zeros, so that nothing depends on their weights."""
        anchors, active = self.table.anchors, self.table.active
        if active == len(anchors):
            return anchors
        return torch.cat([anchors[:active], torch.zeros_like(anchors[active:])])

    def _bag(self, history: Jagged, by: Tensor) -> Tensor:
        table = self.table
        if table.slots is None:  # the mix of sums is the sum of mixes
            return bags(table.transform, history, by, sparse=self.sparse) @ self._into
        transform, self._other = _twice(table.transform)
        bag = mixed_bags(
            self._into.contiguous(), transform, table.slots, *history, by, sparse=self.sparse
        )
        if table.attached.watching and bag.requires_grad:
            after = table.embedding_dim - self.hidden

            def keep(gradient: Tensor) -> None:
                each = (gradient * by.unsqueeze(1))[history.row]
                table.attached.keep(history.values, F.pad(each, (0, after)))

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
                seen = _Seeing(objective.proposal, queries.detach())
                objective = replace(objective, proposal=seen)
            return objective(lifted, table.transform, history, generator)
        if isinstance(objective, SampledSoftmax):
            few = _Decoder(table, self._other, self._out.contiguous())
            return objective(queries, few, history, generator)
        return objective(queries, table.weight[:, self.hidden :], history, generator)

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
        out = _native.table(self.count, anchors.shape[1], dtype=anchors.dtype)
        for block in torch.arange(self.count).split(_BLOCK):  # what is made on the way stays small
            out[block[0] : block[-1] + 1] = mixed(
                anchors, transform, table.slots, block, sparse=False
            )
        return out

    @property
    def packed(self) -> dict[str, Tensor]:
        """The table as it is kept: one byte for a weight, one for a number of an anchor."""
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
        self.take(packed_anchors(self.table, anchors=torch.int8, values=torch.int8)[0])

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Become the model with this table."""
        count, dim = tensors["anchors"].shape
        about = {
            "format": FORMAT, "version": VERSION, "dim": dim, "anchors": count, "signed": 1,
            "rows": len(tensors.get("lengths", tensors["values"])),
            "nonzeros": int(tensors["values"].count_nonzero()),
        }  # fmt: skip
        if dim != self.hidden + self.latent + 1:
            raise ValueError(f"anchors must be {self.hidden + self.latent + 1} wide, got {dim}")
        told = {name: str(value) for name, value in about.items()}
        table = unpacked_anchors(Stored.of(tensors, told, Path("the table of anchors")))
        table.sparse = True
        self.table, self._packed = table, tensors

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
        self.take(packed_anchors(made, anchors=torch.int8, values=torch.int8)[0])

    @torch.no_grad()
    def without_bias(self) -> AnchorEmbedding:
        """The table without the anchor of the bias: what remains says what items are."""
        table = copy.deepcopy(self.table)
        bias = (table.anchors[:, :-1] == 0).all(1)
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
        if self.table.slots is not None:
            return proximal(optimizer, self.table, l1=0.0, regrow=Regrow(until=int(_END * steps)))
        narrowing = Narrowing(
            first=self.chosen.most + 1,
            last=self.chosen.width,
            after=int(_BEGIN * steps),
            over=max(1, int((_END - _BEGIN) * steps)),
            shares=(counts + 1.0) ** _POPULAR,
        )
        self._narrowing = narrowing
        return proximal(optimizer, self.table, l1=0.0, keep=narrowing)


def _but_the_bias(gradient: Tensor) -> Tensor:
    """The first anchor is the bias's, and stays."""
    gradient = gradient.clone()
    gradient[0] = 0
    return gradient


class _Twice(torch.autograd.Function):
    """A table that is used twice, whose sparse gradients are put one after the other.

    Torch would add them up, for as much time as everything else in the backward pass takes.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        return table.view_as(table), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        there = [grad for grad in grads if grad is not None]
        if len(there) < 2 or not all(grad.is_sparse for grad in there):
            whole = [grad.to_dense() for grad in there]
            return torch.stack(whole).sum(0) if whole else None
        where = torch.cat([grad._indices() for grad in there], 1)
        values = torch.cat([grad._values() for grad in there])
        return torch.sparse_coo_tensor(where, values, there[0].shape, check_invariants=False)


def _twice(table: Tensor) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Twice.apply(table)
    return both


class _Decoder:
    """The outputs of a table of fixed width, as a sampled loss takes them."""

    padding_idx = max_norm = None
    scale_grad_by_freq, sparse = False, True

    def __init__(self, table: AnchorEmbedding, transform: Tensor, anchors: Tensor) -> None:
        self.anchors, self.transform, self.slots = anchors, transform, table.slots
        self.num_embeddings, self.attached = table.num_embeddings, table.attached
        self._before = table.embedding_dim - anchors.shape[1]

    def __call__(self, ids: Tensor) -> Tensor:
        flat = ids.flatten()
        if self.slots is None:
            raise ValueError("a table that is held in full is its own decoder")
        vectors = mixed(self.anchors, self.transform, self.slots, flat, sparse=True)
        if self.attached.watching and vectors.requires_grad:
            vectors.register_hook(
                lambda gradient: self.attached.keep(flat, F.pad(gradient, (self._before, 0)))
            )
        return vectors.view(*ids.shape, -1)


class _Seeing(Proposal):
    """A proposal that is asked with these queries, whatever it is given."""

    def __init__(self, proposal: Proposal, queries: Tensor) -> None:
        self.proposal, self.queries = proposal, queries

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        """Fit the proposal itself."""
        self.proposal.fit(item_vectors, counts)
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """What the proposal draws from for its own queries."""
        return self.proposal.given(self.queries, shared=shared)
