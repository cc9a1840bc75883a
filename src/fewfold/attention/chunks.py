"""Partition of attention into chunks of heads and queries, and the scores of one chunk."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfold._random import rand
from fewfold.attention.shapes import Layout
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors, with_tensors

__all__ = ["Chunk", "Plan", "parameter_by_head"]

_AT_ONCE = 2**19  # scores per chunk, so that they fit into the cache


def parameter_by_head(parameter: Tensor, layout: Layout) -> Tensor:
    """Reshape a tensor parameter of omega to (heads, L or 1, S or 1)."""
    shape = (1,) * (len(layout.shape) - parameter.dim()) + tuple(parameter.shape)
    try:
        fits = torch.broadcast_shapes(shape, layout.shape) == layout.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"the tensors of omega must broadcast to the scores {tuple(layout.shape)}, as "
            f"(heads, 1, 1) does; got {tuple(parameter.shape)}"
        )
    spread = parameter.reshape(shape).expand(*layout.batch, *shape[-2:])
    return spread.reshape(layout.heads, *shape[-2:])


@dataclass(frozen=True)
class Chunk:
    """A range of heads, a range of queries, and the number of keys visible to them."""

    heads: slice
    rows: slice
    keys: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Partition of one attention call into chunks, with its omega and dropout."""

    layout: Layout
    omega: Omega
    dropout: float = 0.0
    seed: int = 0

    def with_mask(self, mask: Tensor | None) -> "Plan":
        """Copy of the plan with another mask."""
        return replace(self, layout=replace(self.layout, mask=mask))

    def score_buffer(self, like: Tensor) -> Tensor:
        """Buffer for the scores of a chunk, reused to avoid fragmenting the heap."""
        heads, rows = self._size()
        return like.new_empty(min(heads, self.layout.heads) * rows * self.layout.keys)

    def _size(self) -> tuple[int, int]:
        """Number of heads and of queries per chunk."""
        queries, keys = self.layout.queries, self.layout.keys
        rows = min(queries, max(1, _AT_ONCE // max(keys, 1)))
        return (max(1, _AT_ONCE // max(queries * keys, 1)) if rows == queries else 1), rows

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over all chunks."""
        heads, queries, keys = self.layout.heads, self.layout.queries, self.layout.keys
        many, rows = self._size()
        # Without `drops_masked`, omega may need more keys than are visible to the first queries.
        cut = self.layout.causal and self.omega.drops_masked
        for head in range(0, heads, many):
            for row in range(0, queries, rows):
                last = min(row + rows, queries)
                seen = min(last, keys) if cut else keys
                yield Chunk(slice(head, min(head + many, heads)), slice(row, last), seen)

    def visible(self, keys: Tensor, chunk: Chunk) -> Tensor:
        """Keys or values visible to a chunk, (heads, S, d)."""
        if self.layout.group == 1:
            return keys[chunk.heads, : chunk.keys]
        return keys[self.key_heads(chunk, keys), : chunk.keys]

    def key_heads(self, chunk: Chunk, like: Tensor) -> Tensor:
        """Index of the key head that serves each query head of a chunk."""
        heads = torch.arange(chunk.heads.start, chunk.heads.stop, device=like.device)
        return heads // self.layout.group

    def scores(
        self, query: Tensor, key: Tensor, chunk: Chunk, buffer: Tensor | None = None
    ) -> Tensor:
        """Masked scores (heads, rows, keys) of a chunk, written to `buffer` if given."""
        shape = (*query.shape[:2], key.shape[1])
        out = None if buffer is None else buffer[: math.prod(shape)].view(shape)
        found = torch.bmm(query * self.layout.scale, key.transpose(1, 2), out=out)
        if self.layout.causal:
            row = torch.arange(chunk.rows.start, chunk.rows.stop, device=query.device)
            later = torch.arange(chunk.keys, device=query.device) > row.unsqueeze(1)
            found = found.masked_fill_(later, -math.inf)
        mask = self.layout.mask
        if mask is None:
            return found
        every = mask.expand(self.layout.shape)
        own = [part[chunk.rows, : chunk.keys] for part in self._heads(every, chunk)]
        here = torch.stack(own) if len(own) > 1 else own[0].unsqueeze(0)
        if mask.dtype == torch.bool:
            return found.masked_fill_(~here, -math.inf)
        return found.add_(here)

    def _heads(self, every: Tensor, chunk: Chunk) -> Iterator[Tensor]:
        """Yield the (L, S) mask of each head; flattening the batch would copy the mask."""
        for head in range(chunk.heads.start, chunk.heads.stop):
            part, rest = every, head
            for size in self.layout.batch[::-1]:
                rest, place = divmod(rest, size)
                part = part.select(part.dim() - 3, place)
            yield part

    def chunk_omega(self, chunk: Chunk, parameters: list[Tensor]) -> Omega:
        """Omega with its tensor parameters, (heads, L or 1, S or 1), sliced for a chunk."""
        cut = [
            value[
                chunk.heads,
                chunk.rows if value.shape[1] > 1 else slice(None),
                : chunk.keys if value.shape[2] > 1 else 1,
            ]
            for value in parameters
        ]
        omega = with_tensors(self.omega, dict(zip(tensors(self.omega), cut, strict=True)))
        return omega.for_size(chunk.keys)

    def dropout_mask(self, shape: torch.Size, number: int, like: Tensor) -> Tensor | None:
        """Dropout factors of chunk `number`, 0 or 1 / (1 - p); the same at every call."""
        if not self.dropout:
            return None
        generator = torch.Generator().manual_seed(self.seed + number)
        stay = rand(shape, like.device, generator=generator) >= self.dropout
        return stay.to(like) / ((1 - self.dropout) or 1.0)  # p = 1 drops all weights
