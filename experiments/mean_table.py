"""Markdown table of rows, with a line per method."""

import statistics
from collections.abc import Sequence

from experiments.record import Row


def mean_table(rows: list[Row], methods: Sequence[str], columns: dict[str, str]) -> str:
    """Return a line for each method that has rows: means over the seeds, and their number.

    With several seeds the standard deviation (n - 1) follows the mean.

    Args:
        rows: with the fields `method` and `seed`.
        methods: in the order of the lines.
        columns: fields of a row, and how to format them; a field that is missing or None is left
            out of the mean.
    """
    lines = [["method", *columns, "seeds"], ["---", *["--:"] * (len(columns) + 1)]]
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        if own:
            cells = [_cell([row.get(name) for row in own], how) for name, how in columns.items()]
            lines.append([method, *cells, str(len(own))])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(values: list[float | None], how: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = format(statistics.fmean(known), how)
    return mean if len(known) == 1 else f"{mean} ± {format(statistics.stdev(known), how)}"
