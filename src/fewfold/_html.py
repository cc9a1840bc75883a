"""Tables in HTML, for notebooks: everything in them is escaped."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Bar", "paragraphs", "table"]

_CELL = "padding: .1em .6em; text-align: {side}; vertical-align: top"
# Of the text's own colour, so that it is readable on light and dark pages.
_BAR = (
    '<div style="background: currentColor; opacity: .4; height: .7em; display: inline-block; '
    'width: {width:.2f}em"></div> '
)


@dataclass(frozen=True)
class Bar:
    """A number with a bar of this share, from 0 to 1, before it."""

    share: float
    text: str


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "", most: int = 50
) -> str:
    """Return a table; numbers are aligned to the right.

    Args:
        heads: name of each column.
        rows: cells, which are texts, numbers or a `Bar`.
        caption: text above the table.
        most: number of rows that are shown; a line says how many more there are.

    Example:
        >>> from fewfold._html import table
        >>> "&lt;b&gt;" in table(["item"], [["<b>"]])
        True
    """
    cells = [list(row) for row in rows]
    numeric = [
        bool(cells) and all(isinstance(row[n], (int, float)) for row in cells)
        for n in range(len(heads))
    ]
    sides = ["right" if one else "left" for one in numeric]
    lines = ["<table>"]
    if caption:
        lines.append(f'<caption style="text-align: left">{html.escape(caption)}</caption>')
    head = (_cell("th", html.escape(name), side) for name, side in zip(heads, sides, strict=True))
    lines.append(f"<thead><tr>{''.join(head)}</tr></thead><tbody>")
    for row in cells[:most]:
        body = (_cell("td", _shown(value), side) for value, side in zip(row, sides, strict=True))
        lines.append(f"<tr>{''.join(body)}</tr>")
    lines.append("</tbody></table>")
    if len(cells) > most:
        lines.append(paragraphs(f"and {len(cells) - most:,} more"))
    return "\n".join(lines)


def paragraphs(*texts: str) -> str:
    """Return a paragraph for each text that is not empty."""
    return "\n".join(f"<p>{html.escape(text)}</p>" for text in texts if text)


def _cell(tag: str, content: str, side: str) -> str:
    return f'<{tag} style="{_CELL.format(side=side)}">{content}</{tag}>'


def _shown(value: object) -> str:
    """Return the HTML of a cell."""
    if isinstance(value, Bar):
        share = min(max(value.share, 0.0), 1.0) if math.isfinite(value.share) else 0.0
        return _BAR.format(width=6 * share) + html.escape(value.text)
    if isinstance(value, float):
        plain = value == 0 or 1e-3 <= abs(value) < 1e4
        return f"{value:.4f}" if plain else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return html.escape(str(value))
