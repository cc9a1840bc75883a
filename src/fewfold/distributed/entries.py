"""Entries of the rows of a batch, such as ids of items, sent to the processes that own them.

The process of a row knows its entries; the owner of an entry has its row of a table.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch
from fewfold.distributed.group import Group

__all__ = ["Entries", "SharedEntries", "request", "sort_by_owner"]

Jagged = tuple[Tensor, Tensor]  # values, and offsets of the rows


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of each row of a batch.

    Attributes:
        group: the processes.
        send: number of entries of this process's rows that each process owns.
        receive: number of entries of each process's rows that this one owns.
        order: (n,) the entries of this process's rows, by owner, then by row.
        ids: (m,) rows of this process's part of the table, of the entries that it owns.
        offsets: (rows + 1,) of these, by the rows of all processes.
    """

    group: Group
    send: list[int]
    receive: list[int]
    order: Tensor
    ids: Tensor
    offsets: Tensor

    @classmethod
    def known(cls, group: Group, entries: Jagged) -> "Entries":
        """Return entries of all rows of a batch that every process has; nothing is sent."""
        ids, offsets = entries
        rows = len(offsets) - 1
        edges, own = torch.tensor([0, *group.shares(rows)]).cumsum(0), group.share(rows)
        none = ids.new_empty(rows, 0)
        _, local, lengths = sort_by_owner(group.world, none, entries)
        mine = local.split(lengths.sum(1).tolist())[group.rank]
        ends = F.pad(lengths[group.rank].cumsum(0), (1, 0))
        first, last = offsets[own.start].item(), offsets[own.stop].item()
        part = ids[first:last], offsets[own.start : own.stop + 1] - first
        order, _, sent = sort_by_owner(group.world, none[own], part)
        receive = ends[edges].diff().tolist()
        return cls(group, sent.sum(1).tolist(), receive, order, mine, ends)

    def answer(self, values: Tensor, name: str) -> Tensor:
        """Send values of the owned entries, (m,), to the processes of their rows.

        Returns:
            (n,) values of the entries of this process's rows. Their gradients go the other way.
        """
        found: Tensor = _Answer.apply(values, self, name)
        return found


def request(
    group: Group, rows: int, queries: Tensor, ids: Tensor, more: Jagged
) -> tuple[Entries, Tensor]:
    """Send the ids of entries to their owners, and a query of each row to all processes.

    Args:
        group: the processes.
        rows: number of rows of all processes.
        queries: (own rows, d) of this process.
        ids: (own rows, n) entries of each row.
        more: further entries of the own rows, after those of `ids` in the numbering of entries.

    Returns:
        entries: as the owners have them.
        queries: (rows, d) of all processes.
    """
    world, counts = group.world, group.shares(rows)
    width = queries.shape[1] * queries.element_size() // 4  # in words of four bytes
    order, local, lengths = sort_by_owner(world, ids, more)
    words = queries.contiguous().view(torch.int32).flatten()
    mine = len(queries) * (width + 1)
    parts = [part for each in lengths.int() for part in (words, each)]
    del parts[2 * group.rank : 2 * group.rank + 2]
    send, receive = [mine] * world, [count * (width + 1) for count in counts]
    send[group.rank] = receive[group.rank] = 0
    got = group.exchange(torch.cat(parts), send, receive, "queries")
    pieces: list[Tensor] = []
    for rank, part in enumerate(got.split(receive)):
        here = rank == group.rank
        pieces += (words, lengths[rank].int()) if here else part.split([
            counts[rank] * width, counts[rank]
        ])  # fmt: skip
    every = torch.cat(pieces[::2]).view(queries.dtype).view(rows, queries.shape[1])
    theirs = torch.cat(pieces[1::2]).long()
    asked = [int(each.sum()) for each in theirs.split(counts)]
    sent = lengths.sum(1).tolist()
    owned = group.exchange(local.int(), sent, asked, "samples").long()
    entries = Entries(group, sent, asked, order, owned, F.pad(theirs.cumsum(0), (1, 0)))
    return entries, every


