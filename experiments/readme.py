"""The generated part of an experiment's README, and its pictures."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def insert(text: str, generated: str) -> str:
    """The text with what is between the two markers replaced."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"the text must hold the lines {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{generated}\n{END}{rest.split(END, 1)[1]}"


def update(path: Path, generated: str) -> None:
    """Put this between the markers of a file; it is never half written."""
    partial = path.with_suffix(".tmp")
    partial.write_text(insert(path.read_text(), generated))
    os.replace(partial, path)


def keep(figure: "Figure", path: Path) -> None:
    """Write a picture, and let go of it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
