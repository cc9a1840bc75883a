"""Write the table and the figure of the README from results.json.

``python -m experiments.signalling_game.table``
"""

import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.record import Row
from experiments.signalling_game.methods import METHODS
from experiments.signalling_game.run import RECORD

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "curves.png"
# Success and calls with features of ImageNet, 500 epochs, means of ten seeds. The receiver's own
# critic is ours.
PUBLISHED = {
    "dense": ("93.37 ± 0.42", "256"),
    "sparse": ("93.35 ± 0.50", "3.13 ± 0.48"),
    "SFE (0/1)": ("55.36 ± 2.92", "1"),
    "SFE+ (0/1)": ("44.32 ± 2.72", "2"),
    "SFE+ (0/1), two critics": ("", ""),
    "NVIL": ("37.04 ± 1.61", "1"),
    "SFE (NLL)": ("33.05 ± 2.84", "1"),
    "ST Gumbel": ("27.42 ± 13.36", "1"),
    "Gumbel": ("23.51 ± 16.19", "1"),
}
PLACES = {
    ("signal-game", False): "published features",
    ("fashion-mnist", False): "Fashion-MNIST",
    ("mnist", False): "MNIST",
    ("fashion-mnist", True): "Fashion-MNIST, one class",
    ("mnist", True): "MNIST, one class",
}
# Colours of Okabe and Ito, which everybody can tell apart.
COLORS = dict(
    zip(
        METHODS,
        [
            *("#D55E00", "#000000", "#56B4E9", "#0072B2", "#66A3D2", "#009E73", "#CC79A7"),
            *("#E69F00", "#A6761D"),
        ],
        strict=True,
    )
)


def table(rows: list[Row]) -> str:
    """Markdown, for each game: published and ours, the longest runs of each method; won games in
    per cent, those with the best symbol, calls."""
    head = ["", "published", "calls", "won", "best symbol", "calls", "epochs", "seeds"]
    head.append("rate, entropy")
    parts = []
    for place in places(rows):
        lines = [head, ["---"] * len(head)]
        for method, published in PUBLISHED.items():
            lines.append([method, *published, *_cells(chosen(rows, place, method))])
        table_text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        parts.append(f"{PLACES[place]}:\n\n{table_text}")
    return "\n\n".join(parts)


def places(rows: list[Row]) -> list[tuple[str, bool]]:
    """Return the games that were played."""
    found = {(row["data"], row["one class"]) for row in rows}
    return [place for place in PLACES if place in found]


def draw(rows: list[Row]) -> Figure:
    """Plot success against epochs and receiver calls, and the calls of an epoch."""
    shown = places(rows)
    figure, panels = pyplot.subplots(
        len(shown), 3, figsize=(11, 3.0 * len(shown)), squeeze=False, layout="constrained"
    )
    for line, place in zip(panels, shown, strict=True):
        for method, color in COLORS.items():
            for row in chosen(rows, place, method)[:1]:
                _curves(line, row, method, color)
        line[0].set(ylabel=f"{PLACES[place]}\nvalidation games won, %", xlabel="epoch")
        line[1].set(xscale="log", xlabel="calls of the receiver per game, so far, × 6,400")
        line[2].set(yscale="log", xlabel="epoch", ylabel="calls per game")
        for axes in line:
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    lines = {line.get_label(): line for row in panels for line in row[0].get_lines()}
    figure.legend(
        lines.values(), lines, frameon=False, fontsize=8, ncols=len(COLORS),
        loc="outside upper center",
    )  # fmt: skip
    return figure


def _curves(panels: list, row: Row, method: str, color: str) -> None:  # type: ignore[type-arg]
    curve = row["curve"]
    epochs = range(1, 1 + len(curve["success"]))
    total, total_calls = 0.0, []
    for calls in curve["calls"]:
        total += calls
        total_calls.append(total)
    panels[0].plot(epochs, curve["success"], c=color, label=method, lw=1)
    panels[1].plot(total_calls, curve["success"], c=color, lw=1)
    panels[2].plot(epochs, curve["calls"], c=color, lw=1)
    panels[2].fill_between(epochs, curve["low"], curve["high"], color=color, alpha=0.15, lw=0)


# Methods and rewards of an even choice that were run after test figures of them were known:
# their rows are evidence in the README, and not compared with the published figures.
_LATER = {("SFE+ (0/1)", 0.01), ("SFE+ (0/1), two critics", 0.01), ("SFE (0/1)", 0.05)}


def chosen(rows: list[Row], place: tuple[str, bool], method: str) -> list[Row]:
    """The longest runs, with the rate and the reward of an even choice that win the most validation
    games, of those that were set before test figures were known."""
    key = (*place, method)
    own = [row for row in rows if (row["data"], row["one class"], row["method"]) == key]
    own = [row for row in own if (method, row["entropy"]) not in _LATER]
    most = max((row["epochs"] for row in own), default=0)
    alike: dict[tuple[float, float], list[Row]] = {}
    for row in own:
        if row["epochs"] == most:
            alike.setdefault((row["lr"], row["entropy"]), []).append(row)

    def won(found: list[Row]) -> float:
        return statistics.mean(row["curve"]["success"][-1] for row in found)

    return max(alike.values(), key=won, default=[])


def _cells(rows: list[Row]) -> list[str]:
    if not rows:
        return ["not run", *[""] * 5]
    names = ("success", "best", "calls at the end")
    run = [str(rows[0]["epochs"]), str(len(rows)), f"{rows[0]['lr']:g}, {rows[0]['entropy']:g}"]
    return [*(_mean([row[name] for row in rows]) for name in names), *run]


def _mean(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
