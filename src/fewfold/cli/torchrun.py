"""Joining the processes that torchrun started."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from fewfold._progress import silence

__all__ = ["check_command", "joined_processes"]

_REACH = 120.0  # seconds in which all processes must have reached each other
_ANSWER = 1800.0  # seconds in which another process must answer
_POLL = 0.05  # seconds between two looks for others
_CONNECTING = 5  # times its time-out that gloo waits for a connection
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SHARED = ("fit", "recommend")  # commands that several processes do together


def check_command(name: str) -> None:
    """Raise ValueError if several processes were started for a command that one does."""
    world = _world()
    if world > 1 and name not in _SHARED:
        if int(os.environ["RANK"]) > 0:  # the first says so
            raise SystemExit(2)
        raise ValueError(
            f"{name} is done by one process, got {world}; start it without torchrun (several do "
            f"{' and '.join(_SHARED)})"
        )


def _world() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    if not all(name in os.environ for name in _NAMES):
        return 1
    return int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def joined_processes() -> Iterator[bool]:
    """Join the other processes, if torchrun started several; yield whether this one reports.

    Processes that do not report show no progress. `FEWFOLD_TIMEOUT` is the number of seconds in
    which they must have reached each other, `FEWFOLD_ANSWER_TIMEOUT` that in which one must answer
    another, which may have finished its share of the work earlier.
    """
    if _world() < 2:
        yield True
        return
    import torch.distributed as dist

    from fewfold.distributed.group import PeerError

    rank = int(os.environ["RANK"])
    store = _join(rank, int(os.environ["WORLD_SIZE"]))
    try:
        with silence(rank > 0):
            yield rank == 0
    except KeyboardInterrupt:
        if rank > 0:  # all of them stop, and the first says so
            raise SystemExit(130) from None
        raise
    except Exception as error:
        # A process that only heard of a failure may be quicker than the one that has the reason.
        if isinstance(error, PeerError) or not _first_to_fail(store):
            raise SystemExit(1) from error  # another process has said why
        if "gloo" in str(error) or "NCCL" in str(error):
            raise ConnectionError(_lost(rank, str(error))) from error
        error.add_note(f"(rank {rank})")
        raise
    finally:
        dist.destroy_process_group()


def _join(rank: int, world: int) -> Any:
    """Initialise the process group, and return its store; ConnectionError if some are missing."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _set_pg_timeout
    from torch.distributed.rendezvous import rendezvous

    limit = _seconds("FEWFOLD_TIMEOUT", _REACH)
    answer = _seconds("FEWFOLD_ANSWER_TIMEOUT", _ANSWER)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        found, rank, world = next(rendezvous("env://", rank, world, timeout=limit))
        store = dist.PrefixStore(_meet(found, rank, world, limit), found)
    except (RuntimeError, ValueError) as error:  # torch's errors of sockets and time-outs
        raise ConnectionError(
            f"rank {rank} of {world} did not reach the others through {address} (MASTER_ADDR) in "
            f"{limit.total_seconds():g} s; are all of them started, and may they connect? "
            f"({str(error).splitlines()[0]})"
        ) from error
    connect = limit / _CONNECTING
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=connect)
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"rank {rank} of {world} met the others through {address} (MASTER_ADDR) and did not "
            f"reach them at their own addresses in {limit.total_seconds():g} s; may they connect "
            "at any port, and is their network the one of GLOO_SOCKET_IFNAME "
            f"({os.environ.get('GLOO_SOCKET_IFNAME', 'not set')})? ({str(error).splitlines()[0]})"
        ) from error
    _set_pg_timeout(answer)
    return store


def _lost(rank: int, reason: str) -> str:
    """Return what to say where a connection failed after the processes had joined."""
    if "Timed out" in reason:
        return (
            f"rank {rank} waited for another process that did not answer in "
            f"{_seconds('FEWFOLD_ANSWER_TIMEOUT', _ANSWER).total_seconds():g} s; raise "
            "FEWFOLD_ANSWER_TIMEOUT if it may take longer"
        )
    return f"rank {rank} lost the connection to another process, which may have been killed"


def _seconds(name: str, usual: float) -> timedelta:
    """Return the seconds that an environment variable asks for, or the usual ones."""
    given = os.environ.get(name)
    try:
        seconds = usual if given is None else float(given)
        if not 0 < seconds < 1e8:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be a positive number of seconds, got {given!r}; leave it out for "
            f"{usual:g}"
        ) from None
    return timedelta(seconds=seconds)


def _meet(store: Any, rank: int, world: int, limit: timedelta) -> str:
    """Wait for all processes; return a prefix of keys that no earlier processes have used.

    When torchrun starts processes again, the store has the addresses of those before. Each first
    process opens a new round, and the others join the last one that was opened; it is theirs if the
    first has seen them in it.
    """
    me, end, opened = uuid.uuid4().hex, time.monotonic() + limit.total_seconds(), 0
    if rank == 0:
        opened = store.add("fewfold/rounds", 1)
    while time.monotonic() < end:
        found = opened or store.add("fewfold/rounds", 0)
        prefix = f"fewfold/{found}"
        if found:
            store.set(f"{prefix}/rank {rank}", me)
        every = [f"{prefix}/rank {each}" for each in range(world)]
        if rank == 0 and store.check(every):
            store.set(f"{prefix}/seen", b" ".join(store.multi_get(every)))
        if store.check([f"{prefix}/seen"]) and me in store.get(f"{prefix}/seen").decode():
            return prefix
        time.sleep(_POLL)
    raise RuntimeError("not all of them have come")


def _first_to_fail(store: Any) -> bool:
    """Whether no other process has failed before, so that this one has the reason."""
    try:
        return bool(store.add("failed", 1) == 1)
    except RuntimeError:  # the process that had the store is gone
        return True
