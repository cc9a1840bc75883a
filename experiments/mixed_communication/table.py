"""results.json as the table of the README, and as a picture.

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
COLORS = dict(
    zip(PUBLISHED, ["#000000", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00"], strict=True)
)
HEAD = ["", "published", "symbols", "won", "best symbol", "symbols", "seeds", "rate"]


def table(rows: list[Row]) -> str:
    """Markdown: the longest runs of each game, then what the rates were chosen by."""
    parts = []
    for place, epochs in longest(rows):
        lines = [HEAD, ["---"] * len(HEAD)]
        for method, published in PUBLISHED.items():
            lines.append([method, *published, *_cells(chosen(rows, place, epochs, method))])
        parts.append(f"{PLACES[place]}, {epochs} epochs:\n\n{_markdown(lines)}")
        parts += [_tried(rows, place, shorter) for shorter in _lengths(rows, place)[:-1]]
    return "\n\n".join(parts)


def longest(rows: list[Row]) -> list[tuple[str, int]]:
    """Each game, and the most epochs it was played for."""
    return [(place, _lengths(rows, place)[-1]) for place in PLACES if _lengths(rows, place)]


def chosen(rows: list[Row], place: str, epochs: int, method: str) -> list[Row]:
    """The seeds of the rate that wins the most validation games."""
    alike: dict[float, list[Row]] = {}
    for row in rows:
        if (row["data"], row["epochs"], row["method"]) == (place, epochs, method):
            alike.setdefault(row["lr"], []).append(row)
    return max(alike.values(), key=_valid, default=[])


def draw(rows: list[Row]) -> Figure:
    """Won games and symbols in a message against epochs, of the longest runs."""
    shown = longest(rows)
    figure, panels = pyplot.subplots(
        len(shown), 2, figsize=(9, 3.2 * len(shown)), squeeze=False, layout="constrained"
    )
    for line, (place, epochs) in zip(panels, shown, strict=True):
        for method, color in COLORS.items():
            for number, row in enumerate(chosen(rows, place, epochs, method)):
                told = method if number == 0 else None
                for axes, what in zip(line, ("success", "calls"), strict=True):
                    curve = row["curve"][what]
                    axes.plot(range(1, len(curve) + 1), curve, c=color, lw=1, label=told)
        line[0].set(ylabel=f"{PLACES[place]}\nvalidation games won, %")
        line[1].set(yscale="log", ylabel="symbols in a message")
        for axes in line:
            axes.set_xlabel("epoch")
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    if shown:
        panels[0][0].legend(frameon=False, fontsize=8)
    return figure


def _lengths(rows: list[Row], place: str) -> list[int]:
    return sorted({row["epochs"] for row in rows if row["data"] == place})


def _tried(rows: list[Row], place: str, epochs: int) -> str:
    """Markdown: per cent of validation games won, for each rate that was tried."""
    own = [row for row in rows if (row["data"], row["epochs"]) == (place, epochs)]
    rates = sorted({row["lr"] for row in own})
    lines = [["rate", *(f"{rate:g}" for rate in rates)], ["---"] * (1 + len(rates))]
    for method in PUBLISHED:
        found = ([r for r in own if (r["method"], r["lr"]) == (method, rate)] for rate in rates)
        lines.append([method, *(f"{_valid(rows):.1f}" if rows else "" for rows in found)])
    told = f"{PLACES[place]}, validation games won after {epochs} epochs, in per cent:"
    return f"{told}\n\n{_markdown(lines)}"


def _valid(rows: list[Row]) -> float:
    return statistics.mean(row["curve"]["success"][-1] for row in rows)


def _cells(rows: list[Row]) -> list[str]:
    if not rows:
        return ["not run", *[""] * 4]
    figures = [_mean([row[name] for row in rows]) for name in ("success", "best", "symbols")]
    return [*figures, str(len(rows)), f"{rows[0]['lr']:g}"]


def _mean(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Rewrite the README and the picture."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
