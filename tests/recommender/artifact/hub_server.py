"""A server with the part of the Hub's API that models need; repositories are in memory."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Commits from oldest to newest, each with all its files, and branches."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        oid = self.branches.get(revision, revision)
        return (oid, self.commits[oid]) if oid in self.commits else None


@dataclass
class Hub:
    """The repositories, and what was asked.

    Attributes:
        url: address of the server.
        token: a request without it is refused if the repository is private.
        requests: method, path and body of each request.
    """

    url: str = ""
    token: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a hub on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path, body))
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._json({"warnings": [], "errors": []})
        api = parts[:2] == ["api", "models"]
        name, *rest = (
            ["/".join(parts[2:4]), *parts[4:]] if api else ["/".join(parts[:2]), *parts[2:]]
        )
        repository = self.hub.repositories.get(name)
        authorised = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if repository is None or (repository.private and not authorised):
            return self._fail(401, "RepoNotFound", "Repository Not Found")
        if rest[:1] == ["branch"]:
            repository.branches.setdefault("/".join(rest[1:]), repository.branches["main"])
            return self._json({})
        what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        found = repository.files(revision)
        if found is None:
            return self._fail(404, "RevisionNotFound", "Invalid rev id")
        return getattr(self, f"_{what}")(name, repository, revision, found, rest[2:], body)

    def _create(self, asked: dict[str, Any]) -> None:
        name = (
            f"{asked['organization']}/{asked['name']}" if "organization" in asked else asked["name"]
        )
        if name in self.hub.repositories:
            return self._json({"url": f"{self.hub.url}/{name}"}, 409)
        private = asked.get("private") or asked.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private=bool(private))
        self.hub.repositories[name].commit({".gitattributes": b""})
        return self._json({"url": f"{self.hub.url}/{name}"})

    def _revision(self, name: str, repository: Any, revision: str, found: Any, *_: Any) -> None:
        siblings = [{"rfilename": file} for file in found[1]]
        self._json({"id": name, "sha": found[0], "private": repository.private,
                    "siblings": siblings})  # fmt: skip

    def _tree(self, name: str, repository: Any, revision: str, found: Any, *_: Any) -> None:
        self._json([
            {"type": "file", "path": file, "size": len(data),
             "oid": hashlib.sha1(data).hexdigest()} for file, data in found[1].items()
        ])  # fmt: skip

    def _resolve(
        self, name: str, repository: Any, revision: str, found: Any, rest: list[str], body: str
    ) -> None:
        oid, files = found
        data = files.get("/".join(rest))
        if data is None:
            return self._fail(404, "EntryNotFound", "Entry not found")
        etag = hashlib.sha1(data).hexdigest()
        return self._send(data, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": oid})

    def _preupload(self, *given: Any) -> None:
        asked = json.loads(given[-1])["files"]
        self._json({"files": [{"path": one["path"], "uploadMode": "regular",
                               "shouldIgnore": False} for one in asked]})  # fmt: skip

    def _commit(
        self, name: str, repository: Any, revision: str, found: Any, rest: list[str], body: str
    ) -> None:
        files = dict(found[1])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                files.pop(value["path"])
        oid = repository.commit(files, revision)
        self._json(
            {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"}
        )

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str, message: str) -> None:
        self._send(b"{}", status, {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
