"""Inverted index: items grouped by cell, sampled by drawing a cell and then one of its items."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.sampling.batch_part import BatchPart, uniform_rows
from fewfold.sampling.proposal import Given, fresh_seed

__all__ = ["Cells", "GivenCells"]

_MAX_ITEMS = 2**31  # kernels index items with 32 bits
_MANY = 2**22  # possible cells that may be counted one by one


@dataclass(frozen=True)
class Cells:
    """Non-empty cells of an index and their items.

    The score of a cell is the sum of the scores of its codewords. A cell is sampled proportionally
    to exp(score) times its mass, then one of its items proportionally to its own mass. So

        q(item | query) = mass(item) exp(score(cell of item)) / Z(query).

    Cells and items of mass zero are left out and never sampled.
    """

    code: Tensor  # (codebooks, cells) int32: where a query's scores hold those of the codewords
    log_mass: Tensor  # (cells,) float32
    start: Tensor  # (cells + 1,) int64
    item: Tensor  # (listed items,) int32, by cell
    cell_of: Tensor  # (items,) int32, -1 for those left out
    log_share: Tensor | None  # (items,) float32 log mass of an item; None: all alike
    by_place: Tensor | None  # the same by cell
    edge: Tensor | None  # (listed items + 1,) float64: masses summed up, by cell
    accept: Tensor | None  # alias tables by cell, where the kernels are present
    other: Tensor | None

    @classmethod
    def build(cls, code: Tensor, mass: Tensor | None) -> Self:
        """Group items with these codewords (items, codebooks) and masses (items,) into cells."""
        items = code.shape[0]
        if items >= _MAX_ITEMS:
            raise ValueError(f"an index holds fewer than 2^31 items, got {items}")
        device = code.device
        listed = torch.arange(items, device=device) if mass is None else mass.nonzero().squeeze(1)
        cell, cells = _cells_of(code[listed])
        item = listed[_sorted_places(cell, cells)]
        count = torch.bincount(cell, minlength=cells)
        start = torch.cat([count.new_zeros(1), count.cumsum(0)])
        cell_of = torch.full((items,), -1, dtype=torch.int32, device=device)
        cell_of[listed] = cell.int()
        shares = {} if mass is None else _shares(mass, item, start)
        total = count.double() if mass is None else shares.pop("total")
        return cls(
            code=code[item[start[:-1]]].T.int().contiguous(),
            log_mass=total.log().float(),
            start=start,
            item=item.int(),
            cell_of=cell_of,
            **{name: shares.get(name) for name in _SHARES},
        )

    def one_code(self) -> Self:
        """Return the same cells with one codeword each, for scores given per cell."""
        code = torch.arange(len(self.log_mass), dtype=torch.int32, device=self.log_mass.device)[
            None
        ]
        return type(self)(**{**vars(self), "code": code})

    def scores(self, scores: Tensor) -> Tensor:
        """Return scores of cells (queries, cells) from scores of codewords (queries, codewords)."""
        total = scores.index_select(1, self.code[0])
        for column in self.code[1:]:
            total = total + scores.index_select(1, column)
        return total


_SHARES = ("log_share", "by_place", "edge", "accept", "other")


def _cells_of(code: Tensor) -> tuple[Tensor, int]:
    """Return the cell of every tuple of codewords, numbered from 0, and the number of cells."""
    where = torch.zeros(code.shape[0], dtype=torch.int64, device=code.device)
    size = 1
    for column in code.T:
        books = int(column.max()) + 1
        where, size = where * books + column, size * books
    if size >= 2**63:  # the number of a tuple would overflow
        found, cell = torch.unique(code, dim=0, return_inverse=True)
        return cell, len(found)
    if size > _MANY:
        keys, cell = torch.unique(where, return_inverse=True)
        return cell, len(keys)
    seen = torch.bincount(where, minlength=size) > 0  # ten times faster than sorting
    return (seen.cumsum(0) - 1)[where], int(seen.sum())


def _sorted_places(cell: Tensor, cells: int) -> Tensor:
    """Return the stable argsort of items by cell."""
    if not cell.is_cpu:
        return cell.argsort(stable=True)
    small = cell.numpy().astype(np.uint16 if cells <= 2**16 else np.int64)  # 16 bits sort by radix
    return torch.from_numpy(np.argsort(small, kind="stable"))


def _shares(mass: Tensor, item: Tensor, start: Tensor) -> dict[str, Tensor]:
    """Return the tensors that depend on the masses of items: sums, logs and alias tables."""
    sorted_mass = mass[item].contiguous()
    edge = torch.cat([sorted_mass.new_zeros(1), sorted_mass.cumsum(0)])
    parts = {"edge": edge, "log_share": mass.log().float()}
    parts["by_place"] = parts["log_share"][item]
    every = torch.arange(len(start) - 1, device=start.device)
    parts["total"] = sorted_mass.new_zeros(len(every)).index_add_(
        0, torch.repeat_interleave(every, start.diff()), sorted_mass
    )
    if dispatch.available() and sorted_mass.is_cpu:
        parts["accept"] = torch.empty(len(item))
        parts["other"] = torch.empty(len(item), dtype=torch.int32)
        dispatch.kernel("alias_tables")(
            sorted_mass, start, len(start) - 1,
            parts["accept"], parts["other"],
        )  # fmt: skip
    return parts


class GivenCells(Given):
    """Samples from cells, given the scores of the codewords (queries, codewords)."""

    def __init__(self, cells: Cells, scores: Tensor, *, shared: bool) -> None:
        self.shared = shared
        self._log_z: Tensor | None = None
        if shared:  # q(item | cell) does not depend on the query, so the mixture is one over cells
            scores = (_mixture(cells, scores) - cells.log_mass)[None]
            cells = cells.one_code()
        self._cells, self._scores = cells, scores.contiguous()

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        draw = _draw_native if dispatch.ready(self._scores) else _draw_torch
        part = None if self.shared else self.part
        ids, log_q, self._log_z = draw(self._cells, self._scores, n, generator, part)
        return (ids[0], log_q[0]) if self.shared else (ids, log_q)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        at, scores = self._cells, self._scores
        if self._log_z is None:
            self._log_z = (at.scores(scores).double() + at.log_mass).logsumexp(1)
        if self.shared:
            row = torch.zeros((), dtype=torch.int64, device=ids.device)
        elif row is None:
            row = torch.arange(len(scores), device=ids.device).unsqueeze(1)
        if dispatch.ready(scores):
            return _log_prob_native(at, scores, self._log_z, ids, row)
        cell = at.cell_of[ids].long()
        log_q = -self._log_z[row]
        for column in at.code:
            log_q = log_q + scores[row, column[cell].long()]
        if at.log_share is not None:
            log_q = log_q + at.log_share[ids]
        return torch.where(cell < 0, -torch.inf, log_q).float()


def _mixture(at: Cells, scores: Tensor) -> Tensor:
    """Return log q of every cell under the mixture over queries."""
    if len(scores) and dispatch.ready(scores):
        rows, width = scores.shape
        mixed, scores = torch.empty(len(at.log_mass)), scores.contiguous()
        bad = dispatch.kernel("mixture")(
            len(at.log_mass), len(at.code), at.code, at.log_mass, scores, width, rows, mixed,
            dispatch.threads(),
        )  # fmt: skip
        if bad >= 0:
            raise _not_finite(bad)
        return mixed
    logits = at.scores(scores) + at.log_mass
    _check_finite(logits.logsumexp(1))
    return logits.log_softmax(1).logsumexp(0) - math.log(max(len(scores), 1))


def _draw_native(
    at: Cells, scores: Tensor, n: int, generator: torch.Generator | None, part: BatchPart | None
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = scores.shape
    ids = torch.empty((rows, n), dtype=torch.int64)
    log_q, log_z = torch.empty((rows, n)), torch.empty(rows, dtype=torch.float64)
    optional = (at.accept, at.other, at.by_place)
    bad = dispatch.kernel("draw")(
        len(at.log_mass), len(at.code), at.code, at.log_mass, at.start, at.item, *optional, scores,
        width, rows, n, fresh_seed(generator), 0 if part is None else part.first, ids, log_q, log_z,
        dispatch.threads(),
    )  # fmt: skip
    if bad >= 0:
        raise _not_finite(bad)
    return ids, log_q, log_z


def _log_prob_native(at: Cells, scores: Tensor, log_z: Tensor, ids: Tensor, row: Tensor) -> Tensor:
    ids, row = ids.contiguous(), row.expand(ids.shape).contiguous()
    log_q = torch.empty(ids.shape)
    dispatch.kernel("log_prob")(
        len(at.log_mass), len(at.code), at.code, at.cell_of, len(at.cell_of), at.log_share, scores,
        *scores.shape[::-1], log_z, ids, row, ids.numel(), log_q, dispatch.threads(),
    )  # fmt: skip
    return log_q


def _draw_torch(
    at: Cells, scores: Tensor, n: int, generator: torch.Generator | None, part: BatchPart | None
) -> tuple[Tensor, Tensor, Tensor]:
    run = dispatch.triton_kernel("draw_cells", scores, at.log_mass)
    if run is not None:
        chance = uniform_rows((2, len(scores), n), scores.device, generator, part, dim=1)
        ids, log_q, log_z = run(
            scores, at.code, at.log_mass, at.start, at.item, at.edge, at.by_place, chance
        )
        _check_finite(log_z)
        return ids, log_q, log_z
    score = at.scores(scores)
    logits = score.double() + at.log_mass
    log_z = logits.logsumexp(1)
    _check_finite(log_z)
    cumulative = (logits - log_z[:, None]).exp().cumsum(1)
    chance = uniform_rows((2, len(scores), n), scores.device, generator, part, dim=1)
    cell = torch.searchsorted(cumulative, chance[0] * cumulative[:, -1:], right=True)
    cell.clamp_(max=len(at.log_mass) - 1)
    first, last = at.start[cell], at.start[cell + 1]
    if at.edge is None or at.by_place is None:
        place = first + (chance[1] * (last - first)).long()
        share: Tensor | float = 0.0
    else:
        target = at.edge[first] + chance[1] * (at.edge[last] - at.edge[first])
        place = torch.searchsorted(at.edge, target, right=True) - 1
        place = torch.minimum(torch.maximum(place, first), last - 1)
        share = at.by_place[place]
    log_q = score.gather(1, cell) - log_z[:, None] + share
    return at.item[place].long(), log_q.float(), log_z


def _check_finite(log_z: Tensor) -> None:
    """Raise ValueError for the first query whose log normaliser (queries,) is not finite."""
    bad = ~log_z.isfinite()
    if bad.any():
        raise _not_finite(int(bad.nonzero()[0]))


def _not_finite(row: int) -> ValueError:
    return ValueError(f"queries must be finite; row {row} is not, or its scores overflow")
