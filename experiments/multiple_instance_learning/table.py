"""Write the table and the figure of the README from results.json.

``python -m experiments.multiple_instance_learning.table``
"""

import math
import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.multiple_instance_learning.model import MAPS
from experiments.multiple_instance_learning.run import NINES, RECORD, TASKS
from experiments.record import Row

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "table.png"
# Per cent right for digits, area under the curve for animals: mean and deviation of five runs.
PUBLISHED = {
    "softmax": "98.4±.2 94.6±.5 91.1±.5 89.0±.3 66.4±2.0 87.1±1.6 92.6±.6",
    "1.5-entmax": "97.6±.8 96.0±.9 90.4±1.1 92.4±1.4 66.3±2.0 87.3±1.5 92.4±1.0",
    "sparsemax": "97.9±.2 96.7±.5 92.9±.9 91.6±1.0 66.1±.6 87.7±1.4 91.8±.6",
    "normmax 2": "97.9±.3 96.6±.6 93.9±.7 92.4±.7 66.1±2.5 86.4±.8 92.4±.7",
    "normmax 5": "98.2±.5 97.2±.3 95.8±.4 93.2±.5 66.4±2.3 85.5±.6 93.0±.7",
    "2-subsets": "98.7±.3 97.9±.2 92.2±.5 92.2±.5 66.8±2.7 85.4±.6 93.1±1.0",
    "3-subsets": "97.2±.4 96.2±1.2 97.3±.4 92.0±.6 68.0±2.6 85.0±.5 90.8±.7",
    "5-subsets": "97.5±.9 97.4±.5 94.5±.8 96.2±1.1 65.5±1.9 79.8±1.2 89.9±.6",
}
Cell = tuple[float, float]


def published(name: str) -> dict[str, Cell]:
    """Return the published mean and standard deviation of a map for each task."""
    cells = (cell.split("±") for cell in PUBLISHED[name].split())
    return {task: (float(a), float(b)) for task, (a, b) in zip(TASKS, cells, strict=True)}


def ours(rows: list[Row], task: str, name: str) -> Cell | None:
    """Return mean and sample standard deviation over the seeds; NaN deviation for a single seed.

    Of trainings of different lengths the longest counts.
    """
    what = "right" if task in NINES else "area"
    own = [row for row in rows if (row["task"], row["map"]) == (task, name)]
    steps = max((_steps(row) for row in own), default=0)
    found = [row["test"][what] for row in own if _steps(row) == steps]
    if len(found) < 2:
        return (found[0], math.nan) if found else None
    return statistics.fmean(found), statistics.stdev(found)


def _steps(row: Row) -> float:
    """Return the maximum number of steps for one bag."""
    return float(row["most epochs"] / row["bags per step"])


def far(cell: Cell, other: Cell) -> bool:
    """Whether two means differ by more than two standard deviations, the larger of both."""
    return abs(cell[0] - other[0]) > 2 * max(cell[1], other[1])


def table(rows: list[Row]) -> str:
    """Return a Markdown table: published and ours per map; * marks significant differences."""
    head = [f"K = {task}" if task in NINES else task.capitalize() for task in TASKS]
    lines = [["map", "", *head], ["---"] * (2 + len(TASKS))]
    for name in MAPS:
        theirs = published(name)
        cells = {task: ours(rows, task, name) for task in TASKS}
        lines.append([name, "published", *(f"{m:.1f} ± {s:.1f}" for m, s in theirs.values())])
        cells_text = [_cell_text(cell, theirs[task]) for task, cell in cells.items()]
        lines.append(["", "ours", *cells_text])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell_text(cell: Cell | None, other: Cell) -> str:
    if cell is None:
        return ""
    if math.isnan(cell[1]):
        return f"{cell[0]:.1f}"
    return f"{cell[0]:.1f} ± {cell[1]:.1f}{' *' if far(cell, other) else ''}"


def draw(rows: list[Row]) -> Figure:
    """Plot one panel per task; published as hollow marks, ours as filled ones, with deviations."""
    figure, panels = pyplot.subplots(
        1, len(TASKS), figsize=(13, 3.4), sharey=True, layout="constrained"
    )
    for axes, task in zip(panels, TASKS, strict=True):
        for place, name in enumerate(MAPS):
            subsets = name.endswith("subsets")
            colour = "#D55E00" if name == f"{task}-subsets" else "#0072B2" if subsets else "black"
            style = {"color": colour, "lw": 1, "capsize": 2}
            mean, deviation = published(name)[task]
            axes.errorbar(mean, place + 0.15, xerr=deviation, fmt="o", mfc="white", **style)
            cell = ours(rows, task, name)
            if cell is not None:
                axes.errorbar(cell[0], place - 0.15, xerr=cell[1], fmt="o", **style)
        axes.set_title(f"at least {task} nines" if task in NINES else task, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(MAPS)), MAPS)
    panels[0].invert_yaxis()
    figure.supxlabel("per cent right (digits), area under the curve (animals)", fontsize="medium")
    return figure


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
