"""Steps in a window of the browser that shows the page."""

from typing import Any

__all__ = ["go", "names", "settled"]


def settled(page: Any) -> None:
    """Wait until the answer to the last change is there.

    A click changes the address at once, and the page hears of it in a later task: wait for that.
    """
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    page.wait_for_selector("[aria-busy=true]", state="detached")


def go(page: Any, view: str) -> Any:
    """Follow a link within the page."""
    page.evaluate(
        """view => new Promise((done) => {
            addEventListener("hashchange", () => setTimeout(done), {once: true});
            location.hash = view;
        })""",
        view,
    )
    settled(page)
    return page


def names(page: Any) -> list[str]:
    """Names of the ranked items, from the first."""
    found: list[str] = page.locator(".ranking .name").all_inner_texts()
    return found
