"""The log on standard error: events as text, or events and requests as JSON lines."""

import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from fewfold.serve.schemas import Answer
from fewfold.serve.settings import LogFormat

__all__ = ["RequestLog"]


class RequestLog:
    """Writes one line per event, and, in JSON, per request.

    Lines name a route by its form, as /v1/users/{id}, so that no id of a user or item is in the
    log unless `LogFormat.ids` asks for it.
    """

    def __init__(self, form: LogFormat, *, quiet: bool = False) -> None:
        self.form, self._quiet, self._lock = form, quiet, threading.Lock()

    @property
    def requests(self) -> bool:
        """Whether requests are logged."""
        return self.form.json

    def event(self, event: str, **about: Any) -> None:
        """Log an event, such as a model that was loaded."""
        if self.form.json:
            self._write(_json(event, about))
        elif not self._quiet:
            details = ", ".join(f"{name} {value}" for name, value in about.items())
            self._write(f"{event}: {details}\n" if details else f"{event}\n")

    def request(
        self, method: str, route: str, path: str, status: int, seconds: float, error: str | None
    ) -> None:
        """Log an answered request."""
        about: dict[str, Any] = {
            "method": method, "route": route, "status": status, "ms": round(1e3 * seconds, 3),
        }  # fmt: skip
        if error is not None:
            about["error"] = error
        if self.form.ids:
            about["path"] = path
        self._write(_json("request", about))

    def answer(self, answer: Answer) -> None:
        """Log the recommended items if ids are logged; feedback may name the id of an answer."""
        if self.form.json and self.form.ids:
            items = [one.item for one in answer.items]
            about = {"id": answer.id, "model": answer.model, "user": answer.user, "items": items}
            self._write(_json("answer", about))

    def failure(self, number: str, error: BaseException) -> None:
        """Log a bug, with the number that the client was told."""
        lines = traceback.format_exception(error)
        if self.form.json:
            self._write(_json("failure", {"id": number, "traceback": "".join(lines)}))
        else:
            self._write(f"failure {number}:\n{''.join(lines)}")

    def _write(self, line: str) -> None:
        if sys.stderr is None:
            return
        with self._lock:
            try:
                sys.stderr.write(line)
                sys.stderr.flush()
            except (OSError, ValueError):  # the reader is gone; answers matter more
                pass


def _json(event: str, about: dict[str, Any]) -> str:
    now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    return msgspec.json.encode({"time": now, "event": event, **about}).decode() + "\n"
