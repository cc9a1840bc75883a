"""The work of attention cut into pieces: which queries, which keys, and what a piece needs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfold.attention.shapes import Layout
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors, with_tensors

__all__ = ["Piece", "Plan", "by_head"]

_AT_ONCE = 2**19  # scores in a piece: they should stay in the cache


def by_head(parameter: Tensor, layout: Layout) -> Tensor:
    """A tensor of omega as (heads, L or 1, S or 1)."""
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
class Piece:
    """Some queries of some heads, and how many keys they can see."""

    heads: slice
    rows: slice
    keys: int


@dataclass(frozen=True, eq=False)
class Plan:
    """How the work is divided, and what is done with a piece."""

    layout: Layout
    omega: Omega
    dropout: float = 0.0
    seed: int = 0

    def masked(self, mask: Tensor | None) -> "Plan":
        """The same with another mask of the same kind."""
        return replace(self, layout=replace(self.layout, mask=mask))

    def room(self, like: Tensor) -> Tensor:
        """For the scores of any piece: small things that stay would else lie where they lay."""
        heads, rows = self._size()
        return like.new_empty(min(heads, self.layout.heads) * rows * self.layout.keys)

    def _size(self) -> tuple[int, int]:
        """Heads and queries of a piece."""
        queries, keys = self.layout.queries, self.layout.keys
        rows = min(queries, max(1, _AT_ONCE // max(keys, 1)))
        return (max(1, _AT_ONCE // max(queries * keys, 1)) if rows == queries else 1), rows

    def pieces(self) -> Iterator[Piece]:
        """One after the other."""
        heads, queries, keys = self.layout.heads, self.layout.queries, self.layout.keys
        many, rows = self._size()
        # a structure may need more parts than the first queries see
        cut = self.layout.causal and self.omega.drops_masked
        for head in range(0, heads, many):
            for row in range(0, queries, rows):
                last = min(row + rows, queries)
                seen = min(last, keys) if cut else keys
                yield Piece(slice(head, min(head + many, heads)), slice(row, last), seen)

    def shared(self, keys: Tensor, piece: Piece) -> Tensor:
        """The keys or values that a piece sees, (heads, S, d)."""
        if self.layout.group == 1:
            return keys[piece.heads, : piece.keys]
        return keys[self.owners(piece, keys), : piece.keys]

    def owners(self, piece: Piece, like: Tensor) -> Tensor:
        """The head of keys that each head of a piece looks at."""
        heads = torch.arange(piece.heads.start, piece.heads.stop, device=like.device)
        return heads // self.layout.group

    def scores(
        self, query: Tensor, key: Tensor, piece: Piece, room: Tensor | None = None
    ) -> Tensor:
        """(heads, rows, keys) of a piece, from its own queries and keys, and in room if given."""
        shape = (*query.shape[:2], key.shape[1])
        out = None if room is None else room[: math.prod(shape)].view(shape)
        found = torch.bmm(query * self.layout.scale, key.transpose(1, 2), out=out)
        if self.layout.causal:
            row = torch.arange(piece.rows.start, piece.rows.stop, device=query.device)
            later = torch.arange(piece.keys, device=query.device) > row.unsqueeze(1)
            found = found.masked_fill_(later, -math.inf)
        mask = self.layout.mask
        if mask is None:
            return found
        every = mask.expand(self.layout.shape)
        own = [part[piece.rows, : piece.keys] for part in self._heads(every, piece)]
        here = torch.stack(own) if len(own) > 1 else own[0].unsqueeze(0)
        if mask.dtype == torch.bool:
            return found.masked_fill_(~here, -math.inf)
        return found.add_(here)

    def _heads(self, every: Tensor, piece: Piece) -> Iterator[Tensor]:
        """The (L, S) part of each head, without the copy that flattening would be."""
        for head in range(piece.heads.start, piece.heads.stop):
            part, rest = every, head
            for size in self.layout.batch[::-1]:
                rest, place = divmod(rest, size)
                part = part.select(part.dim() - 3, place)
            yield part

    def own(self, piece: Piece, parameters: list[Tensor]) -> Omega:
        """omega with those parts of its tensors, (heads, L or 1, S or 1), that a piece needs."""
        cut = [
            value[
                piece.heads,
                piece.rows if value.shape[1] > 1 else slice(None),
                : piece.keys if value.shape[2] > 1 else 1,
            ]
            for value in parameters
        ]
        mine = with_tensors(self.omega, dict(zip(tensors(self.omega), cut, strict=True)))
        return mine.for_size(piece.keys)

    def kept(self, shape: torch.Size, number: int, like: Tensor) -> Tensor | None:
        """What remains of weights, times what they grow by; the same whenever asked."""
        if not self.dropout:
            return None
        generator = torch.Generator().manual_seed(self.seed + number)
        stay = torch.rand(shape, generator=generator) >= self.dropout
        return stay.to(like) / ((1 - self.dropout) or 1.0)  # nothing stays of all
