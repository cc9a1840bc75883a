"""Requests as bytes, sent over plain sockets, for what no proper client would send."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Response:
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(
    method: str, target: str | bytes, body: bytes | None = None, *more: str | bytes
) -> bytes:
    """A request; `more` are further header lines."""
    lines = [b" ".join([method.encode(), _bytes(target), b"HTTP/1.1"]), b"host: localhost"]
    if body is not None:
        lines += [b"content-type: application/json", b"content-length: %d" % len(body)]
    return b"\r\n".join([*lines, *map(_bytes, more), b"", body or b""])


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def port(url: str) -> int:
    """The port of an address."""
    found = httpx.URL(url).port
    assert found is not None
    return found


class Wire:
    """A connection that sends bytes and takes answers apart.

    Args:
        url: address of the server.
        seconds: after which waiting for the server raises TimeoutError.
        received: size of the buffer of what was received and not read yet.
    """

    def __init__(self, url: str, seconds: float = 30, received: int | None = None) -> None:
        self.socket = socket.socket()
        if received is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
        self.socket.settimeout(seconds)
        self.socket.connect((HOST, port(url)))
        self._read = b""

    def send(self, data: bytes) -> None:
        """Send all of it, unless the server closes the connection before."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def send_some(self, data: bytes) -> bytes:
        """Send what goes at once, and return the rest."""
        try:
            return data[self.socket.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return data

    def ended(self) -> bool:
        """Whether the server has answered or ended the connection."""
        try:
            self.socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True

    def end(self) -> None:
        """Say that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Break the connection, as a machine that vanishes does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def response(self, *, to_head: bool = False) -> Response | None:
        """The next answer that is not preliminary; None if the connection ended instead.

        Args:
            to_head: the request was a HEAD, whose answer has no body.
        """
        while True:
            head = self._until(b"\r\n\r\n")
            if head is None:
                return None
            first, *lines = head.decode("latin-1").split("\r\n")
            version, status = first.split(" ")[:2]
            assert version in ("HTTP/1.1", "HTTP/1.0"), first
            if status.startswith("1"):
                continue
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            size = 0 if to_head else int(headers.get("content-length", 0))
            assert "transfer-encoding" not in headers
            body = self._take(size)
            return Response(int(status), headers, body)

    def responses(self) -> Iterator[Response]:
        """All answers until the connection ends."""
        while (found := self.response()) is not None:
            yield found

    def _more(self) -> bool:
        try:
            part = self.socket.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        self._read += part
        return bool(part)

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._read:
            if not self._more():
                assert self._read == b"", f"half an answer: {self._read[:200]!r}"
                return None
        head, _, self._read = self._read.partition(mark)
        return head

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            assert self._more(), f"half a body: {self._read[:200]!r}"
        found, self._read = self._read[:size], self._read[size:]
        return found


def seconds_since(began: float) -> float:
    """Time that has passed since a reading of the monotonic clock."""
    return time.monotonic() - began
