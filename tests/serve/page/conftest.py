"""One browser and one server for all tests of the page; each test has a window of its own."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fewfold as ff
from tests.serve.page.log import write_model
from tests.serve.page.serving import FLAGS, browser_path
from tests.serve.page.window import settled
from tests.serve.running import serving

Open = Callable[..., Any]


def _missing() -> str | None:
    """Return what the tests need and is not installed."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (pip install playwright)"
    if browser_path() is None:
        return "no Chromium is installed (Debian: apt install chromium)"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser, skip all tests with one line; in CI, where they must run, they fail."""
    what = _missing()
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if what is None or not mine or os.environ.get("CI") == "true":
        return
    first, *others = mine
    first.add_marker(pytest.mark.skip(f"the page is not tested: {what}"))
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


# Of the package, not of the session: Playwright keeps an event loop running in this thread.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The installed Chromium."""
    what = _missing()
    if what is not None:
        pytest.fail(f"the page cannot be tested: {what}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with anchors, a training curve, a comparison and attributes; not to be changed."""
    model = ff.VAE(hidden=16, latent=7, layers=0, shortcut=0).with_anchors(8)
    return write_model(tmp_path_factory.mktemp("page") / "model", model, compared=True)


@pytest.fixture(scope="package")
def server(browser: Any, folder: Path) -> Iterator[str]:
    """The address of a server of that model."""
    with serving(folder, folder=folder.parent) as running:
        yield running.url.rstrip("/")


@pytest.fixture
def open_page(browser: Any, server: str) -> Iterator[Open]:
    """Open a view in a new window; at the end there must have been no error in its console."""
    windows: list[Any] = []
    errors: list[str] = []

    def note(message: Any) -> None:
        # The browser reports every answer of 4xx by itself; those are of ids that do not exist.
        if message.type in ("error", "warning") and "status of 404" not in message.text:
            errors.append(message.text)

    def opened(
        view: str = "",
        *,
        address: str = server,
        width: int = 1200,
        until: str = "main h1",
        key: str = "",
        **options: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 850}, service_workers="block", **options
        )
        context.set_default_timeout(10_000)
        windows.append(context)
        if key:
            context.add_init_script(f"sessionStorage.setItem('fewfold-key', '{key}')")
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/{view}")
        page.wait_for_selector(until)
        if until == "main h1":
            settled(page)
        return page

    opened.errors = errors  # type: ignore[attr-defined]
    yield opened
    for context in windows:
        context.close()
    assert errors == []
