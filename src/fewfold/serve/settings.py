"""Settings of the server: what is served, where, to whom, and the limits; imports no torch."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Access", "Limits", "LogFormat", "Network", "ServeSettings"]


@dataclass(frozen=True)
class Limits:
    """Limits of a request; a request that exceeds one is refused.

    Attributes:
        body: bytes of a body.
        k: number of items of an answer.
        history: length of a history.
        ids: ids in all lists of a request.
        queries: queries of a request.
        concurrent: requests in progress in one worker.
        seconds: time until a request is answered.
        idle: seconds between two requests of a connection, the headers of the second included.
            Longer than the 60 seconds after which proxies usually give up a connection:
            otherwise they may send a request into one that is being closed.
    """

    body: int = 1 << 20
    k: int = 1000
    history: int = 5000
    ids: int = 20_000
    queries: int = 256
    concurrent: int = 1024
    seconds: float = 30.0
    idle: float = 75.0


@dataclass(frozen=True)
class Network:
    """Address and processes.

    Attributes:
        host: name or address to listen on.
        port: TCP port.
        workers: number of processes that answer.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def address(self) -> str:
        """Address of the page."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        key: API key that requests must carry; None if none is needed.
        cors: origins whose pages may call the API.
    """

    key: str | None = field(default=None, repr=False)
    cors: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogFormat:
    """Format of the log on standard error.

    Attributes:
        json: one JSON object per line, also for each request.
        ids: write ids of users and items into the log.
    """

    json: bool = False
    ids: bool = False


@dataclass(frozen=True)
class ServeSettings:
    """All settings of a server.

    Attributes:
        model: the model folder.
        journal: file of the feedback; None for no feedback.
        recall: search approximately with this recall; None ranks exactly.
        watch: seconds between two looks at the model folder; 0 for none.
        threads: processor threads of one worker; None for a share of those there are.
        network, access, limits, log: see there.
    """

    model: Path
    journal: Path | None = None
    recall: float | None = None
    watch: float = 1.0
    threads: int | None = None
    network: Network = Network()
    access: Access = Access()
    limits: Limits = Limits()
    log: LogFormat = LogFormat()
