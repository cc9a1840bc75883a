"""Starting, stopping, failing to start, and the workers of a server."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import fewfold as ff
from fewfold.serve.server import _announce
from fewfold.serve.settings import Network, ServeSettings
from tests.cli.invoke import fewfold
from tests.serve.running import Running, lines, serving


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Any, seconds: float = 20) -> None:
    """Wait until it is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_the_address_is_printed_when_a_connection_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ready-0").touch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        network = Network(port=listener.getsockname()[1])
        settings = ServeSettings(tmp_path, network=network)
        server: Any = None
        thread = threading.Thread(target=_announce, args=(server, settings, tmp_path, False))
        thread.start()
        thread.join(0.3)
        assert capsys.readouterr().err == ""
        listener.listen()
        thread.join(20)
        assert network.address in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_signals_finish_what_is_under_way(how: int, shop: Path, tmp_path: Path) -> None:
    with serving(shop, "--no-feedback", folder=tmp_path) as server:
        workers = server.workers()
        answers: list[int] = []

        connected = threading.Barrier(5)

        def ask() -> None:
            query = [{"user": f"u{n}", "explain": True, "k": 20} for n in range(100)]
            with httpx.Client(base_url=server.url, timeout=30) as client:
                client.get("/v1/health/live")
                connected.wait()
                answers.append(client.post("/v1/recommendations", json=query).status_code)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        connected.wait()
        time.sleep(0.2)
        for pid in workers if how == signal.SIGINT else []:  # as a terminal does
            os.kill(pid, how)
        assert server.stop(how) == 0
        for thread in asking:
            thread.join()
        assert answers == [200] * 4
        assert not any(map(alive, workers))
        assert "Traceback" not in server.log()


def test_a_killed_server_leaves_no_worker(shop: Path, tmp_path: Path) -> None:
    with serving(shop, "--no-feedback", "--workers", 2, folder=tmp_path) as server:
        workers = server.workers()
        assert len(workers) == 2
        server.process.kill()
        until(lambda: not any(map(alive, workers)))


def test_a_worker_that_dies_is_replaced(shop: Path, tmp_path: Path) -> None:
    with serving(shop, "--no-feedback", "--workers", 2, folder=tmp_path) as server:
        until(lambda: server.get("/v1/stats").json()["workers"] == 2)
        before = server.get("/v1/stats").json()["requests"]
        (first, second) = server.workers()
        os.kill(first, signal.SIGKILL)
        until(lambda: len(set(server.workers()) - {first}) == 2)

        def counted() -> bool:
            with httpx.Client(base_url=server.url) as client:  # any of the workers
                return bool(client.get("/v1/stats").json()["requests"] > before)

        until(counted)
        assert alive(second)
        assert server.stop() == 0


def test_what_cannot_be_served_is_an_error(shop: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("FEWFOLD_API_KEY", raising=False)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{}")
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for arguments, code, words in (
        (("serve", tmp_path / "none", "--port", 0), 4, "there is no folder"),
        (("serve", tmp_path / "bad", "--port", 0), 4, "manifest.json"),
        (("serve", shop, "--port", 0, "--journal", shop / "config.json"), 3, "config.json"),
        (("serve", shop, "--port", 0, "--host", "0.0.0.0"), 2, "--api-key-file"),
        (("serve", shop, "--api-key-file", empty), 2, "is empty"),
        (("serve", shop, "--api-key-file", tmp_path / "missing"), 2, "missing"),
        (("serve", shop, "--host", "192.0.2.1", "--no-auth"), 2, "cannot listen"),
        (("serve", shop, "--recall", "0.9", "--port", 0), 4, "no item vectors"),
    ):
        done = fewfold_serve(*arguments) if code in (3, 4) else fewfold(*arguments)
        assert done.code == code, (arguments, done.err)
        assert words in done.err
        assert "Traceback" not in done.err
        assert done.err.count("fewfold:") == 1


def fewfold_serve(*arguments: object) -> Any:
    """Run a server that ends by itself, in a process of its own."""
    import sys
    from types import SimpleNamespace

    command = [sys.executable, "-c", "import sys; from fewfold.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return SimpleNamespace(code=done.returncode, err=done.stderr)


def test_a_taken_port_is_an_error(server: Running, shop: Path) -> None:
    port = httpx.URL(server.url).port
    done = fewfold("serve", shop, "--port", port)
    assert done.code == 2
    assert f"port {port} is taken" in done.err


def test_a_new_model_takes_over(tmp_path: Path) -> None:
    from tests.recommender.conftest import grouped

    def save(l2: float) -> Path:
        rec = ff.Recommender(ff.recommender.EASE(l2=l2)).fit(grouped(), progress=False)
        return rec.save(tmp_path / "model", overwrite=True)

    folder = save(1.0)
    with serving(folder, "--log-json", "--watch", 0.1, "--workers", 2, folder=tmp_path) as server:
        first = server.get("/v1/model").json()["model"]
        server.post("/v1/feedback", {"user": "new", "item": "a1"})
        save(2.0)

        def versions() -> set[str]:
            found = set()
            for _ in range(8):
                with httpx.Client(base_url=server.url) as client:
                    found.add(client.get("/v1/model").json()["model"])
            return found

        until(lambda: first not in versions())
        assert server.get("/v1/model").json()["settings"]["l2"] == 2.0
        assert server.get("/v1/users/new/recommendations").status_code == 200
        assert server.get("/v1/stats").json()["reloads"] == 1
        (folder / "model.safetensors").write_bytes(b"broken")
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
        until(lambda: "reload failed" in server.log())
        assert first not in versions()
        response = server.post("/v1/admin/reload", {})
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "not_loaded"
        assert server.get("/v1/users/u1/recommendations").status_code == 200
        events = {line["event"] for line in lines(server.log())}
        assert {"ready", "request", "reloaded", "reload failed"} <= events


def test_reload_on_request(tmp_path: Path) -> None:
    from tests.recommender.conftest import grouped

    def save(l2: float) -> Path:
        rec = ff.Recommender(ff.recommender.EASE(l2=l2)).fit(grouped(), progress=False)
        return rec.save(tmp_path / "model", overwrite=True)

    with serving(save(1.0), "--watch", 0, "--no-feedback", folder=tmp_path) as server:
        first = server.get("/v1/model").json()["model"]
        save(2.0)
        found = server.post("/v1/admin/reload", {}).json()
        assert found["changed"] is True
        assert found["previous"] == first
        assert server.get("/v1/model").json()["model"] == found["model"] != first
