"""Operations of groups of processes and sharded look-ups, compared with one process."""

import sys
from datetime import timedelta
from typing import Any

import pytest
import torch

from fewfold._native import dispatch
from fewfold.cli import torchrun
from fewfold.cli.torchrun import _seconds
from fewfold.distributed import Group
from fewfold.distributed.entries import Entries, sort_by_owner
from tests.distributed.conftest import Worlds


def same(found: Any, expected: Any) -> None:
    """Raise unless two results are the same bytes."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["operations", "looked_up", "initial_weights", "proposals", "ranked"]
)
def test_results_are_those_of_one_process(worlds: Worlds, name: str) -> None:
    expected = worlds[1][0][name]
    for world in (2, 3):
        for rank in worlds[world]:
            if name == "looked_up":  # a gradient is a sum in another order
                torch.testing.assert_close(rank[name], expected)
            else:
                same(rank[name], expected)


def test_one_process_looks_up_as_torch_does(worlds: Worlds) -> None:
    found = worlds[1][0]["looked_up"]
    table = torch.randn(103, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ids = torch.randint(103, (64,), generator=torch.Generator().manual_seed(2))
    weights = torch.randn(64, 5, generator=torch.Generator().manual_seed(3))
    (table[ids] * weights).sum().backward()
    assert table.grad is not None
    same(found["rows"], table.detach()[ids])
    torch.testing.assert_close(found["gradient"], table.grad)


def test_tables_are_collected_on_the_first_process_alone(worlds: Worlds) -> None:
    for world, ranks in worlds.items():
        same(ranks[0]["collected"], [torch.arange(26.0).view(13, 2)] * 3)
        assert [rank["collected"] for rank in ranks[1:]] == [[None] * 3] * (world - 1)


def test_an_error_of_one_process_reaches_all(worlds: Worlds) -> None:
    for world, ranks in worlds.items():
        found = [rank["failed_on_the_last"] for rank in ranks]
        heard = (7, f"rank {world - 1} failed; see its message")
        assert found == [heard] * (world - 1) + [(7, "the reason")]


def test_traffic_counts_what_goes_to_other_processes(worlds: Worlds) -> None:
    for world in (2, 3):
        rows = 2 * 3 * 4 * (world - 1)
        for rank in worlds[world]:
            assert rank["traffic"] == {"gathered": (rows, 1), "summed": (rows, 1)}


def test_shares_are_nearly_equal_and_cover_all_rows() -> None:
    for world in (1, 2, 3, 7):
        for rows in (0, 1, 2, 7, 256):
            groups = [Group(rank, world) for rank in range(world)]
            covered = [row for group in groups for row in range(rows)[group.share(rows)]]
            assert covered == list(range(rows))
            assert groups[0].shares(rows) == [len(range(rows)[g.share(rows)]) for g in groups]
            assert max(groups[0].shares(rows)) - min(groups[0].shares(rows)) <= 1
            assert sum(group.owned(rows) for group in groups) == rows


@pytest.mark.parametrize(("rows", "each"), [(1, 0), (1, 9), (5, 0), (5, 4), (300, 3)])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 300])
def test_entries_are_sorted_alike_with_and_without_kernels(
    rows: int, each: int, world: int
) -> None:
    generator = torch.Generator().manual_seed(rows + each)
    ids = torch.randint(2**40, (rows, each), generator=generator)
    lengths = torch.randint(4, (rows,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    more = torch.randint(99, (int(offsets[-1]),), generator=generator), offsets
    order, local, lengths = found = sort_by_owner(world, ids, more)
    with dispatch.disabled():
        same(list(found), list(sort_by_owner(world, ids, more)))
    flat = torch.cat([ids.flatten(), more[0]])
    same(order.sort().values, torch.arange(len(flat)))
    same(local, flat[order] // world)
    owners = torch.arange(world).repeat_interleave(lengths.sum(1))
    same(flat[order] % world, owners)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_known_entries_are_the_same_on_both_sides(rows: int, world: int) -> None:
    """What each process sends is what the others expect, in the same order."""
    lengths = torch.randint(5, (rows,), generator=torch.Generator().manual_seed(rows))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ids = torch.randint(40, (int(offsets[-1]),), generator=torch.Generator().manual_seed(1))
    sides = [Entries.known(Group(rank, world), (ids, offsets)) for rank in range(world)]
    for rank, side in enumerate(sides):
        own = side.group.share(rows)
        mine = ids[offsets[own.start] : offsets[own.stop]][side.order]
        same(mine % world, torch.arange(world).repeat_interleave(torch.tensor(side.send)))
        for owner, part in enumerate(mine.split(side.send)):
            theirs = sides[owner].ids.split(sides[owner].receive)[rank]
            same(part // world, theirs)
        assert side.offsets[-1] == len(side.ids) == sum(side.receive)


def test_threads_that_receive_do_not_take_over_from_those_that_send(worlds: Worlds) -> None:
    for world in (2, 3):
        assert [rank["receiving_threads"] for rank in worlds[world]] == [0] * world


def test_queries_of_either_precision_arrive(worlds: Worlds) -> None:
    for world in (2, 3):
        for rank, found in enumerate(each["requested"] for each in worlds[world]):
            assert found["torch.float32"]
            assert found["torch.float64"]
            assert found["ids"] == list(range(rank, 15, world))


@pytest.mark.parametrize("given", ["abc", "-1", "0", "nan", "inf"])
def test_seconds_that_are_none_are_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWFOLD_TIMEOUT", given)
    with pytest.raises(ValueError, match=f"FEWFOLD_TIMEOUT must be a positive .* got '{given}'"):
        _seconds("FEWFOLD_TIMEOUT", 120.0)
    monkeypatch.delenv("FEWFOLD_TIMEOUT")
    assert _seconds("FEWFOLD_TIMEOUT", 120.0).total_seconds() == 120


def test_connecting_has_the_time_of_reaching_and_waiting_that_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gloo gives up after five times its time-out, at which a connection never comes."""
    given: list[timedelta] = []
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("FEWFOLD_TIMEOUT", "20")
    monkeypatch.setenv("FEWFOLD_ANSWER_TIMEOUT", "900")
    monkeypatch.setattr(torch.distributed, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(torchrun, "_meet", lambda *_: "")
    meeting = sys.modules["torch.distributed.rendezvous"]  # a function hides it
    monkeypatch.setattr(meeting, "rendezvous", lambda *_, **__: iter([(None, 1, 2)]))
    setter = "torch.distributed.distributed_c10d._set_pg_timeout"
    monkeypatch.setattr(setter, given.append)

    def start(*_: Any, timeout: timedelta, **__: Any) -> None:
        given.append(timeout)

    monkeypatch.setattr(torch.distributed, "init_process_group", start)
    torchrun._join(1, 2)
    assert given == [timedelta(seconds=4), timedelta(seconds=900)]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connect timeout")

    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    with pytest.raises(ConnectionError, match="rank 1 of 2 met the others"):
        torchrun._join(1, 2)
    assert "did not answer in 900 s" in torchrun._lost(1, "gloo: Timed out waiting 900000ms")
    assert "may have been killed" in torchrun._lost(1, "gloo: Connection closed by peer")
