"""Tutorials: programs in the percent format, run, and rendered as pages and as notebooks.

A cell starts with ``# %%`` (code) or ``# %% [markdown]`` (text in comments), as editors and
Jupytext read it. What a cell prints and the figures it makes follow it on the page; the label of a
figure, ``num=``, describes it to readers who cannot see it.

    python docs/programs.py PROGRAM FOLDER    # run it; write its outputs and the notebook
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STYLE = Path(__file__).parent / "house.mplstyle"
_MARK = re.compile(r"^# %%(?P<text> \[markdown\])?$", re.MULTILINE)


@dataclass
class Cell:
    """A part of a program: text, or code with what it printed and drew."""

    source: str
    line: int  # of the program, before the cell
    text: bool = False
    printed: str = ""
    figures: list[tuple[str, str]] = field(default_factory=list)  # file and description


def cells(program: str) -> list[Cell]:
    """Return the cells of a program; what precedes the first mark is none."""
    marks = list(_MARK.finditer(program))
    ends = [mark.start() for mark in marks[1:]] + [len(program)]
    found = []
    for mark, end in zip(marks, ends, strict=True):
        source = program[mark.end() : end].strip("\n")
        line = program.count("\n", 0, mark.end()) + 1
        if mark["text"]:
            source = re.sub("^# ?", "", source, flags=re.MULTILINE)
        found.append(Cell(source, line, text=bool(mark["text"])))
    return found


def run(program: Path, folder: Path) -> list[Cell]:
    """Run the cells one after the other, and write their figures into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found, names = cells(program.read_text()), {"__name__": "__main__"}
    with pyplot.style.context(STYLE):
        for cell in found:
            if cell.text:
                continue
            screen = io.StringIO()
            with contextlib.redirect_stdout(screen):
                exec(compile("\n" * cell.line + cell.source, str(program), "exec"), names)
            cell.printed = screen.getvalue()
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                name = f"{program.stem}_{sum(len(one.figures) for one in found)}.png"
                figure.savefig(folder / name)
                cell.figures.append((name, str(figure.get_label())))
                pyplot.close(figure)
    return found


def page(found: Sequence[Cell], name: str, folder: str) -> str:
    """Return the page in Markdown, with figures and the notebook in this folder."""
    parts = []
    for cell in found:
        if cell.text:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        parts += [f"![{about}]({folder}/{file})" for file, about in cell.figures]
    parts.append(
        f"{{download}}`This page as a program <{name}.py>`, "
        f"{{download}}`as a notebook <{folder}/{name}.ipynb>`."
    )
    return "\n\n".join(parts) + "\n"


def notebook(found: Sequence[Cell]) -> dict[str, Any]:
    """Return the program as a notebook without outputs."""
    made = []
    for number, cell in enumerate(found):
        one: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        source = re.sub("  # fmt: skip$", "", cell.source, flags=re.MULTILINE)
        if cell.text:
            source = re.sub(r"\{\w+\}(`[^`]+`)", r"\1", source)  # roles are Sphinx's
            one["cell_type"] = "markdown"
        else:
            one |= {"cell_type": "code", "execution_count": None, "outputs": []}
        one["source"] = source.splitlines(keepends=True)
        made.append(one)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def read(file: Path) -> list[Cell]:
    """Return cells with their outputs, as `main` stored them."""
    return [Cell(**cell) for cell in json.loads(file.read_text())]


def main(program: Path, folder: Path) -> None:
    """Run a program and store its outputs and the notebook."""
    folder.mkdir(parents=True, exist_ok=True)
    found = run(program, folder)
    (folder / f"{program.stem}.json").write_text(json.dumps([asdict(cell) for cell in found]))
    (folder / f"{program.stem}.ipynb").write_text(json.dumps(notebook(found), indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
