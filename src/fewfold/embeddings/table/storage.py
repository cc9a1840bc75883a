"""Parameters of an anchor table: anchors A and sparse transform T, full or of fixed width."""

import copy
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold._random import normal_
from fewfold.embeddings.table.hooks import TableHooks
from fewfold.embeddings.table.sparse_rows import (
    SparseRows,
    check_padding,
    draw_slots,
    empty_table,
    small_integer,
)

__all__ = ["AnchorStorage"]


class AnchorStorage(nn.Module):
    """Parameters, initialisation, sizes and state of an `AnchorEmbedding`; arguments as there.

    Every method that reads `transform` calls `attached.before_read` first, so that rows with a
    deferred penalty are brought up to date.
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
        self.padding_idx = check_padding(padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse, self.signed = scale_grad_by_freq, sparse, signed
        self.attached = TableHooks()
        self._active = anchors
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.anchors = nn.Parameter(torch.empty(anchors, embedding_dim, **options))
        self.transform = nn.Parameter(empty_table(num_embeddings, width or anchors, **options))
        slots = None
        if width is not None:
            slots = empty_table(num_embeddings, width, dtype=small_integer(anchors), device=device)
        self.register_buffer("slots", slots)
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new initial values, such that entries of a row have variance about one."""
        self.attached.before_read(None)  # a deferred penalty must not apply to the new values
        normal_(self.anchors, generator=generator)
        width = self.transform.shape[1]
        if self.signed:
            normal_(self.transform, 0, width**-0.5, generator=generator)
        elif self.slots is not None:
            normal_(self.transform, 0, width**-0.5, generator=generator).abs_()
        else:  # half of the entries are zero: positive weights on all anchors give similar rows
            normal_(self.transform, 0, (2 / width) ** 0.5, generator=generator).clamp_(min=0)
        if self.slots is not None:
            draw_slots(self.slots, len(self.anchors), generator)
        if self.padding_idx is not None:
            self.transform[self.padding_idx] = 0

    @property
    def width(self) -> int | None:
        """Number of stored entries per row; None if T is stored in full."""
        return None if self.slots is None else self.slots.shape[1]

    @property
    def active(self) -> int:
        """Number of anchors in use, the first ones; the values of the others stay unchanged."""
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

    def _active_transform(self) -> Tensor:
        """Stored entries of T, without the columns of anchors that are not in use."""
        return self.transform[:, : self._active] if self.slots is None else self.transform

    @torch.no_grad()
    def rows(self) -> SparseRows:
        """Return the non-zeros of T in compressed sparse row order."""
        self.attached.before_read(None)
        values = self._active_transform().detach()
        present = values != 0
        row, place = present.nonzero(as_tuple=True)
        slots = place if self.slots is None else self.slots[row, place].to(torch.int64)
        order = (row * len(self.anchors) + slots).argsort(stable=True)
        ends = F.pad(present.sum(1).cumsum(0), (1, 0))
        return SparseRows(ends, slots[order], values[row, place][order].clone())

    def nonzeros(self) -> int:
        """Return the number of non-zeros of T over the anchors in use."""
        self.attached.before_read(None)
        return int(torch.count_nonzero(self._active_transform()))

    def size(self) -> int:
        """Return the number of parameters to store: anchors in use times d, and non-zeros of T."""
        return self._active * self.embedding_dim + self.nonzeros()

    @torch.no_grad()
    def narrow(self, width: int | None = None) -> Self:
        """Convert T to a fixed width in place, keeping the `width` largest entries of each row.

        With `width=None` the width is that of the row with the most non-zeros, and no entry is
        lost. This replaces the parameter `transform`: create a new optimiser.
        """
        self.attached.before_read(None)
        values = self._active_transform().detach()
        if width is None:
            width = max(int((values != 0).sum(1).max()), 1)
        whole_number(width, "width")
        top = values.abs().topk(min(width, values.shape[1]), 1).indices
        slots = top if self.slots is None else self.slots.gather(1, top)
        self.slots = slots.to(small_integer(len(self.anchors)))
        self.transform = nn.Parameter(values.gather(1, top), self.transform.requires_grad)
        if self._active < len(self.anchors):  # no slot refers to the anchors out of use
            self.anchors = nn.Parameter(
                self.anchors[: self._active].clone(), self.anchors.requires_grad
            )
        self.attached = TableHooks()
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        self.attached.before_read(None)  # a deferred penalty must not apply to the loaded values
        given = state_dict.get(f"{prefix}anchors")
        if given is not None and given.shape != self.anchors.shape:
            own = f"the table has {len(self.anchors)} of length {self.embedding_dim}"
            if given.dim() == 2:
                count, d = given.shape
                mismatch = f"{count} of length {d}, {own}; "
                mismatch += f"make it with anchors={count}, embedding_dim={d}"
            else:
                mismatch = f"a tensor of shape {tuple(given.shape)}, {own}"
            arguments[-1].append(f"{prefix}anchors are {mismatch}")
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.attached.before_read(None)  # save the values that a lookup would read
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        self.attached.before_read(None)  # the copy has no optimiser to apply a deferred penalty
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        self.attached.before_read(None)  # as in a copy
        return self.__dict__

    def get_extra_state(self) -> Tensor:
        """Return the number of anchors in use, for `state_dict`."""
        return torch.tensor(self._active)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the number of anchors in use."""
        self.active = int(state)

    def extra_repr(self) -> str:
        """Return the options shown by `print`."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}, anchors={len(self.anchors)}"]
        if self._active != len(self.anchors):
            parts.append(f"active={self._active}")
        for name in ("width", "padding_idx", "max_norm"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name}={value}")
        parts += [f"{name}=True" for name in ("sparse", "signed") if getattr(self, name)]
        return ", ".join(parts)
