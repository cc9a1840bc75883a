"""Write the tables and learning curves of the README from results.json.

``python -m experiments.semisupervised_vae.table``
"""

import itertools
import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import readme
from experiments.record import Row
from experiments.semisupervised_vae.run import METHODS, RECORD

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "curves.png"
# Accuracy, its standard error over ten seeds, and calls of the decoder, after 200 epochs.
PUBLISHED = {
    "sparse": (96.87, 0.1, "1.01"),
    "dense": (96.93, 0.1, "10"),
    "SFE": (94.75, 0.2, "1"),
    "SFE+": (96.53, 0.1, "2"),
    "NVIL": (96.01, 0.2, "1"),
    "Gumbel": (95.46, 0.1, "1"),
}
# Colours of Okabe and Ito, which everybody can tell apart.
COLOURS = {
    "sparse": "#D55E00",
    "dense": "black",
    "SFE": "#56B4E9",
    "SFE+": "#0072B2",
    "NVIL": "#009E73",
    "Gumbel": "#E69F00",
    "ST Gumbel": "#CC79A7",
    "sum and sample": "#999999",
    "straight-through": "#B2182B",
    "unordered set": "#8C510A",
    "MuProp": "#5E3C99",
    "RELAX": "#66A3D2",
}


def table(rows: list[Row]) -> str:
    """Return a Markdown table: published and ours, mean over seeds and each seed."""
    head = [
        "method",
        "published (200 epochs)",
        "calls",
        "ours",
        "mean of the last ten epochs",
        "seeds",
        "epochs",
        "calls at the end",
    ]
    lines = [[*head, "-ELBO of the test", "warm start", "processor s per epoch"]]
    lines.append(["---"] * len(lines[0]))
    for method in METHODS:
        own = [row for row in rows if row.get("method") == method]
        for epochs in sorted({row["epochs"] for row in own}):
            lines.append(_cells(method, [row for row in own if row["epochs"] == epochs]))
    return _markdown(lines)


def times(rows: list[Row]) -> str:
    """Return a Markdown table: milliseconds per step of the latest interleaved measurement."""
    measured = [row for row in rows if "milliseconds" in row]
    if not measured:
        return ""
    taken, calls = measured[-1]["milliseconds"], measured[-1].get("calls", {})
    lines = [["method", "calls per image", "ms per step", "of dense", "of SFE"], ["---"] * 5]
    for method, time in taken.items():
        peers = (f"{time / taken[peer]:.2f}" if peer in taken else "" for peer in ("dense", "SFE"))
        call_text = f"{calls[method]:.2f}" if method in calls else ""
        lines.append([method, call_text, f"{time:.2f}", *peers])
    return _markdown(lines)


def draw(rows: list[Row]) -> Figure:
    """Plot test accuracy against epochs and against decoder calls."""
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 3.8), sharey=True, layout="constrained"
    )
    for method, colour in COLOURS.items():
        own = [row for row in rows if row.get("method") == method]
        for number, row in enumerate(own):
            curve = row["curve"]
            columns = method if number == 0 else None
            style = {"color": colour, "label": columns, "lw": 1.2, "alpha": 0.9}
            left.plot(range(1, len(curve["test"]) + 1), curve["test"], **style)
            right.plot([*itertools.accumulate(curve["calls"])], curve["test"], **style)
    _dress(left, "epochs")
    _dress(right, "calls of the decoder per unlabelled image")
    right.set_xscale("log")
    left.set_ylabel("test accuracy, per cent")
    if left.lines:
        right.legend(frameon=False, ncols=2, fontsize="small", loc="lower right")
    return figure


def _cells(method: str, rows: list[Row]) -> list[str]:
    published = ["", ""]
    if method in PUBLISHED:
        accuracy, error, calls = PUBLISHED[method]
        published = [f"{accuracy:.2f} ± {error:.1f}", calls]
    each = ", ".join(f"{row['test']:.2f}" for row in rows)
    ours = f"{statistics.mean(row['test'] for row in rows):.2f} ({each})"
    seeds = ", ".join(str(row["seed"]) for row in rows)
    calls = statistics.mean(row["curve"]["calls"][-1] for row in rows)
    bound, start = (
        statistics.mean(row[n] for row in rows) for n in ("test negative ELBO", "warm start")
    )
    seconds = statistics.mean(row["processor seconds"] / row["epochs"] for row in rows)
    late = statistics.mean(statistics.mean(row["curve"]["test"][-10:]) for row in rows)
    columns = [
        ours,
        f"{late:.2f}",
        seeds,
        str(rows[0]["epochs"]),
        f"{calls:.3f}".rstrip("0").rstrip("."),
    ]
    return [method, *published, *columns, f"{bound:.2f}", f"{start:.2f}", f"{seconds:.1f}"]


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _dress(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, f"{table(rows)}\n\n{times(rows)}".rstrip())
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
