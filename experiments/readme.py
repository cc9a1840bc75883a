"""Generated part of the README of an experiment, and its figures."""

from pathlib import Path
from typing import TYPE_CHECKING

from fewfold._files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def insert(text: str, generated: str) -> str:
    """Return the text with the part between the two markers replaced."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"the text must hold the lines {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{generated}\n{END}{rest.split(END, 1)[1]}"


def update(path: Path, generated: str) -> None:
    """Replace the part between the markers of a file, atomically."""
    with new_file(path) as partial:
        partial.write_text(insert(path.read_text(), generated))


def keep(figure: "Figure", path: Path) -> None:
    """Save a figure and close it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
