"""The built site of the documentation, and a browser to look at it."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page.serving import FLAGS, browser_path

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from the sources without a warning; FEWFOLD_SITE names one that is built."""
    pytest.importorskip("sphinx")
    fcntl = pytest.importorskip("fcntl")
    if named := os.environ.get("FEWFOLD_SITE"):
        return Path(named).resolve()
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "site.lock").open("w") as lock:  # processes of one run build it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site" / "searchindex.js").exists():  # which is written last
            build(shared / "site")
    return (shared / "site").resolve()


def build(folder: Path) -> None:
    """Build the site, in the way of `make docs`."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "docs", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    if built.returncode:
        shutil.rmtree(folder, ignore_errors=True)
    assert built.returncode == 0, built.stderr[-2000:]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write no line for each request."""


@pytest.fixture(scope="package")
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site."""
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The installed Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if browser_path() is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("no Chromium is installed (Debian: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield found
        found.close()
