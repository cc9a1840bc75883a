"""The generated part of an experiment's README, and its pictures."""

from pathlib import Path
from typing import TYPE_CHECKING

from fewfold._files import new_file

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
    with new_file(path) as partial:
        partial.write_text(insert(path.read_text(), generated))


def keep(figure: "Figure", path: Path) -> None:
    """Write a picture, and let go of it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
