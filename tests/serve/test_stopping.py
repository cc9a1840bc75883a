"""SIGTERM under load: what has begun is finished, nothing new is accepted."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from fewfold.recommender.journal import read_journal
from tests.serve.load import load
from tests.serve.running import Running, serving
from tests.serve.sockets import Wire, request

PATIENCE = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def refuses(server: Running) -> bool:
    """Whether a new connection gets no answer, or 503."""
    try:
        return httpx.get(f"{server.url}v1/health/ready", timeout=PATIENCE).status_code == 503
    except httpx.TransportError:
        return True


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_what_has_begun_is_finished(workers: int, shop: Path, tmp_path: Path) -> None:
    """Requests whose bodies are still under way, and a steady load of others."""
    journal = tmp_path / "journal.jsonl"
    event, query = b'{"user":"late","item":"a1"}', b'{"user":"u1","explain":true}'
    whole = [
        request("POST", "/v1/feedback", event), request("POST", "/v1/recommendations", query),
        request("POST", "/v1/recommendations", b"[" + b",".join([query] * 40) + b"]"),
    ]  # fmt: skip

    def ask(client: httpx.Client) -> int:
        return client.get("/v1/users/u2/recommendations").status_code

    options = ("--journal", journal, "--workers", workers)
    with serving(shop, *options, folder=tmp_path) as server, ExitStack() as stack:
        begun = [(stack.enter_context(Wire(server.url, PATIENCE)), data) for data in whole * 2]
        for wire, data in begun:
            wire.send(data[:-5])
        with load(server.url, [ask], threads=3) as asked:
            wait_until(lambda: len(asked.answers) > 50, "no load")
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses(server), "new requests are accepted")
        for wire, data in begun:
            wire.send(data[-5:])
        answers = [wire.response() for wire, _ in begun]
        assert [one and one.status for one in answers] == [201, 200, 200] * 2
        assert server.process.wait(PATIENCE) == 0
        assert set(asked.answers) == {200}
        # A connection may end between two requests, but not within an answer.
        assert all(isinstance(error, httpx.TransportError) for error in asked.errors)
        assert not any(isinstance(error, httpx.ReadTimeout) for error in asked.errors)
        assert read_journal(journal).users == ["late"] * 2
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("half", [False, True])
def test_silent_connections_do_not_hold_the_end(half: bool, shop: Path, tmp_path: Path) -> None:
    """Idle ones do not delay it; half of the headers does, no longer than the idle limit."""
    options = ("--no-feedback", "--idle-limit", 3)
    with serving(shop, *options, folder=tmp_path) as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.url, PATIENCE)) for _ in range(20)]
        for wire in wires[:10]:
            wire.send(request("GET", "/v1/health/live"))
            answer = wire.response()
            assert answer is not None
            assert answer.status == 200
        for wire in wires[10:15] if half else ():
            wire.send(b"GET /v1/health/live HTTP/1.1\r\nhost: local")
        worker = server.workers()[0]
        assert server.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
