"""Refuses requests that a foreign web page makes through a browser on this machine."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from fewfold.serve.api_error import ApiError
from fewfold.serve.settings import ServeSettings

__all__ = ["CallerCheck"]

_MOST = 1000  # hosts that are remembered


class CallerCheck:
    """Checks the headers Host and Origin where no key is demanded.

    A page of another site can send requests to a server on loopback: directly, with the header
    Origin of that site, or by a name of its own that it lets point to 127.0.0.1 (DNS rebinding),
    with that name as Host. With a key neither gets an answer, so nothing is checked.

    Args:
        settings: of the server; its `cors` origins are allowed.
    """

    def __init__(self, settings: ServeSettings) -> None:
        access, network = settings.access, settings.network
        self._needed = access.key is None
        self._loopback = network.loopback
        self._origins = {origin.encode() for origin in access.cors}
        self._names = {network.host, *(urlsplit(origin).hostname for origin in access.cors)}
        self._local: set[bytes] = set()

    def __call__(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise a 403 for a request of a foreign page."""
        if not self._needed:
            return
        host = headers.get(b"host", b"")
        if self._loopback and host not in self._local:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins or origin.partition(b"://")[2] == host:
            return
        raise ApiError(
            403, "foreign_origin",
            f"pages of {_shown(origin)} may not call this server; allow them with --cors, or "
            "demand a key with --api-key-file",
        )  # fmt: skip

    def _check_host(self, host: bytes) -> None:
        try:
            name = urlsplit(f"//{host.decode()}").hostname or ""
        except ValueError:
            name = ""
        if host and name not in self._names and not _is_local(name):
            raise ApiError(
                403, "foreign_host",
                f"this server is for this machine alone, and was called {_shown(host)}; call it "
                "127.0.0.1, or demand a key with --api-key-file",
            )  # fmt: skip
        if len(self._local) < _MOST:
            self._local.add(host)


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
