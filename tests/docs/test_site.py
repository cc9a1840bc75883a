"""The site of the documentation: links, hosts, widths, formulas, pictures and search.

FEWFOLD_SITE=build/docs python -m pytest -m nightly tests/docs/test_site.py   # as it was built
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .pages import broken_links, foreign_files

PHONE, DESK = 390, 1280
SHOWN = """() => {
    const fits = (element) => {
        for (let one = element.parentElement; one; one = one.parentElement)
            if (["auto", "scroll", "hidden"].includes(getComputedStyle(one).overflowX)) return true;
        return element.getBoundingClientRect().right <= innerWidth + 1;
    };
    const article = [...document.querySelectorAll("article *")];
    return {
        scrolls: document.documentElement.scrollWidth > document.documentElement.clientWidth,
        wide: article.filter((one) => !fits(one)).slice(0, 3).map((one) => one.outerHTML),
        missing: [...document.images].filter((one) => !one.naturalWidth).map((one) => one.src),
        silent: [...document.querySelectorAll("article img")].filter((one) => !one.alt).length,
        raw: [...document.querySelectorAll(".math")].filter(
            (one) => !one.querySelector("mjx-container") || one.querySelector("mjx-merror"),
        ).map((one) => one.textContent.slice(0, 80)),
    };
}"""
GOOD = {"scrolls": False, "wide": [], "missing": [], "silent": 0, "raw": []}
RENDERED = "() => !window.MathJax || MathJax.startup.promise.then(() => true)"

Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open an address; in the end nothing must have failed, or come from another host."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def opened(address: str, page: str, width: int = DESK) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, service_workers="block"
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        window = context.new_page()
        window.on("pageerror", lambda error: wrong.append(f"{page}: {error}"))
        window.on("requestfailed", lambda request: wrong.append(f"{page}: {request.url} failed"))

        def note(request: Any) -> None:
            if not request.url.startswith((address, "data:", "blob:")):
                wrong.append(f"{page}: {request.url}")

        window.on("request", note)
        window.goto(f"{address}/{page}")
        window.wait_for_function(RENDERED)
        return window

    opened.wrong = wrong  # type: ignore[attr-defined]
    yield opened
    for context in contexts:
        context.close()


def problems(open_page: Open, address: str, pages: list[str], width: int) -> dict[str, Any]:
    """Return what is wrong with each page in a window of this width."""
    found = {}
    for page in pages:
        window = open_page(address, page, width)
        shown = window.evaluate(SHOWN)
        window.context.close()
        if shown != GOOD:
            found[page] = {name: value for name, value in shown.items() if value != GOOD[name]}
    return found


def pages_of(site: Path) -> list[str]:
    """Return the pages but those of source code."""
    files = (file.relative_to(site).as_posix() for file in sorted(site.rglob("*.html")))
    return [file for file in files if not file.startswith("_modules/")]


@pytest.mark.nightly
def test_links_lead_somewhere(site: Path) -> None:
    assert broken_links(site) == []


@pytest.mark.nightly
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert foreign_files(site) == []


@pytest.mark.nightly
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_pages_are_shown_whole(open_page: Open, site: Path, address: str, width: int) -> None:
    assert problems(open_page, address, pages_of(site), width) == {}
    assert open_page.wrong == []  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.parametrize("served", [True, False], ids=["served", "as files"])
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("sparsemax", "maps.html"),
        ("multi-index", "sampling.html"),
        ("diversity", "reranking.html"),
        ("HopfieldPooling", "reference/fewfold.html"),
    ],
)
def test_search(
    open_page: Open, site: Path, address: str, served: bool, words: str, page: str
) -> None:
    window = open_page(address if served else site.as_uri(), f"search.html?q={words}")
    window.wait_for_selector(f"#search-results a[href*='{page}']")


@pytest.mark.nightly
def test_tutorials_have_pictures(site: Path) -> None:
    tutorials = sorted((site / "tutorials").glob("*.html"))
    assert len(tutorials) >= 8
    for file in tutorials:
        assert "_images/" in file.read_text(), file.name


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of two pages on which everything is wrong that the tests look for."""
    wide = "<p style='width: 900px'>wide</p><span class=math>x^2</span><img src=a.png>"
    (tmp_path / "a.html").write_text(
        f"<h1 id=top>a</h1><article>{wide}</article><a href='#top'>a</a>"
        "<a href='b.html#here'>b</a><a href='c.html'>c</a>"
        "<script src='https://cdn.example/a.js'></script><a href='https://example.com'>out</a>"
    )
    (tmp_path / "b.html").write_text("<p id=there>b</p>")
    (tmp_path / "a.css").write_text(
        "@import url('//fonts.example/a.css'); a {background: url(x.png)}"
    )
    return tmp_path


def test_bad_links_and_hosts_are_found(small: Path) -> None:
    found = ["a.html: b.html#here", "a.html: c.html", "a.html: a.png"]
    assert broken_links(small) == found
    assert foreign_files(small) == [
        "a.html: https://cdn.example/a.js",
        "a.css: //fonts.example/a.css",
    ]


@pytest.mark.nightly
def test_bad_pages_are_found(open_page: Open, small: Path) -> None:
    found = problems(open_page, small.as_uri(), ["a.html"], PHONE)["a.html"]
    assert sorted(found) == ["missing", "raw", "scrolls", "silent", "wide"]
    wrong = " ".join(open_page.wrong)  # type: ignore[attr-defined]
    assert "https://cdn.example/a.js" in wrong
