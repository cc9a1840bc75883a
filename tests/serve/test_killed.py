"""Servers and workers that are killed while feedback comes in: what was acknowledged is there."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fewfold.recommender.journal import read_journal
from tests.serve.load import Load, load
from tests.serve.running import Running, serving

ITEMS = [f"{taste}{number}" for taste in "abcd" for number in range(10)]
PATIENCE = 60
Told = list[tuple[str, str]]  # users and their items


def feedback(prefix: str) -> Callable[[httpx.Client], Told]:
    """Tell of one or several new users, and check that the next answer counts it at once."""
    numbers = itertools.count()

    def tell(client: httpx.Client) -> Told:
        number = next(numbers)
        users = [f"{prefix}-{number}-{place}" for place in range(1 + 2 * (number % 2))]
        told = [(user, ITEMS[(number + place) % 40]) for place, user in enumerate(users)]
        events = [{"user": user, "item": item, "recommendation": "r-1"} for user, item in told]
        answer = client.post("/v1/feedback", json=events if number % 2 else events[0])
        assert answer.status_code == 201, answer.text
        assert answer.json()["stored"] == len(told)
        user, item = told[-1]
        if number % 3 == 0:  # on a connection of its own, perhaps to another worker
            url = client.base_url.join(f"/v1/users/{user}/recommendations")
            try:
                found = httpx.get(url, timeout=PATIENCE)
            except httpx.TransportError:  # killed in between; it was acknowledged all the same
                return told
            assert found.status_code == 200, found.text
            assert item not in [one["item"] for one in found.json()["items"]]
        return told

    return tell


def kill(server: Running) -> None:
    """Kill all processes of a server."""
    processes = [server.process.pid, *server.workers()]
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    server.process.wait(PATIENCE)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def acknowledged(under: Load) -> Told:
    """What the load was told is stored; its other answers were all broken connections."""
    assert all(isinstance(error, httpx.TransportError) for error in under.errors), under.errors
    return [one for told in under.answers for one in told]


def check(server: Running, journal: Path, stored: Told, draw: random.Random) -> None:
    """Every event is in the journal, once, and in the histories."""
    found = read_journal(journal)
    assert found.skipped == 0
    pairs = list(zip(found.users, found.items, strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(stored) <= set(pairs)
    for user, item in draw.sample(stored, min(10, len(stored))):
        history = server.get(f"/v1/users/{user}").json()["history"]
        assert [(one["item"], one["from"]) for one in history] == [(item, "feedback")]
        answer = server.get(f"/v1/users/{user}/recommendations").json()
        same = server.post("/v1/recommendations", {"history": [item]}).json()
        assert answer["items"] == same["items"]


ROUNDS: list[Any] = [
    pytest.param((1, 2), id="2"),
    pytest.param((1, 2) * 10, id="20", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("workers", ROUNDS)
def test_acknowledged_feedback_survives_kill(
    workers: tuple[int, ...], shop: Path, tmp_path: Path
) -> None:
    journal, draw = tmp_path / "journal.jsonl", random.Random(len(workers))
    stored: Told = []
    for number, count in enumerate(workers):
        options = ("--journal", journal, "--workers", count)
        with serving(shop, *options, folder=tmp_path) as server:
            check(server, journal, stored, draw)
            questions = [feedback(f"{number}-{thread}") for thread in range(4)]
            with load(server.url, questions, threads=4) as under:
                wait_until(lambda told=under: len(told.answers) >= 20, "no feedback")  # type: ignore[misc]
                time.sleep(draw.uniform(0, 0.2))
                kill(server)
                wait_until(lambda told=under: bool(told.errors), "it still answers")  # type: ignore[misc]
            stored += acknowledged(under)
            assert "Traceback" not in server.log()
    with serving(shop, "--journal", journal, folder=tmp_path) as server:
        check(server, journal, stored, draw)


def test_a_killed_worker_loses_no_feedback(shop: Path, tmp_path: Path) -> None:
    """The other one goes on, and the killed one comes back and knows what it missed."""
    journal = tmp_path / "journal.jsonl"
    with serving(shop, "--journal", journal, "--workers", 2, folder=tmp_path) as server:
        wait_until(lambda: len(server.workers()) == 2, "no two workers")
        first, second = server.workers()
        with load(server.url, map(feedback, "abcd"), threads=4) as under:
            wait_until(lambda: len(under.answers) >= 20, "no feedback")
            os.kill(first, signal.SIGKILL)
            seen = len(under.answers)
            wait_until(lambda: len(under.answers) >= seen + 20, "the other one does not go on")
            wait_until(lambda: len({*server.workers()} - {first}) == 2, "it did not come back")
            wait_until(lambda: all_answer(server), "it is not ready")
        assert second in server.workers()
        stored = acknowledged(under)
        for _ in range(8):  # on connections to any of the two
            with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
                user, item = stored[-1]
                history = client.get(f"/v1/users/{user}").json()["history"]
                assert [one["item"] for one in history] == [item]
        check(server, journal, stored, random.Random(0))
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def all_answer(server: Running) -> bool:
    """Whether two workers listen, as the counters say."""
    return bool(httpx.get(f"{server.url}v1/stats", timeout=PATIENCE).json()["workers"] == 2)
