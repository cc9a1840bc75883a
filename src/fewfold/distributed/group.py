"""Groups of processes: exchanges of rows, sums and decisions, with a count of the bytes sent."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fewfold.distributed.gloo_threads import wait_for_senders
from fewfold.distributed.traffic import Traffic

__all__ = ["Group", "PeerError", "ProcessGroup"]

_BLOCK = 1 << 22  # numbers sent at once where a table is collected or summed


class Group:
    """The processes of one job. This class is one process alone, whose operations are identities.

    All processes of a group call the same operations in the same order. `name` in an operation is
    that under which `traffic` counts its bytes.

    Attributes:
        rank: number of this process, from 0.
        world: number of processes.
        traffic: bytes sent so far.

    Example:
        >>> from fewfold.distributed import Group
        >>> group = Group.current()  # no process group is initialised here
        >>> group.rank, group.world, group.share(10)
        (0, 1, slice(0, 10, None))
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.traffic = Traffic()

    @staticmethod
    def current() -> "Group":
        """Return the group of the initialised process group, or this process alone."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return Group()
        return ProcessGroup(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that reports and writes."""
        return self.rank == 0

    def shares(self, rows: int) -> list[int]:
        """Return the number of rows of each rank when rows are divided evenly."""
        return [(r + 1) * rows // self.world - r * rows // self.world for r in range(self.world)]

    def share(self, rows: int) -> slice:
        """Return the slice of rows of this rank when rows are divided evenly."""
        return slice(self.rank * rows // self.world, (self.rank + 1) * rows // self.world)

    def owned(self, rows: int) -> int:
        """Return the number of rows i of a sharded table with i % world = rank."""
        return len(range(self.rank, rows, self.world))

    def exchange(
        self,
        rows: Tensor,
        send: list[int],
        receive: list[int],
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Send the first `send[0]` rows to rank 0, the next to rank 1, and so on.

        Args:
            rows: to send.
            send: number of rows for each process.
            receive: number of rows from each process.
            name: of the traffic.
            meanwhile: called while the rows are on their way.

        Returns:
            The rows received, `receive[0]` of rank 0 first.
        """
        if meanwhile is not None:
            meanwhile()
        return rows

    def gather(self, rows: Tensor, counts: list[int], name: str) -> Tensor:
        """Return the rows of all processes, of which rank r has `counts[r]`, in rank order."""
        return rows

    def start_gather(self, rows: Tensor, counts: list[int], name: str) -> Callable[[], Tensor]:
        """Start to gather rows; return a function that waits for them and returns them."""
        return lambda: rows

    def add_up(self, rows: Tensor, name: str) -> Tensor:
        """All-reduce: replace rows, in place, by their sum over all processes, and return them.

        They are added in the order of the ranks, so that the sums are the same bytes on each.
        """
        return rows

    def scatter_sums(
        self,
        rows: Tensor,
        counts: list[int],
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Reduce-scatter: sum rows over all processes and return those of this rank.

        Args:
            rows: (sum of counts, ...) terms for the rows of all processes, in rank order.
            counts: number of rows of each process.
            name, meanwhile: as in `exchange`.
        """
        return self.exchange(rows, counts, counts, name, meanwhile)

    def gather_and_sum(
        self,
        rows: Tensor,
        counts: list[int],
        numbers: Tensor,
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the rows of all processes, as `gather`, and numbers (n,) summed over processes.

        In one operation if there are two processes; the sums are the same bytes on each.
        """
        return self.exchange(rows, counts, counts, name, meanwhile), numbers

    def agree(self, *numbers: float) -> tuple[float, ...]:
        """Return the numbers of rank 0."""
        return numbers

    def every(self, fine: bool) -> bool:
        """Return whether this is true in all processes."""
        return fine

    def collect(self, rows: Tensor, count: int) -> Tensor | None:
        """Return all `count` rows of a sharded table on rank 0, None on the others."""
        return rows

    def merge(self, rows: Tensor, count: int, name: str) -> Tensor:
        """All-gather the `count` rows of a sharded table to every process."""
        return rows

    def lead(self, call: Callable[[], None]) -> None:
        """Call a function on rank 0 alone; if it raises, the others raise `PeerError`."""
        call()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """If the block raises on any process, raise on all of them: `PeerError` on the others.

        The block calls no operation of the group.
        """
        yield


class PeerError(RuntimeError):
    """Raised where another process of the group failed; that one has the reason."""


class ProcessGroup(Group):
    """The default group of `torch.distributed`."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        wait_for_senders()

    def exchange(
        self,
        rows: Tensor,
        send: list[int],
        receive: list[int],
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Send each process its rows, and return those received."""
        out, rows = rows.new_empty((sum(receive), *rows.shape[1:])), rows.contiguous()
        work = dist.all_to_all_single(out, rows, receive, send, async_op=True)
        if meanwhile is not None:
            meanwhile()
        work.wait()
        each = rows.element_size() * rows.shape[1:].numel()
        self.traffic.add(name, (sum(send) - send[self.rank]) * each)
        return out

    # Everything is an exchange: of gloo's collectives it has the least latency, takes parts of
    # different sizes, and leaves the order of sums to us. What a process has is not sent to itself.

    def _to_others(self, counts: list[int]) -> list[int]:
        """Return counts with none for this process."""
        return [0 if rank == self.rank else count for rank, count in enumerate(counts)]

    def gather(self, rows: Tensor, counts: list[int], name: str) -> Tensor:
        """Return the rows of all processes in rank order."""
        send = self._to_others([len(rows)] * self.world)
        copies = rows if self.world == 2 else torch.cat([rows] * (self.world - 1))
        got = self.exchange(copies, send, self._to_others(counts), name)
        before = sum(counts[: self.rank])
        return torch.cat([got[:before], rows, got[before:]])

    def start_gather(self, rows: Tensor, counts: list[int], name: str) -> Callable[[], Tensor]:
        """Start to send the rows to all processes; the function returns those of all of them."""
        copies, each = torch.cat([rows] * self.world), rows.element_size() * rows.shape[1:].numel()
        out = rows.new_empty((sum(counts), *rows.shape[1:]))
        work = dist.all_to_all_single(out, copies, counts, [len(rows)] * self.world, async_op=True)
        self.traffic.add(name, (self.world - 1) * len(rows) * each)

        def finish(sent: Tensor = copies) -> Tensor:  # which must live until then
            work.wait()
            return out

        return finish

    def add_up(self, rows: Tensor, name: str) -> Tensor:
        """Sum in blocks, of which each process adds a part, so that no second table is held."""
        for block in rows.split(max(1, _BLOCK // max(rows.shape[1:].numel(), 1))):
            flat = block.flatten()  # rows may be strided
            counts = self.shares(len(flat))
            total = self.gather(self.scatter_sums(flat, counts, name), counts, name)
            block.copy_(total.view(block.shape))
        return rows

    def scatter_sums(
        self,
        rows: Tensor,
        counts: list[int],
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Sum rows in the order of the ranks, whatever the order of arrival."""
        mine, parts = counts[self.rank], list(rows.split(counts))
        own = parts.pop(self.rank)
        theirs = parts[0] if self.world == 2 else torch.cat(parts)
        receive = self._to_others([mine] * self.world)
        got = self.exchange(theirs, self._to_others(counts), receive, name, meanwhile)
        every = list(got.split([mine] * (self.world - 1)))
        return _total([*every[: self.rank], own, *every[self.rank :]])

    def gather_and_sum(
        self,
        rows: Tensor,
        counts: list[int],
        numbers: Tensor,
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gather rows and sum numbers; each process sums a part of them if there are many."""
        mine, world, rank = rows.flatten(), self.world, self.rank
        sizes = [rows.shape[1:].numel() * n for n in counts]
        parts = [numbers] * world if world == 2 else list(numbers.tensor_split(world))
        own = parts[rank]
        others = [part for at, part in enumerate(parts) if at != rank]
        got = self.exchange(
            torch.cat([piece for part in others for piece in (mine, part)]),
            self._to_others([len(mine) + len(part) for part in parts]),
            self._to_others([size + len(own) for size in sizes]),
            name,
            meanwhile,
        )
        sizes.pop(rank)
        pieces = got.split([n for size in sizes for n in (size, len(own))])
        gathered, terms = list(pieces[::2]), list(pieces[1::2])
        gathered.insert(rank, mine)
        terms.insert(rank, own)
        every = torch.cat(gathered).view(sum(counts), *rows.shape[1:])
        total = _total(terms)
        if world > 2:
            total = self.gather(total, [len(part) for part in parts], name)
        return every, total

    def agree(self, *numbers: float) -> tuple[float, ...]:
        """Return the numbers of rank 0."""
        found = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(found, 0)
        self.traffic.add("decisions", found.nbytes * (self.world - 1) if self.leads else 0)
        return tuple(found.tolist())

    def every(self, fine: bool) -> bool:
        """Return whether this is true in all processes."""
        found = self.gather(torch.tensor([float(fine)]), [1] * self.world, "decisions")
        return bool(found.all())

    def collect(self, rows: Tensor, count: int) -> Tensor | None:
        """Return all rows on rank 0, sent in blocks so that no second table is in memory."""
        step = max(1, _BLOCK // max(rows.shape[1:].numel() * (self.world - 1), 1))
        whole = rows.new_empty(count, *rows.shape[1:]) if self.leads else None
        if whole is not None:
            whole[:: self.world] = rows
        for start in range(0, -(-count // self.world), step):
            block = rows[:0] if self.leads else rows[start : start + step]
            receive = [0] * self.world
            if whole is not None:
                owned = (len(range(rank, count, self.world)) for rank in range(self.world))
                receive = self._to_others([max(0, min(step, n - start)) for n in owned])
            send = [len(block), *[0] * (self.world - 1)]
            parts = self.exchange(block, send, receive, "tables").split(receive)
            for rank, part in enumerate(parts):
                if whole is not None and len(part):
                    whole[rank :: self.world][start : start + step] = part
        return whole

    def merge(self, rows: Tensor, count: int, name: str) -> Tensor:
        """Return all rows on every process."""
        counts = [len(range(rank, count, self.world)) for rank in range(self.world)]
        parts = self.gather(rows, counts, name).split(counts)
        whole = rows.new_empty(count, *rows.shape[1:])
        for rank, part in enumerate(parts):
            whole[rank :: self.world] = part
        return whole

    def lead(self, call: Callable[[], None]) -> None:
        """Call a function on rank 0 alone, while the others wait."""
        error: BaseException | None = None
        if self.leads:
            try:
                call()
            except BaseException as found:
                error = found
        (fine,) = self.agree(float(error is None))
        if error is not None:
            raise error
        if not fine:
            raise PeerError("rank 0 failed; see its message")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Wait for the block of every process; if it raised on any, raise on all."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as found:
            error = found
        fine = self.gather(torch.tensor([error is None]).byte(), [1] * self.world, "decisions")
        if error is not None:
            raise error
        if not bool(fine.all()):
            raise PeerError(f"rank {int(fine.argmin())} failed; see its message")


def _total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of parts, added one after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
