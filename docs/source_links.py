"""Sphinx extension: links from pages of source code back to the reference, mended.

`sphinx.ext.viewcode` keeps one name of each module. A module whose objects are documented under two
names (``fewfold.sparse_attention``, ``fewfold.attention.Attention``) gets links that lead nowhere
for those of the second. Modules without source are in its list of modules, as links to no page.
"""

import re
from typing import Any

from sphinx.application import Sphinx


def drop_modules_without_source(app: Sphinx) -> list[Any]:
    """Remove modules that get no page, before viewcode lists them."""
    known = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in known.items() if not entry]:
        del known[name]
    return []


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Replace the targets of links that do not exist by those of the same object on that page."""
    if not page.startswith("_modules/"):
        return
    places: dict[str, list[str]] = {}
    for found in app.env.get_domain("py").objects.values():  # type: ignore[attr-defined]
        places.setdefault(found.docname, []).append(found.node_id)

    def mended(link: re.Match[str]) -> str:
        there = places.get(link["page"].lstrip("./"), [])
        parts = link["place"].split(".")
        tails = [".".join(parts[start:]) for start in range(len(parts))]
        named = (one for tail in tails for one in there if one == tail or one.endswith(f".{tail}"))
        return f'href="{link["page"]}.html#{next(named, link["place"])}"'

    link = r'href="(?P<page>[./]*reference/\w+)\.html#(?P<place>[\w.]+)"'
    context["body"] = re.sub(link, mended, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before viewcode lists modules, and when pages are written."""
    app.connect("html-collect-pages", drop_modules_without_source, priority=100)
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
