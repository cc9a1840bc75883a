"""Links, targets and embedded files of the pages of a site, read without a browser."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

__all__ = ["Page", "broken_links", "foreign_files", "read_pages"]

_FILE_OF = {"img": "src", "script": "src", "link": "href", "source": "srcset", "iframe": "src"}
_LOADED = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}


@dataclass
class Page:
    """What a page refers to, and what may be referred to in it."""

    links: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # loaded with the page
    ids: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        file = values.get(_FILE_OF.get(tag, ""))
        if file and (tag != "link" or _LOADED & set(values.get("rel", "").split())):
            self.page.files.append(file)


def read_pages(site: Path) -> dict[Path, Page]:
    """Return the pages of a site by their files."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        reader = _Reader()
        reader.feed(file.read_text())
        reader.close()
        pages[file.resolve()] = reader.page
    return pages


def broken_links(site: Path) -> list[str]:
    """Return links and embedded files of the site that lead to no file, or to no place in it."""
    pages, found = read_pages(site), []
    for file, page in pages.items():
        for link in (*page.links, *page.files):
            if re.match("[a-z][a-z+.-]*:|//", link):  # of another host, or an address of mail
                continue
            path, place = urldefrag(link)
            target = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
            there = target.is_file() and (
                not place or target not in pages or unquote(place) in pages[target].ids
            )
            if not there:
                found.append(f"{file.relative_to(site.resolve())}: {link}")
    return found


def foreign_files(site: Path) -> list[str]:
    """Return files that a page or a style sheet of the site would load from another host."""
    found = [
        f"{file.relative_to(site.resolve())}: {one}"
        for file, page in read_pages(site).items()
        for one in page.files
        if re.match("([a-z]+:)?//", one)
    ]
    for sheet in sorted(site.rglob("*.css")):
        loaded = re.findall(
            r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", sheet.read_text()
        )
        found += [f"{sheet.relative_to(site)}: {one}" for one in loaded]
    return found
