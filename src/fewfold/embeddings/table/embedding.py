"""An embedding table whose rows are sparse mixes of a few anchors."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fewfold._check import whole_number
from fewfold.embeddings.initial.sparse_coding import learn_dictionary
from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from fewfold.embeddings.table.dense_transform import product
from fewfold.embeddings.table.hooks import Attached
from fewfold.embeddings.table.pooling import Mode, bag
from fewfold.embeddings.table.sparse_rows import SparseRows, padding, room, small_integer, spread
from fewfold.embeddings.table.tied_logits import tied_scores

__all__ = ["AnchorEmbedding"]


class AnchorEmbedding(nn.Module):
    """An `nn.Embedding` of which row i is a mix of a few of K anchors, sum_k T_ik A_k with T >= 0.

    What is kept is the anchors A (K, d) and, for each row, the non-zeros of T: tens of times less
    than the table. `proximal` wraps an optimiser so that they become few. Two ways to hold T:

    - full (`width=None`): `transform` is T itself, (rows, K). For few anchors or few rows.
    - fixed width (`width=s`): `transform` is (rows, s), and `slots` (rows, s) says which anchors
      these are, in as few bytes as K needs. A lookup and its gradient cost s times the rows in
      use, however many there are. Which anchors a row mixes changes by `Regrow`.

    While a `proximal` optimiser with sparse gradients is at work, read T by `rows()` and not from
    `transform`: rows that were not in use owe what they are to shrink by until they are read, and
    a parameter cannot know that it is. `optimizer.settle()` brings all of them up to date. A table
    that shares the `transform` of another one is not told, either: settle before you read it.

    Args:
        num_embeddings: rows.
        embedding_dim: d.
        padding_idx: a row that starts as zero and gets no gradient.
        max_norm: rows that are looked up are first scaled down to this norm, in place.
        norm_type: of that norm.
        scale_grad_by_freq: divide the gradient of a row by how often it occurs in the batch.
        sparse: whether the gradient of `transform` is sparse, as `fewfold.optim` takes it.
        anchors: K.
        width: s, or None.
        signed: whether entries of T may be negative.
        generator: of the first values.
        device, dtype: of all of it.

    Example:
        >>> import torch, fewfold as ff
        >>> table = ff.AnchorEmbedding(10_000, 64, anchors=32, width=4)
        >>> table(torch.tensor([[3, 14, 15], [9, 2, 6]])).shape
        torch.Size([2, 3, 64])
        >>> table.size(), 10_000 * 64
        (42048, 640000)

    Reference: Liang, Zaheer, Wang, Ahmed, "Anchor & Transform: learning sparse embeddings for large
    vocabularies", 2021.
    """

    anchors: nn.Parameter
    transform: nn.Parameter
    slots: Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        anchors: int,
        width: int | None = None,
        signed: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("num_embeddings", num_embeddings),
            ("embedding_dim", embedding_dim),
            ("anchors", anchors),
        ):
            whole_number(value, name)
        if width is not None:
            whole_number(width, "width")
            if width > anchors:
                raise ValueError(
                    f"width must be at most anchors={anchors}, got {width}; "
                    "for all anchors in every row leave it out"
                )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding(padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse, self.signed = scale_grad_by_freq, sparse, signed
        self.attached = Attached()
        self._active = anchors
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.anchors = nn.Parameter(torch.empty(anchors, embedding_dim, **options))
        self.transform = nn.Parameter(room(num_embeddings, width or anchors, **options))
        slots = None
        if width is not None:
            slots = room(num_embeddings, width, dtype=small_integer(anchors), device=device)
        self.register_buffer("slots", slots)
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all values anew, such that a row's entries have about variance one."""
        self.attached.before_read(None)  # what is owed is not owed by the new ones
        self.anchors.normal_(generator=generator)
        width = self.transform.shape[1]
        if self.signed:
            self.transform.normal_(0, width**-0.5, generator=generator)
        elif self.slots is not None:
            self.transform.normal_(0, width**-0.5, generator=generator).abs_()
        else:  # half of them zero: rows that mix everything would all be alike
            self.transform.normal_(0, (2 / width) ** 0.5, generator=generator).clamp_(min=0)
        if self.slots is not None:
            spread(self.slots, len(self.anchors), generator)
        if self.padding_idx is not None:
            self.transform[self.padding_idx] = 0

    @property
    def width(self) -> int | None:
        """Non-zeros a row has room for; None if all of them."""
        return None if self.slots is None else self.slots.shape[1]

    @property
    def active(self) -> int:
        """How many anchors are in use, the first ones; those not in use keep their values."""
        return self._active

    @active.setter
    def active(self, count: int) -> None:
        most = len(self.anchors)
        whole_number(count, "active")
        if self.slots is not None and count != most:
            raise ValueError(
                "a table of fixed width uses all of its anchors; write width=None for a number of "
                "anchors that changes"
            )
        if count > most:
            raise ValueError(f"active must be at most anchors={most}, got {count}")
        self._active = count

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape to their vectors, (*shape, d)."""
        return self.vectors(input)

    def vectors(self, input: Tensor) -> Tensor:
        """The same by name, also where bags are what is called for."""
        ids = _whole(input)
        self._check_parallel()
        self.attached.before_read(ids)
        self._renorm(ids)
        vectors = self._mix(ids)
        if self.padding_idx is not None:
            pad = (ids == self.padding_idx).unsqueeze(-1)
            vectors = torch.where(pad, vectors.detach(), vectors)
        if self.scale_grad_by_freq:
            _, place, counts = ids.unique(return_inverse=True, return_counts=True)
            value = vectors.detach()  # unchanged, with another gradient
            vectors = value + (vectors - value) / counts[place].unsqueeze(-1)
        self.attached.watch(ids, vectors)
        return vectors

    def _check_parallel(self) -> None:
        """Raise inside a `DistributedDataParallel` that would fail in the backward pass."""
        if not self.sparse or torch.compiler.is_compiling():
            return
        running = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if running is None or not torch.is_grad_enabled() or running.parameters_to_ignore:
            return
        if not getattr(running, "knows_sparse_tables", False):
            raise TypeError(
                "DistributedDataParallel does not know that the gradient of an anchor table is "
                "sparse; write fewfold.embeddings.DataParallel(model), or sparse=False"
            )

    def unscaled(self, ids: Tensor) -> Tensor:
        """The vectors as they are: `max_norm` scales none of them, and nothing is recorded."""
        self.attached.before_read(ids)
        return self._mix(ids)

    def _mix(self, ids: Tensor) -> Tensor:
        if self.slots is None:
            few = F.embedding(ids, self.transform, sparse=self.sparse)
            mix: Tensor = few[..., : self._active] @ self.anchors[: self._active]
            return mix
        flat = mixed(self.anchors, self.transform, self.slots, ids.flatten(), sparse=self.sparse)
        return flat.view(*ids.shape, self.embedding_dim)

    def bag(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
        *,
        mode: Mode = "sum",
        include_last_offset: bool = False,
    ) -> Tensor:
        """Sums, means or maxima of vectors, (bags, d); arguments as in `F.embedding_bag`."""
        special = (
            input.dim() != 1 or per_sample_weights is not None or mode == "max"
            or self.padding_idx is not None or self.max_norm is not None
            or self.scale_grad_by_freq or self.attached.watching
        )  # fmt: skip
        if special or offsets is None:
            pad = None if self.padding_idx is None else input == self.padding_idx
            return bag(
                self.vectors(input), offsets, per_sample_weights, pad, mode=mode,
                include_last_offset=include_last_offset,
            )  # fmt: skip
        ids, ends = _whole(input), offsets.to(torch.int64)
        self._check_parallel()
        self.attached.before_read(ids)
        if self.slots is None:  # the sum of mixes is the mix of sums
            few = F.embedding_bag(
                ids, self.transform, ends, mode=mode, sparse=self.sparse,
                include_last_offset=include_last_offset,
            )  # fmt: skip
            return few[:, : self._active] @ self.anchors[: self._active]
        if not include_last_offset:
            ends = F.pad(ends, (0, 1), value=len(ids))
        by = torch.ones(len(ends) - 1, dtype=self.anchors.dtype, device=ids.device)
        if mode == "mean":
            by = by / ends.diff().clamp(min=1)
        return mixed_bags(
            self.anchors, self.transform, self.slots, ids, ends, by, sparse=self.sparse
        )

    def logits(self, hidden: Tensor, bias: Tensor | None = None, threshold: float = 0.0) -> Tensor:
        """Scores of all rows, T (A h) + bias: the table as a tied output layer.

        Costs K d + nonzeros of T per vector, not rows times d, where the width is fixed; K d +
        rows K where it is not: `narrow` after training loses nothing.

        Args:
            hidden: (..., d).
            bias: (rows,).
            threshold: gradients of scores this small and smaller are taken for zero. Of a softmax
                nearly all are, so that few rows get a gradient (a sparse one if `sparse`).

        Returns:
            (..., rows).
        """
        if threshold < 0:
            raise ValueError(f"threshold must be at least 0, got {threshold}")
        if hidden.dim() == 0 or hidden.shape[-1] != self.embedding_dim:
            raise ValueError(
                f"hidden must be (..., {self.embedding_dim}), vectors as long as those of the "
                f"table, got {tuple(hidden.shape)}"
            )
        self._check_parallel()
        self.attached.before_read(None)
        flat = hidden.reshape(-1, self.embedding_dim)
        projected = flat @ self.anchors[: self._active].t()
        if self.slots is None:
            few = self.transform if self._active == len(self.anchors) else self._in_use()
            scores = product(projected, few, threshold=threshold, sparse=self.sparse)
        else:
            scores = tied_scores(
                projected, self.transform, self.slots, threshold=threshold, sparse=self.sparse
            )
        self.attached.watch_scores(flat, scores, threshold)
        if bias is not None:
            scores = scores + bias
        return scores.view(*hidden.shape[:-1], self.num_embeddings)

    def _in_use(self) -> Tensor:
        return self.transform[:, : self._active]

    @property
    def weight(self) -> Tensor:
        """The table itself, (rows, d), with a gradient, for code that wants `nn.Embedding.weight`.

        It costs what this class is there to save.
        """
        self.attached.before_read(None)
        if self.slots is None:
            return self._in_use() @ self.anchors[: self._active]
        return self._mix(torch.arange(self.num_embeddings, device=self.anchors.device))

    @torch.no_grad()
    def rows(self) -> SparseRows:
        """The non-zeros of T."""
        self.attached.before_read(None)
        values = self._in_use() if self.slots is None else self.transform.detach()
        present = values != 0
        row, place = present.nonzero(as_tuple=True)
        slots = place if self.slots is None else self.slots[row, place].to(torch.int64)
        order = (row * len(self.anchors) + slots).argsort(stable=True)
        ends = F.pad(present.sum(1).cumsum(0), (1, 0))
        return SparseRows(ends, slots[order], values[row, place][order].clone())

    def nonzeros(self) -> int:
        """Non-zeros of T over the anchors in use."""
        self.attached.before_read(None)
        return int(torch.count_nonzero(self._in_use() if self.slots is None else self.transform))

    def size(self) -> int:
        """Numbers to be kept: anchors in use times d, and the non-zeros of T."""
        return self._active * self.embedding_dim + self.nonzeros()

    @torch.no_grad()
    def narrow(self, width: int | None = None) -> "AnchorEmbedding":
        """Keep the `width` largest entries of each row, from now on in a fixed width; in place.

        Without a width, that of the row with the most entries: nothing is lost. The parameter is
        another one afterwards: make a new optimiser.
        """
        self.attached.before_read(None)
        values = self._in_use() if self.slots is None else self.transform.detach()
        if width is None:
            width = max(int((values != 0).sum(1).max()), 1)
        whole_number(width, "width")
        top = values.abs().topk(min(width, values.shape[1]), 1).indices
        slots = top if self.slots is None else self.slots.gather(1, top)
        self.slots = slots.to(small_integer(len(self.anchors)))
        self.transform = nn.Parameter(values.gather(1, top), self.transform.requires_grad)
        if self._active < len(self.anchors):  # those not in use are no longer reached
            self.anchors = nn.Parameter(
                self.anchors[: self._active].clone(), self.anchors.requires_grad
            )
        self.attached = Attached()
        return self

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        anchors: int,
        width: int = 8,
        signed: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> "AnchorEmbedding":
        """The nearest that can be found to a table (rows, d), with `width` anchors per row.

        Further options are those of the constructor.
        """
        if embeddings.dim() != 2:
            raise ValueError(f"embeddings must be (rows, d), got shape {tuple(embeddings.shape)}")
        found = learn_dictionary(
            embeddings.detach(), anchors, width, signed=signed, generator=generator
        )
        rows, d = embeddings.shape
        made = cls(
            rows, d, padding_idx=padding_idx, anchors=anchors, width=width, signed=signed,
            dtype=embeddings.dtype, device=embeddings.device, **options,
        )  # fmt: skip
        made.slots = found.slots.to(small_integer(anchors))
        with torch.no_grad():
            made.anchors.copy_(found.anchors)
            made.transform.copy_(found.weights)
            if made.padding_idx is not None:
                made.transform[made.padding_idx] = 0
        return made.requires_grad_(not freeze)

    @torch.no_grad()
    def _renorm(self, ids: Tensor) -> None:
        if self.max_norm is None:
            return
        some = ids.unique()
        norms = self._mix(some).norm(self.norm_type, 1)
        long = norms > self.max_norm
        by = self.max_norm / (norms[long] + 1e-7)
        used = self.transform.shape[1] if self.slots is not None else self._active
        self.transform[some[long], :used] *= by.unsqueeze(1)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        self.attached.before_read(None)  # the values that come owe nothing
        given = state_dict.get(f"{prefix}anchors")
        if given is not None and given.shape != self.anchors.shape:
            own = f"the table has {len(self.anchors)} of length {self.embedding_dim}"
            if given.dim() == 2:
                count, d = given.shape
                told = f"{count} of length {d}, {own}; "
                told += f"make it with anchors={count}, embedding_dim={d}"
            else:
                told = f"a tensor of shape {tuple(given.shape)}, {own}"
            arguments[-1].append(f"{prefix}anchors are {told}")
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "AnchorEmbedding":
        self.attached.before_read(None)  # a copy has nobody to settle it
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        self.attached.before_read(None)  # nor has what is pickled
        return self.__dict__

    def get_extra_state(self) -> Tensor:
        """How many anchors are in use, beside the tensors."""
        return torch.tensor(self._active)

    def set_extra_state(self, state: Tensor) -> None:
        """Take it back."""
        self.active = int(state)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.attached.before_read(None)  # what is saved is what would be read
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def extra_repr(self) -> str:
        """What a person wants to see."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}, anchors={len(self.anchors)}"]
        if self._active != len(self.anchors):
            parts.append(f"active={self._active}")
        for name in ("width", "padding_idx", "max_norm"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name}={value}")
        parts += [f"{name}=True" for name in ("sparse", "signed") if getattr(self, name)]
        return ", ".join(parts)


def _whole(ids: Tensor) -> Tensor:
    """Ids as int64; what is not a whole number is none."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"ids must be whole numbers, got {ids.dtype}; write ids.long()")
    return ids.to(torch.int64)
