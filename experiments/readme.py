"""Generated part of the README of an experiment, and its figures."""

from pathlib import Path
from typing import TYPE_CHECKING

from fewfold._files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def insert(text: str, generated: str, name: str = "table") -> str:
    """Return the text with the part between the two markers of this name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"the text must hold the lines {begin} and {end}")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{generated}\n{end}{rest.split(end, 1)[1]}"


def update(path: Path, generated: str, name: str = "table") -> None:
    """Replace the part between the markers of a file, atomically."""
    with new_file(path) as partial:
        partial.write_text(insert(path.read_text(), generated, name))


def keep(figure: "Figure", path: Path) -> None:
    """Save a figure and close it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
