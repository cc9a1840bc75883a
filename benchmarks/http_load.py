"""Load on an HTTP server: connections that each send their next request after the last answer.

Runs in a process of its own, ``python -m benchmarks.http_load URL CONNECTIONS SECONDS FILE``: raw
sockets and epoll, a few microseconds per request, so that the server is what is measured.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

Request = tuple[str, str, object]  # method, path, body


@dataclass(frozen=True)
class Load:
    """Result of a load.

    Attributes:
        failed: answers with another status than 200 or 201, and connections that ended.
        seconds: time it took.
        latencies: seconds of each other answer, sorted.
    """

    failed: int
    seconds: float
    latencies: list[float]

    @property
    def each(self) -> float:
        """Seconds per answer, over all connections."""
        return self.seconds / len(self.latencies)

    def percentile(self, share: float) -> float:
        """Return the latency within which this share of the requests was answered."""
        return self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)]


def measure(url: str, connections: int, seconds: float, requests: Path) -> Load:
    """Run a load in a second process.

    Args:
        url: of the server.
        connections: how many at the same time.
        seconds: how long, after a fifth of it as a warm-up.
        requests: file that `write_requests` wrote.
    """
    command = [sys.executable, "-m", "benchmarks.http_load", url, str(connections), str(seconds)]
    done = subprocess.run([*command, str(requests)], check=True, capture_output=True, text=True)
    return Load(**json.loads(done.stdout))


def write_requests(file: Path, requests: list[Request]) -> Path:
    """Write requests to a file, as they are sent."""
    encoded = []
    for method, path, body in requests:
        data = "" if body is None else json.dumps(body)
        head = [f"{method} {path} HTTP/1.1", "host: localhost"]
        if body is not None:
            head += ["content-type: application/json", f"content-length: {len(data)}"]
        encoded.append("\r\n".join([*head, "", data]))
    file.write_text(json.dumps(encoded))
    return file


class _Connection:
    """A connection, and what it has received of the current answer."""

    def __init__(self, address: tuple[str, int], place: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.place, self.sent, self.received, self.ended = place, 0.0, b"", False

    def send(self, requests: list[bytes], step: int) -> None:
        """Send the next request."""
        self.received = b""
        self.sent = time.perf_counter()
        self.socket.sendall(requests[self.place % len(requests)])
        self.place += step

    def answered(self) -> int | None:
        """Read what has arrived; return the status if the answer is complete, 0 if it ended."""
        try:
            part = self.socket.recv(1 << 18)
        except ConnectionError:
            part = b""
        if not part:
            self.ended = True
            return 0
        received = self.received = self.received + part if self.received else part
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(received) < end + 4 + length:
            return None
        self.ended = head.startswith(b"http/1.0") or b"connection: close" in head
        return int(received[9:12])


def _run(url: str, connections: int, seconds: float, requests: list[bytes]) -> Load:
    parts = urlsplit(url)
    address = parts.hostname or "127.0.0.1", parts.port or 80
    selector = selectors.DefaultSelector()
    for place in range(connections):
        one = _Connection(address, place)
        selector.register(one.socket, selectors.EVENT_READ, one)
        one.send(requests, connections)
    latencies: list[float] = []
    failed = 0
    begin = now = time.perf_counter() + 0.2 * seconds
    while now < begin + seconds:
        for key, _ in selector.select(1.0):
            one = key.data
            status = one.answered()
            if status is None:
                continue
            now = time.perf_counter()
            if now >= begin:
                if status in (200, 201):
                    latencies.append(now - one.sent)
                else:
                    failed += 1
            if one.ended:
                selector.unregister(one.socket)
                one.socket.close()
                one = _Connection(address, one.place)
                selector.register(one.socket, selectors.EVENT_READ, one)
            one.send(requests, connections)
        now = max(now, time.perf_counter())
    return Load(failed, now - begin, sorted(latencies))


def main() -> None:
    """Run the load of the command line, and print its result."""
    url, connections, seconds, file = sys.argv[1:]
    requests = [one.encode() for one in json.loads(Path(file).read_text())]
    print(json.dumps(asdict(_run(url, int(connections), float(seconds), requests))))


if __name__ == "__main__":
    main()
