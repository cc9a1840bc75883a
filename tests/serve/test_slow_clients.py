"""Clients that are slow, idle or never read: others are served, and memory stays flat."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.running import Running, serving
from tests.serve.sockets import Wire, request

PROMPT = 10  # seconds within which others are served, on a busy machine
LIMIT = 2  # seconds of a request
QUERY = b'{"user":"u1"}'


@pytest.fixture(scope="module")
def small(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with narrow limits."""
    limits = (
        "--max-concurrent",
        4,
        "--time-limit",
        LIMIT,
        "--idle-limit",
        LIMIT,
        "--max-body",
        300_000,
    )
    with serving(shop, "--no-feedback", *limits, folder=tmp_path_factory.mktemp("small")) as found:
        yield found


@contextlib.contextmanager
def wires(server: Running, count: int, **more: Any) -> Iterator[list[Wire]]:
    """So many connections."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(server.url, **more)) for _ in range(count)]


def ask(server: Running) -> int:
    """Status of a request on a new connection, which must be answered soon."""
    return httpx.get(f"{server.url}v1/users/u2/recommendations", timeout=PROMPT).status_code


def served_again(server: Running) -> None:
    """Wait until requests are no longer refused."""
    until = time.monotonic() + PROMPT
    while ask(server) != 200:
        assert time.monotonic() < until
        time.sleep(0.05)


def memory(server: Running) -> int:
    """Bytes of memory of the workers that no other process shares."""
    found = 0
    for pid in server.workers():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private"):
                found += 1024 * int(line.split()[1])
    return found


def test_connections_left_idle(small: Running) -> None:
    """More of them than requests may be in progress, some in the middle of their headers."""
    with wires(small, 300) as idle:
        for one in idle[::2]:
            one.send(request("GET", "/v1/health/live")[:-2] + b"x-more: ")
        for one in idle[::5]:
            one.send(b"a")
        began = time.monotonic()
        assert [ask(small) for _ in range(5)] == [200] * 5
        # The server ends them by itself: after an error, or without a word.
        for one in idle:
            answers = [found.status for found in one.responses()]
            assert answers in ([], [408])
        assert time.monotonic() - began < LIMIT + 3 * PROMPT


def test_a_byte_at_a_time(small: Running) -> None:
    """Headers and bodies that trickle in are cut off at the time limit, though bytes still come."""
    whole = request("POST", "/v1/recommendations", b" " * 200 + QUERY)
    until = time.monotonic() + LIMIT + 2 * PROMPT
    with Wire(small.url) as head, Wire(small.url) as body:
        start = whole.index(b"\r\n\r\n") + 4
        body.send(whole[:start])
        sent, ended, served = 0, {head: False, body: False}, 0
        while not all(ended.values()):
            assert time.monotonic() < until, "a slow client was never cut off"
            for one in (head, body):
                if not ended[one]:
                    data = whole if one is head else whole[start:]
                    one.send(data[sent : sent + 1])
                    ended[one] = one.ended()
            sent += 1
            assert sent < 200
            served += ask(small) == 200
            time.sleep(0.1)
        assert served == sent
        answer = body.response()
        assert answer is not None
        assert answer.status == 408


def test_slow_bodies_past_the_limit_are_refused(small: Running) -> None:
    """Requests in progress count until they are answered; health is answered all the same."""
    head = request("POST", "/v1/recommendations", QUERY)[: -len(QUERY)]
    for _ in range(20):  # a busy machine may take longer than the time limit for this
        with wires(small, 4) as slow:
            for one in slow:
                one.send(head)
            refused = httpx.get(f"{small.url}v1/model", timeout=PROMPT)
            healthy = httpx.get(f"{small.url}v1/health/ready", timeout=PROMPT)
            for one in slow[:2]:
                one.send(QUERY)
            answers = {answer.status for one in slow[:2] if (answer := one.response())}
            for one in slow[2:]:
                one.reset()
        assert healthy.status_code == 200
        if refused.status_code == 429 and answers == {200}:
            break
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert answers == {200}
    served_again(small)  # broken connections are noticed


def test_clients_that_never_read(small: Running) -> None:
    """Answers wait in the connection, not in memory, and others are served."""
    many = b"[" + b",".join([b'{"history":["a1"],"k":30}'] * 200) + b"]"
    large = request("POST", "/v1/recommendations", many)
    with Wire(small.url) as proper:
        proper.send(large)
        answer = proper.response()
        assert answer is not None
        size = len(answer.body)
    assert size > 500_000
    before = memory(small)
    count, asked = 8, 40
    with wires(small, count, received=4096) as deaf:
        pending = dict.fromkeys(deaf, large * asked)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for one, data in pending.items():
                pending[one] = one.send_some(data)
            assert ask(small) in (200, 429)
            time.sleep(0.05)
        grown = memory(small) - before
        # Far from the 160 MB of all answers: one at a time waits for each connection.
        assert grown < 3 * count * size + (16 << 20)
        for one in deaf:
            one.reset()
    served_again(small)


def test_bodies_that_are_too_large_are_answered(small: Running) -> None:
    """The answer arrives although the body was not read to its end."""
    kind = {"content-type": "application/json"}
    for content in (b" " * 5_000_000, iter([b" " * 50_000] * 100)):
        url = f"{small.url}v1/recommendations"
        answer = httpx.post(url, content=content, headers=kind, timeout=PROMPT)
        assert answer.status_code == 413
    assert ask(small) == 200
    assert "Traceback" not in small.log()
