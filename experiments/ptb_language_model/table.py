"""The tables of the README and its figure, from results.json.

``python -m experiments.ptb_language_model.table``
"""

import os
from pathlib import Path

from experiments.fastvae.table import insert
from experiments.record import Record, Row

HERE = Path(__file__).parent
RESULTS, README, FIGURE = (HERE / name for name in ("results.json", "README.md", "perplexity.png"))
# Test perplexity and millions of numbers after 500 epochs, of the paper's tables on Penn Treebank.
PUBLISHED = {
    "dense": (70.3, 2.56),
    "anchors 2000": (71.5, 0.78),
    "anchors 1000": (73.1, 0.49),
    "anchors 500": (77.2, 0.31),
    "anchors 100": (96.5, 0.05),
}
LINES = {"anchors": "#D55E00", "low rank": "#0072B2", "k-SVD": "#009E73", "post-sparse": "#E69F00"}


def table(rows: list[Row], text: str) -> list[list[str]]:
    """The rows of one text, the largest first, each next to the dense table."""
    mine = [row for row in rows if row["text"] == text]
    dense = next((row for row in mine if row["method"] == "dense"), None)
    heading = ["table", "numbers", "times fewer", "valid", "test", "test / dense", "processor s"]
    lines = [heading, ["---", *["--:"] * (len(heading) - 1)]]
    for row in sorted(mine, key=lambda row: -row["parameters"]):
        fewer, worse = "", ""
        if dense is not None:
            fewer = f"{dense['parameters'] / row['parameters']:.1f}"
            worse = f"{row['test'] / dense['test']:.3f}"
        seconds = f"{row['processor seconds of training']:.0f}"
        perplexities = (f"{row[part]:.1f}" for part in ("valid", "test"))
        number = f"{row['parameters']:,}"
        lines.append([row["method"], number, fewer, *perplexities, worse, seconds])
    return lines


def published() -> list[list[str]]:
    """What the paper has."""
    lines = [["published, 500 epochs", "numbers", "times fewer", "test", "test / dense"]]
    lines.append(["---", *["--:"] * 4])
    most, best = PUBLISHED["dense"][::-1]
    for name, (test, size) in PUBLISHED.items():
        line = [name, f"{size} M", f"{most / size:.1f}", f"{test}", f"{test / best:.3f}"]
        lines.append(line)
    return lines


def markdown(lines: list[list[str]]) -> str:
    """As a table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw(rows: list[Row], path: Path) -> None:
    """Perplexity over that of the dense table, against how many times fewer numbers there are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    mine = [row for row in rows if row["text"] == "ptb"]
    dense = next(row for row in mine if row["method"] == "dense")
    for name, colour in LINES.items():
        some = [row for row in mine if row["method"].startswith(name)]
        some.sort(key=lambda row: row["parameters"])
        fewer = [dense["parameters"] / row["parameters"] for row in some]
        worse = [row["test"] / dense["test"] for row in some]
        axes.plot(fewer, worse, "o-", color=colour, label=name)
    test, size = PUBLISHED["dense"]
    others = [pair for name, pair in PUBLISHED.items() if name != "dense"]
    axes.plot(
        [size / s for _, s in others], [t / test for t, _ in others], "s--", color="0.5",
        label="anchors, published (500 epochs)",
    )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="times fewer numbers than the dense table")
    axes.set_ylabel("test perplexity / that of the dense table")
    axes.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axes.set_yticks([1, 1.1, 1.2, 1.4, 2], ["1", "1.1", "1.2", "1.4", "2"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Rewrite the README and draw the figure."""
    rows = Record(RESULTS).rows()
    parts = [markdown(published()), "Ours, Penn Treebank:", markdown(table(rows, "ptb"))]
    if any(row["text"] == "wikitext2" for row in rows):
        parts += ["Ours, WikiText-2:", markdown(table(rows, "wikitext2"))]
    partial = README.with_suffix(".tmp")
    partial.write_text(insert(README.read_text(), "\n\n".join(parts)))
    os.replace(partial, README)
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
