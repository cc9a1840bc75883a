"""A server that stops and comes back, another model, a key, and a model without anchors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fewfold as ff
from tests.serve.page.log import write_model
from tests.serve.page.serving import Restartable
from tests.serve.page.window import settled

Open = Callable[..., Any]
KEY = "correct horse battery staple"
HISTORY = "#try?item=cooking/1&item=cooking/4"


@pytest.fixture(scope="module")
def other(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    """Another server, with a key, of a model without anchors, to be stopped and started."""
    place = tmp_path_factory.mktemp("other")
    (place / "key").write_text(KEY)
    folder = write_model(place / "model", ff.recommender.EASE(l2=5.0))
    serving = Restartable(folder, "--api-key-file", place / "key")
    yield serving.start()
    serving.stop()


def test_a_model_without_anchors_or_curve_is_explained(open_page: Open, other: Restartable) -> None:
    page = open_page("#anchors", address=other.address, key=KEY)
    page.get_by_text("This model has no anchors").wait_for()
    page.get_by_text("fewfold fit --model fastvae --anchors auto").wait_for()
    page.get_by_role("link", name="How good is it").click()
    page.get_by_text("No training curve").wait_for()
    page.get_by_text("No comparison is kept in this model").wait_for()


def test_another_model_takes_over(open_page: Open, other: Restartable) -> None:
    page = open_page(HISTORY, address=other.address, key=KEY)
    assert "ease" in page.inner_text("#served")
    write_model(other.folder, ff.recommender.ItemKNN())
    page.wait_for_timeout(500)
    for _ in range(100):  # the server watches the folder; the next answer names the new model
        page.get_by_label("How many").fill("7")
        page.get_by_label("How many").fill("8")
        page.wait_for_timeout(100)
        if "item-knn" in page.inner_text("#served"):
            break
    assert "item-knn" in page.inner_text("#served")
    page.get_by_text("Another model has taken over").wait_for()
    page.wait_for_selector(".ranking li")


def test_a_server_that_stops_and_comes_back(open_page: Open, other: Restartable) -> None:
    page = open_page(HISTORY, address=other.address, key=KEY)
    before = page.locator(".ranking .name").all_inner_texts()
    other.stop()
    try:
        page.locator(".offline").wait_for()  # noticed while nobody does anything
        page.get_by_label("How many").fill("5")
        page.get_by_text("No recommendations").wait_for()
    finally:
        other.start()
    page.locator(".offline").wait_for(state="detached")
    page.wait_for_selector(".ranking")
    settled(page)
    assert page.locator(".ranking .name").all_inner_texts() == before[:5]
    _forget(open_page, "ERR_CONNECTION_", "ERR_EMPTY_RESPONSE", "status of 503")


def test_a_key_is_asked_for_once(open_page: Open, other: Restartable) -> None:
    page = open_page(HISTORY, address=other.address, until="dialog[open]")
    page.get_by_label("Key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("That key was not accepted.").wait_for()
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".ranking")
    page.reload()
    page.wait_for_selector(".ranking")
    page.get_by_role("dialog").wait_for(state="hidden")
    _forget(open_page, "status of 401")


def _forget(open_page: Any, *expected: str) -> None:
    """Remove errors of the console that belong to a test."""
    errors = open_page.errors
    errors[:] = [text for text in errors if not any(word in text for word in expected)]
