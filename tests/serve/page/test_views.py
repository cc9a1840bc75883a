"""Each view with data of a real server, by mouse and by keyboard."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.serve.page.log import EPOCHS, MARKUP
from tests.serve.page.window import go, names, settled

Open = Callable[..., Any]
HISTORY = "item=cooking/1&item=cooking/4"


def test_recommendations_follow_the_items(open_page: Open) -> None:
    page = open_page()
    page.get_by_text("Nothing picked yet").wait_for()
    assert len(names(page)) == 10
    page.get_by_label("Add an item").fill("birch of coo")
    page.get_by_role("option", name="Birch of cooking").click()
    settled(page)
    assert page.locator(".chips").first.inner_text().strip() == "Birch of cooking"
    first = names(page)
    assert all("cooking" in name for name in first[:3])
    assert "because of Birch of cooking" in page.locator(".because").first.inner_text()
    page.get_by_role("button", name="Add Ember of cooking to the history").click()
    settled(page)
    assert page.url.endswith("#try?item=cooking%2F1&item=cooking%2F4")
    assert "Ember of cooking" not in names(page)
    page.get_by_role("button", name="Remove Birch of cooking").click()
    settled(page)
    assert page.url.endswith("#try?item=cooking%2F4")
    assert names(page) != first


def test_bars_show_scores(open_page: Open) -> None:
    page = open_page(f"#try?{HISTORY}")
    widths = [box["width"] for bar in page.locator(".meter i").all() if (box := bar.bounding_box())]
    scores = [float(text) for text in page.locator(".score > :last-child").all_inner_texts()]
    assert len(widths) == len(scores) == 10
    assert widths == sorted(widths, reverse=True)
    assert scores == sorted(scores, reverse=True)
    whole = page.locator(".meter").first.bounding_box()["width"]
    assert widths[0] == pytest.approx(whole, abs=1)
    if min(scores) >= 0:
        assert widths[-1] / whole == pytest.approx(scores[-1] / scores[0], abs=0.02)


def test_everything_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    press("Enter")
    press("Tab")  # the chosen one of the two buttons
    press("Tab")
    assert page.evaluate("document.activeElement.role") == "combobox"
    page.keyboard.type("dune of tra")
    page.wait_for_selector("[role=option]")
    press("Enter")
    settled(page)
    page.keyboard.type("of travel")
    page.wait_for_selector("[role=option][aria-selected=true]")
    press("ArrowDown")
    press("ArrowDown")
    third = page.locator("[role=option]").nth(2)
    assert third.get_attribute("aria-selected") == "true"
    active = page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
    assert active == third.get_attribute("id")
    press("Enter")
    settled(page)
    assert page.locator(".chips").first.locator("li").count() == 2
    page.keyboard.type("amber")
    page.wait_for_selector("[role=option]")
    press("Escape")
    page.locator("[role=listbox]").first.wait_for(state="hidden")
    for _ in range(5):
        press("Backspace")
    page.wait_for_timeout(200)
    press("Escape")
    press("Tab")  # to the first chip
    press("Enter")
    settled(page)
    assert page.locator(".chips").first.locator("li").count() == 1
    assert page.evaluate("document.activeElement.className") == "remove"
    page.locator(".ranking button").nth(2).focus()
    press("Enter")
    settled(page)
    focused = page.evaluate(
        "[...document.querySelectorAll('.ranking button')].indexOf(document.activeElement)"
    )
    assert focused == 2
    assert page.locator(".chips").first.locator("li").count() == 2


def test_the_link_keeps_the_state(open_page: Open) -> None:
    page = open_page(f"#try?{HISTORY}")
    page.get_by_label("How many").fill("4")
    page.get_by_label("Diversity").fill("0.5")
    page.get_by_label("Different by").select_option("section")
    page.get_by_label("Explain each by what is given").uncheck()
    page.get_by_label("Attribute", exact=True).select_option("section")
    page.get_by_label("Rule", exact=True).select_option("cap")
    page.get_by_label("Value").fill("2")
    page.get_by_role("button", name="Add rule").click()
    page.get_by_label("Rule", exact=True).select_option("not")
    page.get_by_label("Value").fill("poetry")
    page.get_by_role("button", name="Add rule").click()
    settled(page)
    again = open_page(page.url.partition("/")[2].partition("/")[2].partition("/")[2])
    settled(again)
    assert names(again) == names(page)
    assert len(names(again)) == 4
    picked = again.get_by_label("Picked items").locator("li").all_inner_texts()
    assert picked == ["Birch of cooking", "Ember of cooking"]  # the link has ids alone
    assert again.get_by_label("How many").input_value() == "4"
    assert again.get_by_label("Different by").input_value() == "section"
    assert again.locator(".because").count() == 0
    rules = again.get_by_label("Rules in force").inner_text()
    assert "at most 2 of each section" in rules
    assert "section is not poetry" in rules
    page.get_by_role("link", name="Live").click()
    page.get_by_role("link", name="Try it").click()
    settled(page)
    assert names(page) == names(again)


def test_rules_are_kept(open_page: Open) -> None:
    def sections(page: Any) -> list[str]:
        found: list[str] = page.locator(".ranking .labels").all_inner_texts()
        return [re.findall(r"section (\S+)", text)[0] for text in found]

    page = open_page(f"#try?{HISTORY}&rule=is:section:travel")
    assert set(sections(page)) == {"travel"}
    go(page, f"#try?{HISTORY}&rule=not:section:travel&rule=not:section:cooking")
    denied = sections(page)
    assert len(denied) == 10
    assert not {"travel", "cooking"} & set(denied)
    capped = sections(go(page, f"#try?{HISTORY}&rule=cap:section:2"))
    assert max(map(capped.count, capped)) == 2
    go(page, f"#try?{HISTORY}&rule=from:year:1960&rule=to:year:1964")
    shown = page.locator(".ranking").inner_text()
    found = [int(year) for year in re.findall(r"year (\d+)", shown)]
    assert found
    assert all(1960 <= year <= 1964 for year in found)
    go(page, f"#try?{HISTORY}&rule=is:section:nowhere")
    page.get_by_text("Nothing to recommend").wait_for()
    page.get_by_text("remove one of them").wait_for()


def test_a_user_of_the_log_beside_their_recommendations(open_page: Open) -> None:
    page = open_page()
    page.get_by_text("A user of the log").click()
    page.get_by_text("No user picked").wait_for()
    page.get_by_label("Pick a user").fill("reader-1")
    page.get_by_role("option").filter(has_text=re.compile(r"^reader-1\s*6 items")).click()
    settled(page)
    page.get_by_text("reader-1 has 6 items").wait_for()
    history = page.locator(".history .name").all_inner_texts()
    assert len(history) == 6
    assert not set(history) & set(names(page))
    shown = names(page)
    page.get_by_role("link", name="Change this history").click()
    settled(page)
    assert page.locator(".chips").first.locator("li").count() == 6
    assert names(page) == shown
    go(page, "#try?user=nobody")
    assert "nobody" in page.get_by_role("alert").inner_text()


def test_what_is_unknown_is_said(open_page: Open) -> None:
    page = open_page(f"#try?{HISTORY}&item=nonsense")
    page.get_by_text("Not known to the model, and ignored: nonsense.").wait_for()
    assert page.locator(".chips .unknown").inner_text().startswith("nonsense")
    page.get_by_label("Add an item").fill("zzzz")
    page.get_by_text("No item matches “zzzz”").wait_for()
    go(page, "#similar?item=nonsense")
    assert "There is no item “nonsense”" in page.get_by_role("alert").inner_text()


def test_similar_items_are_a_walk(open_page: Open) -> None:
    page = open_page("#similar")
    page.get_by_label("Start from an item").fill("Cedar of science")
    page.get_by_role("option").first.click()
    page.get_by_role("heading", name="Cedar of science").wait_for()
    settled(page)
    second = names(page)[1]
    page.locator(".ranking .name").nth(1).click()
    page.get_by_role("heading", name=second).wait_for()
    settled(page)
    third = names(page)[0]
    page.locator(".ranking .name").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=third).wait_for()
    settled(page)
    assert page.evaluate("document.activeElement.textContent") == third
    trail = page.get_by_label("Trail").locator("li").all_inner_texts()
    assert trail == ["Cedar of science", second, third]
    page.go_back()
    page.get_by_role("heading", name=second).wait_for()
    page.get_by_label("Trail").get_by_role("link").first.click()
    page.get_by_role("heading", name="Cedar of science").wait_for()
    page.get_by_role("link", name="Recommend to somebody who has it").click()
    settled(page)
    assert page.locator(".chips").first.locator("li").count() == 1


def test_how_good_it_is(open_page: Open) -> None:
    page = open_page("#quality")
    metrics = page.get_by_role("region", name="Metrics with their intervals").inner_text()
    assert re.search(r"NDCG@10\s+0\.\d{4}\s+0\.\d{4} to 0\.\d{4}", metrics)
    assert "hits in the first k" in metrics
    page.get_by_role("region", name="Metrics by slice").wait_for()
    compared = page.get_by_role("region", name="Beside other models")
    assert "is the best" in compared.inner_text()
    assert compared.locator("svg .interval").count() == 3  # of two models, and of this one
    assert (
        f"{EPOCHS} epochs" in page.get_by_role("region", name="Training", exact=True).inner_text()
    )
    curve = page.locator("figure polyline").first.get_attribute("points")
    assert len(curve.split()) == EPOCHS
    read = page.get_by_role("region", name="What was read").inner_text()
    assert "user = user, item = book" in read
    assert "960" in read
    page.get_by_text("Model card").click()
    page.get_by_text("# Recommender").wait_for()


def test_anchors(open_page: Open) -> None:
    page = open_page("#anchors")
    assert re.search(r"anchors? in use: the tables are [\d.]+ times", page.inner_text("main"))
    rows = page.locator("tbody tr")
    assert 1 <= rows.count() <= 8
    rows.first.locator("a").first.click()
    page.wait_for_selector(".ranking")
    assert page.get_by_role("link", name="Similar items").get_attribute("aria-current") == "page"


def test_live(open_page: Open, server: str) -> None:
    page = open_page("#live")
    text = page.inner_text("main")
    for word in ("Requests per second", "Latency, median", "Users per batch", "Reloads", "Memory"):
        assert word in text
    before = page.locator("svg.spark polyline").first.get_attribute("points")
    page.wait_for_function(
        "before => document.querySelector('svg.spark polyline').getAttribute('points') !== before",
        arg=before,
    )


def test_markup_in_ids_and_attributes_is_text(open_page: Open) -> None:
    text = quote(MARKUP)
    views = ["#try", "#anchors", "#similar?item=cooking/2"]
    views += [f"#try?item={text}", f"#try?user={text}", f"#similar?item={text}"]
    views += [f"#similar?item=cooking/1&trail={text}", f"#try?{HISTORY}&rule=is:section:{text}"]
    page = open_page("#live")
    for view in views:
        go(page, view)
        assert page.title().endswith("fewfold")
        assert page.locator("main img, main script").count() == 0
    go(page, "#try")
    page.get_by_label("Add an item").fill("<img")
    page.wait_for_selector("[role=option]")
    assert page.locator("main img").count() == 0
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator(".chips").first.inner_text().strip() == "Dune of poetry"
    assert "broken" not in page.title()


def test_the_page_fits_a_phone(open_page: Open) -> None:
    first = f"#try?{HISTORY}&rule=cap:section:2"
    page = open_page("", width=360, has_touch=True)
    for view in (first, "#similar?item=cooking/1", "#quality", "#anchors", "#live"):
        go(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        tabs = page.locator("header nav a")
        for tab in tabs.all():
            box = tab.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 361
