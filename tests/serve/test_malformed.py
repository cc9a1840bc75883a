"""Ten thousand malformed requests: none fails the server, hangs or shows its insides."""

import contextlib
import json

from tests.serve.malformed import Wrong, wrong_requests
from tests.serve.running import Running
from tests.serve.sockets import Response, Wire, request

COUNT, SEED = 10_000, 1
PIPELINED, LANES = 25, 8  # requests that are sent at once, and connections at the same time
GOOD = request("GET", "/v1/users/u3/recommendations?k=2")
LONGEST = 2000  # bytes of an error: what was sent is not sent back whole


def check(response: Response, sent: Wrong) -> None:
    """What every answer must be."""
    about = f"{sent.data[:300]!r} -> {response.status} {response.body[:300]!r}"
    assert response.status < 500, about
    assert b"Traceback" not in response.body, about
    assert b'File "' not in response.body, about
    if response.status >= 400:
        assert len(response.body) < LONGEST, about
        if response.body:  # the library that reads HTTP refuses without a body
            error = json.loads(response.body)["error"]
            assert set(error) == {"code", "message", "field"}, about
            assert error["message"], about
    elif not sent.fine:
        raise AssertionError(about)


def answered(wire: Wire, sent: list[Wrong]) -> int:
    """Check the answers on a connection, and return how many came before it was closed."""
    for number, one in enumerate(sent, 1):
        response = wire.response()
        if response is None and number > 1:  # a server may close a connection; ask again on another
            return number - 1
        assert response is not None, f"no answer to {one.data[:300]!r}"
        check(response, one)
        if response.headers.get("connection") == "close":
            assert wire.response() is None
            return number
    good = wire.response()
    assert good is None or good.status == 200
    return len(sent)


def exchange_framed(url: str, sent: list[Wrong]) -> int:
    """Send requests one after the other, and return how many connections that took."""
    connections, lanes = 0, [sent[start::LANES] for start in range(LANES)]
    while any(lanes):
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(url)) for lane in lanes if lane]
            lanes = [lane for lane in lanes if lane]
            for wire, lane in zip(wires, lanes, strict=True):
                wire.send(b"".join(one.data for one in lane[:PIPELINED]) + GOOD)
            lanes = [
                lane[answered(wire, lane[:PIPELINED]) :]
                for wire, lane in zip(wires, lanes, strict=True)
            ]
            connections += len(wires)
    return connections


def exchange_broken(url: str, sent: list[Wrong]) -> None:
    """Send requests without a clear end, and expect that each connection ends."""
    for start in range(0, len(sent), PIPELINED):
        with contextlib.ExitStack() as stack:
            part = sent[start : start + PIPELINED]
            wires = [stack.enter_context(Wire(url)) for _ in part]
            for wire, one in zip(wires, part, strict=True):
                wire.send(one.data)
                wire.end()
            for wire, one in zip(wires, part, strict=True):
                for response in wire.responses():
                    check(response, one)


def test_malformed_requests(server: Running) -> None:
    every = list(wrong_requests(COUNT, SEED))
    framed = [one for one in every if one.framed]
    broken = [one for one in every if not one.framed]
    assert len(broken) > COUNT // 20
    connections = exchange_framed(server.url, framed)
    assert connections < len(framed) / 5  # mostly, errors do not end a connection
    exchange_broken(server.url, broken)
    assert server.get("/v1/users/u3/recommendations").status_code == 200
    assert server.get("/v1/stats").json()["errors"] == 0
    for word in ("Traceback", "Error", "panicked", "failure"):
        assert word not in server.log(), server.log()[:3000]


def test_long_ids_are_not_sent_back_whole(server: Running) -> None:
    response = server.post("/v1/recommendations", {"user": "x" * 9000})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message.startswith("no user 'xxx")
    assert message.endswith('fallback "popular"')
    assert len(message) < 1000
    name = "y" * 9000
    refused = server.post("/v1/recommendations", {"user": "u1", name: 1}).json()["error"]
    assert len(refused["field"]) < 1000
    assert refused["message"].endswith("explain, fallback")
