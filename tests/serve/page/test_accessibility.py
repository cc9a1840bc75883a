"""Names, landmarks, headings, contrast in both themes, and a focus that can be seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page.window import go

Open = Callable[..., Any]
AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
VIEWS = {
    "try": "#try?item=cooking/1&item=cooking/4&item=nonsense&rule=cap:section:2&diversity=0.3",
    "user": "#try?user=reader-1",
    "unknown user": "#try?user=nobody",
    "similar": "#similar?item=cooking/1&trail=cooking/2",
    "quality": "#quality",
    "anchors": "#anchors",
    "live": "#live",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_passes_the_audit(open_page: Open, scheme: str) -> None:
    page = open_page("", color_scheme=scheme, reduced_motion="reduce")
    for name, view in VIEWS.items():
        go(page, view)
        if name == "try":
            page.get_by_label("Add an item").fill("of")
            page.wait_for_selector("[role=option]")
        assert page.evaluate(AUDIT) == [], name


def test_the_audit_finds_faults(open_page: Open) -> None:
    page = open_page("#live")
    page.evaluate(
        """() => {
            const main = document.querySelector("main");
            const make = (tag) => main.appendChild(document.createElement(tag));
            make("input");
            make("h4").textContent = "deep";
            const pale = make("p");
            pale.textContent = "pale";
            pale.style.color = "#bbb";
            make("label").setAttribute("for", "nowhere");
        }"""
    )
    found = "\n".join(page.evaluate(AUDIT))
    for fault in ("no name: input", "h4 after h2: deep", "contrast 1.", "leads nowhere"):
        assert fault in found


def test_the_theme_follows_the_system_and_the_button(open_page: Open) -> None:
    def dark(page: Any) -> bool:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(colour.removeprefix("rgb(").split(",")[0]) < 128

    page = open_page("#live", color_scheme="dark")
    assert dark(page)
    page.emulate_media(color_scheme="light")
    assert not dark(page)
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert button.inner_text() == "Theme: light"
    page.emulate_media(color_scheme="dark")
    assert not dark(page)
    page.emulate_media(color_scheme="light")
    button.click()
    assert button.inner_text() == "Theme: dark"
    assert dark(page)
    page.reload()
    page.wait_for_selector("main h1")
    assert dark(page)
    button.click()
    assert button.inner_text() == "Theme: system"
    assert not dark(page)


def test_the_focus_is_visible_and_in_reading_order(open_page: Open) -> None:
    page = open_page("#try?item=cooking/1&item=cooking/4&k=3")
    found = []
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => {
                const at = document.activeElement;
                if (at === document.body) return null;
                const mark = at.type === "radio" ? at.nextElementSibling : at;
                const style = getComputedStyle(mark);
                const every = [...document.querySelectorAll("*")];
                return {what: at.outerHTML.slice(0, 80), place: every.indexOf(at),
                        seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
            }"""
        )
        if focus is None:
            break
        found.append(focus)
    assert len(found) > 20
    assert [one["what"] for one in found if not one["seen"]] == []
    places = [one["place"] for one in found]
    assert places == sorted(set(places))
