"""The page of all published tables as Markdown, and the lines of a README."""

import re
import statistics
from collections import Counter

from experiments.evidence.published import EXPERIMENTS, Cell, Table, method_of
from experiments.evidence.sentences import (
    NOT_RUN,
    STOPPED,
    agreement,
    ratio,
    seeds,
    sentence,
    status,
    stopped,
)
from experiments.evidence.tables import NOTHING_PUBLISHED, TABLES, UNAVAILABLE

HEAD = """# Published tables and figures next to ours

What of the papers' tables and figures is reproduced. `python -m experiments.evidence` writes this
page from the rows in `experiments/*/results.json` and the files next to it.

- **Long enough**: methods with at least half of the published epochs, of all methods of the table;
  a method counts once for each dataset or size in it. Where nothing is trained, those with a row.
  Shorter runs that ended because validation had stopped improving are counted apart.
- **Order**: pairs of methods that are in the published order, of all that have a published and an
  own figure, and Kendall's tau (1: all pairs, -1: none). Pairs whose published figures differ by no
  more than the larger of their published deviations are left out. *All runs* compares also runs
  of different lengths, *long runs* only those that are long enough. For what is published as a
  picture, it is how many of the paper's statements hold, of those that our rows decide.
- Of each method the longest runs count, and their mean over the seeds; "±" is the standard
  deviation between seeds. A method of ours has its own name where it is not the published one.
- **Seeds**: ours of the published ones, where the paper says how many.
"""


def page(tables: tuple[Table, ...] = TABLES) -> str:
    """Return the whole page."""
    parts = [HEAD, _counts(tables), _summary(tables)]
    for paper in dict.fromkeys(table.paper for table in tables):
        parts.append(f"## {paper.cited}: {paper.title}")
        parts += [_section(table) for table in tables if table.paper == paper]
    parts += ["## Not available", _unavailable(), "## Nothing published", _nothing()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def paragraph(experiment: str, tables: tuple[Table, ...] = TABLES) -> str:
    """Return what the README of an experiment says of its tables, with seeds and epochs."""
    own = [table for table in tables if table.experiment == experiment]
    lines = [f"- {table.number}, {table.about}: {sentence(table)}" for table in own]
    head = "From the rows, as on [the page of all tables](../../docs/evidence.md):"
    return "\n".join([head, "", *lines])


def _counts(tables: tuple[Table, ...]) -> str:
    found = Counter(status(table.cells) for table in tables)
    rest = ", ".join(f"{word} {found[word]}" for word in ("partly", "no", NOT_RUN))
    return (
        f"Of {len(tables)} tables and figures that the available data allow, **{found['yes']}** "
        f"have every method at at least half of the published epochs ({rest})."
    )


def _summary(tables: tuple[Table, ...]) -> str:
    head = ["", "paper", "long enough", "order, all runs", "long runs", "seeds", "not as published"]
    lines = [[*head, "rows"], ["---"] * (len(head) + 1)]
    for table in tables:
        lines.append([
            f"[{table.number}](#{_anchor(_title(table))}), {table.about}",
            table.paper.cited,
            ", ".join(filter(None, [status(table.cells), ratio(table), stopped(table)])),
            agreement(table).text(),
            agreement(table, long=True).text(),
            seeds(table) + (f" of {table.seeds}" if table.seeds and seeds(table) else ""),
            table.other,
            _readme(table.experiment),
        ])  # fmt: skip
    return _markdown(lines)


def _section(table: Table) -> str:
    parts = [f"### {_title(table)}", f"{_readme(table.experiment)}: {sentence(table)}"]
    if table.differs:
        parts.append(table.differs)
    some = any(cell.rows for cell in table.cells)
    if some and not all(cell.rows for cell in table.cells):
        parts.append(table.missing)
    held = {True: "holds", False: "does not hold", None: "not measured"}
    statements = [f"- {one.text}: **{held[one.holds(table.rows)]}**" for one in table.statements]
    parts += ["\n".join(statements)] if statements else []
    parts.append(_lines(table))
    return "\n\n".join(parts)


def _lines(table: Table) -> str:
    """One line for each method: published and ours."""
    kinds = {tuple(measure.name for measure in column.measures) for column in table.columns}
    common = " / ".join(next(iter(kinds))) if len(kinds) == 1 else ""
    head = ["", "method", f"published: {common}" if common else "published", "ours", "our row"]
    head.append(f"seeds ({table.seeds})" if table.seeds else "seeds")
    if table.length:
        head.append(f"{table.length.unit} ({table.length.published:,g})")
    lines, last = [head, ["---"] * len(head)], None
    for cell in table.cells:
        names = "" if common else ", " + " / ".join(m.name for m in cell.column.measures)
        title = "" if cell.column is last else f"{cell.column.title}{names}"
        last = cell.column
        line = [title, cell.method.name, _published(cell), *_ours(cell, table)]
        lines.append([*line, *_long(cell)] if table.length else line)
    return _markdown(lines)


def _published(cell: Cell) -> str:
    """The published figures; the first may have a deviation."""
    texts = [f"{figure:,g}" for figure in cell.method.published]
    if texts and cell.method.error:
        texts[0] += f" ± {cell.method.error:g}"
    return " / ".join(texts)


def _ours(cell: Cell, table: Table) -> list[str]:
    """Our figures, the name of our row, and the number of seeds."""
    if not cell.rows:
        return [NOT_RUN, "", ""]
    measures = cell.column.measures
    texts = [measure.text(mean) for measure, mean in zip(measures, cell.values, strict=True)]
    if len(cell.rows) > 1:
        deviation = statistics.stdev(measures[0].of(row) for row in cell.rows)
        texts[0] += f" ± {measures[0].text(deviation)}"
    label = method_of(cell.rows[0])
    names = ["" if label == cell.method.name else label, table.detail(cell.rows[0])]
    return [" / ".join(texts), "; ".join(filter(None, names)), str(len(cell.rows))]


def _long(cell: Cell) -> list[str]:
    if cell.long is None:
        return [""]
    why = "" if cell.enough else f" ({STOPPED if cell.stopped else 'short'})"
    return [f"{cell.long:,g}{why}"]


def _unavailable() -> str:
    lines = [["", "paper", "what is missing"], ["---"] * 3]
    lines += [[one.number, one.paper.cited, one.reason] for one in UNAVAILABLE]
    return _markdown(lines)


def _nothing() -> str:
    head = "Experiments without a table of these papers, and what they are compared with:"
    lines = [
        f"- {_readme(name)}: {reason}"
        for name, reason in NOTHING_PUBLISHED.items()
        if (EXPERIMENTS / name / "results.json").exists()
    ]
    return "\n".join([head, "", *lines])


def _readme(experiment: str) -> str:
    return f"[{experiment}](../experiments/{experiment}/README.md)"


def _title(table: Table) -> str:
    return f"{table.number}: {table.about}"


def _anchor(title: str) -> str:
    """The anchor of a heading, as of GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