def sort_by_owner(world: int, ids: Tensor, more: Jagged) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the entries of rows by owner, then by row.

    Args:
        world: number of processes; the owner of id i is i % world.
        ids: (rows, n) of each row.
        more: further ids (m,) and their offsets (rows + 1,). Entries are numbered from the first of
            `ids` to the last of `more`.

    Returns:
        order: (entries,) their numbers.
        local: (entries,) i // world of each, in this order.
        lengths: (world, rows) number of entries of each owner and row.
    """
    rows, total = len(ids), ids.numel() + len(more[0])
    if dispatch.ready() and ids.is_cpu:
        order, local = torch.empty(2, total, dtype=torch.int64)
        lengths = torch.empty(world, rows, dtype=torch.int64)
        dispatch.kernel("by_owner")(
            ids.contiguous(), ids.shape[1], more[0].contiguous(), more[1].contiguous(), rows,
            world, order, local, lengths,
        )  # fmt: skip
        return order, local, lengths
    flat, every = torch.cat([ids.flatten(), more[0]]), torch.arange(rows)
    row = torch.cat([
        every.repeat_interleave(ids.shape[1]), every.repeat_interleave(more[1].diff())
    ])  # fmt: skip
    key = (flat % world) * rows + row
    order = key.argsort(stable=True)
    lengths = torch.bincount(key, minlength=world * rows).view(world, rows)
    return order, (flat // world)[order], lengths


class _Answer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, entries: Entries, name: str) -> Tensor:
        ctx.entries, ctx.name = entries, name
        got = entries.group.exchange(values, entries.receive, entries.send, name)
        return torch.empty_like(got).index_copy_(0, entries.order, got)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        entries, name = ctx.entries, f"{ctx.name}, gradients"
        sent = grad.index_select(0, entries.order)
        return entries.group.exchange(sent, entries.send, entries.receive, name), None, None


@dataclass(frozen=True, eq=False)
class SharedEntries:
    """Entries that all rows of a batch have, and all processes know.

    Attributes:
        group: the processes.
        rows: number of rows of all processes.
        counts: number of entries that each process owns.
        order: (n,) entries by owner.
        ids: (m,) rows of this process's part of the table, of the entries that it owns.
    """

    group: Group
    rows: int
    counts: list[int]
    order: Tensor
    ids: Tensor

    @classmethod
    def of(cls, group: Group, rows: int, ids: Tensor) -> "SharedEntries":
        """Sort entries, (n,), by owner."""
        none = ids[:0], torch.zeros(2, dtype=torch.int64)
        order, local, lengths = sort_by_owner(group.world, ids.unsqueeze(0), none)
        counts = lengths.squeeze(1).tolist()
        return cls(group, rows, counts, order, local.split(counts)[group.rank])

    def answer(self, values: Tensor, name: str) -> Tensor:
        """Send values (m, rows) of the owned entries, for all rows, to the processes of the rows.

        Returns:
            (own rows, n) values of this process's rows. Their gradients go the other way.
        """
        found: Tensor = _SharedAnswer.apply(values, self, name)
        return found


class _SharedAnswer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, entries: SharedEntries, name: str) -> Tensor:
        ctx.entries, ctx.name = entries, name
        group, shares = entries.group, entries.group.shares(entries.rows)
        own, mine = shares[group.rank], entries.counts[group.rank]
        got = group.exchange(
            values.T.flatten(), [share * mine for share in shares],
            [own * count for count in entries.counts], name,
        )  # fmt: skip
        blocks = got.split([own * count for count in entries.counts])
        found = values.new_empty(own, len(entries.order))
        found[:, entries.order] = torch.cat(
            [block.view(own, n) for block, n in zip(blocks, entries.counts, strict=True)], 1
        )
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        entries, group = ctx.entries, ctx.entries.group
        shares = group.shares(entries.rows)
        own, mine = shares[group.rank], entries.counts[group.rank]
        parts = grad.index_select(1, entries.order).split(entries.counts, 1)
        got = group.exchange(
            torch.cat([part.flatten() for part in parts]),
            [own * count for count in entries.counts], [share * mine for share in shares],
            f"{ctx.name}, gradients",
        )  # fmt: skip
        return got.view(entries.rows, mine).T, None, None
