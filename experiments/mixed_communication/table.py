"""Write the table and the figure of the README from results.json.

``python -m experiments.mixed_communication.table``
"""

import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.mixed_communication.run import RECORD
from experiments.record import Row

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "curves.png"
# Games won and symbols in a message, with features of ImageNet, 500 epochs, ten seeds.
PUBLISHED = {
    "Gumbel-softmax": ("78.84 ± 8.07", "256"),
    "straight-through": ("49.96 ± 9.51", "1"),
    "hard concrete": ("76.07 ± 7.76", "21.43 ± 17.56"),
    "Gaussian-sparsemax": ("80.88 ± 0.50", "1.57 ± 0.02"),
    "Gaussian-sparsemax, 1/2": ("", ""),
    "Gaussian-sparsemax, 1/4": ("", ""),
}
PLACES = {"signal-game": "published features", "fashion-mnist": "Fashion-MNIST", "mnist": "MNIST"}
# Colours of Okabe and Ito, which everybody can tell apart.
_COLORS = ["#000000", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00"]
COLORS = dict(zip(PUBLISHED, _COLORS, strict=True))
HEAD = ["", "published", "symbols", "won", "best symbol", "symbols", "epochs", "seeds", "rate"]


def table(rows: list[Row]) -> str:
    """Return Markdown tables: the longest run of each method, and the learning rates tried."""
    parts = []
    for place in places(rows):
        lines = [HEAD, ["---"] * len(HEAD)]
        for method, published in PUBLISHED.items():
            lines.append([method, *published, *_cells(chosen(rows, place, method))])
        parts.append(f"{PLACES[place]}:\n\n{_markdown(lines)}")
        own = [row for row in rows if row["data"] == place]
        for epochs in sorted({row["epochs"] for row in own}):
            parts += _tried([row for row in own if row["epochs"] == epochs])
    return "\n\n".join(parts)


def places(rows: list[Row]) -> list[str]:
    """Return the datasets of the games."""
    found = {row["data"] for row in rows}
    return [place for place in PLACES if place in found]


def chosen(rows: list[Row], place: str, method: str) -> list[Row]:
    """Return the longest runs with the learning rate of highest validation success."""
    own = [row for row in rows if (row["data"], row["method"]) == (place, method)]
    most = max((row["epochs"] for row in own), default=0)
    alike: dict[float, list[Row]] = {}
    for row in own:
        if row["epochs"] == most:
            alike.setdefault(row["lr"], []).append(row)
    return max(alike.values(), key=_valid, default=[])


def draw(rows: list[Row]) -> Figure:
    """Plot success and support size against epochs, for the longest runs."""
    shown = places(rows)
    figure, panels = pyplot.subplots(
        len(shown), 2, figsize=(9, 3.2 * len(shown)), squeeze=False, layout="constrained"
    )
    for line, place in zip(panels, shown, strict=True):
        for method, color in COLORS.items():
            for number, row in enumerate(chosen(rows, place, method)):
                label = method if number == 0 else None
                for axes, what in zip(line, ("success", "calls"), strict=True):
                    curve = row["curve"][what]
                    axes.plot(range(1, len(curve) + 1), curve, c=color, lw=1, label=label)
        line[0].set(ylabel=f"{PLACES[place]}\nvalidation games won, %")
        line[1].set(yscale="log", ylabel="symbols in a message")
        for axes in line:
            axes.set_xlabel("epoch")
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    if shown:
        panels[0][0].legend(frameon=False, fontsize=8)
    return figure


def _tried(rows: list[Row]) -> list[str]:
    """Return a Markdown table: validation success in per cent for several learning rates."""
    rates = sorted({row["lr"] for row in rows})
    if len(rates) < 2:
        return []
    lines = [["rate", *(f"{rate:g}" for rate in rates)], ["---"] * (1 + len(rates))]
    for method in PUBLISHED:
        found = [[r for r in rows if (r["method"], r["lr"]) == (method, rate)] for rate in rates]
        if any(found):
            lines.append([method, *(f"{_valid(own):.1f}" if own else "" for own in found)])
    label = f"Validation games won after {rows[0]['epochs']} epochs, in per cent:"
    return [f"{label}\n\n{_markdown(lines)}"]


def _valid(rows: list[Row]) -> float:
    return statistics.mean(row["curve"]["success"][-1] for row in rows)


def _cells(rows: list[Row]) -> list[str]:
    if not rows:
        return ["not run", *[""] * 5]
    figures = [_mean([row[name] for row in rows]) for name in ("success", "best", "symbols")]
    return [*figures, str(rows[0]["epochs"]), str(len(rows)), f"{rows[0]['lr']:g}"]


def _mean(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
