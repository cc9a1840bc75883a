"""Write the tables and the figure of the README from results.json, converged.json and softmax.json.

``python -m experiments.ptb_language_model.table``
"""

import re
import statistics
from pathlib import Path

from experiments import readme
from experiments.ptb_language_model import converged_table
from experiments.record import Record, Row

HERE = Path(__file__).parent
RESULTS, README, FIGURE = (HERE / name for name in ("results.json", "README.md", "perplexity.png"))
CONVERGED, SOFTMAX = HERE / "converged.json", HERE / "softmax.json"
# Test perplexity and millions of numbers after 500 epochs, of the paper's tables on Penn Treebank.
PUBLISHED = {
    "dense": (70.3, 2.56),
    "anchors 2000": (71.5, 0.78),
    "anchors 1000": (73.1, 0.49),
    "anchors 500": (77.2, 0.31),
    "anchors 100": (96.5, 0.05),
}
_AFTER = ", post-hoc"
LINES = {
    "anchors": "#D55E00",
    f"anchors{_AFTER}": "#CC79A7",
    "principal axes": "#56B4E9",
    "low rank": "#0072B2",
    "k-SVD": "#009E73",
    "post-sparse hash": "#E69F00",
}


def of_seeds(rows: list[Row], text: str) -> list[Row]:
    """Return one row per table of a text, averaged over seeds, the largest table first.

    It is compared with the dense table of the same seeds.
    """
    mine = [row for row in rows if row["text"] == text]
    dense = {row["seed"]: row for row in mine if row["method"] == "dense"}
    means = []
    for method in dict.fromkeys(row["method"] for row in mine):
        some = [row for row in mine if row["method"] == method]
        mean = {key: statistics.mean(row[key] for row in some) for key in ("valid", "test")}
        mean["parameters"] = statistics.mean(row["parameters"] for row in some)
        same = [dense[row["seed"]] for row in some]
        worse = mean["test"] / statistics.mean(row["test"] for row in same)
        fewer = same[0]["parameters"] / mean["parameters"]
        means.append({"method": method, **mean, "fewer": fewer, "worse": worse, "seeds": len(some)})
    return sorted(means, key=lambda row: -row["parameters"])


def table(rows: list[Row], text: str) -> list[list[str]]:
    """Return the rows of one text, each relative to the dense table."""
    heading = ["table", "numbers", "times fewer", "valid", "test", "test / dense", "seeds"]
    lines = [heading, ["---", *["--:"] * (len(heading) - 1)]]
    for row in of_seeds(rows, text):
        size = [f"{row['parameters']:,.0f}", f"{row['fewer']:.1f}"]
        perplexities = [f"{row[part]:.1f}" for part in ("valid", "test")]
        worse = f"{row['worse']:.3f}"
        lines.append([row["method"], *size, *perplexities, worse, str(row["seeds"])])
    return lines


def published() -> list[list[str]]:
    """Return the published rows."""
    lines = [["published, 500 epochs", "numbers", "times fewer", "test", "test / dense"]]
    lines.append(["---", *["--:"] * 4])
    most, best = PUBLISHED["dense"][::-1]
    for name, (test, size) in PUBLISHED.items():
        line = [name, f"{size} M", f"{most / size:.1f}", f"{test}", f"{test / best:.3f}"]
        lines.append(line)
    return lines


def markdown(lines: list[list[str]]) -> str:
    """Format rows as a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw(rows: list[Row], path: Path) -> None:
    """Plot perplexity relative to the dense table against the compression ratio."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    mine = of_seeds(rows, "ptb")
    for name, colour in LINES.items():
        some = [(row["fewer"], row["worse"]) for row in mine if _line(row["method"]) == name]
        if some:
            axes.plot(*zip(*some, strict=True), "o-", color=colour, label=name)
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


def _line(method: str) -> str:
    """Return the name of a method up to its first number, and whether it is post-training."""
    return re.split(r",? \d", method)[0] + (_AFTER if method.endswith(_AFTER) else "")


def main() -> None:
    """Rewrite the README and the figure."""
    rows = Record(RESULTS).rows()
    parts = [markdown(published()), "Ours, Penn Treebank:", markdown(table(rows, "ptb"))]
    if any(row["text"] == "wikitext2" for row in rows):
        parts += ["Ours, WikiText-2:", markdown(table(rows, "wikitext2"))]
    readme.update(README, "\n\n".join(parts))
    for name, file, lines in (
        ("converged", CONVERGED, converged_table.converged),
        ("softmax", SOFTMAX, converged_table.softmaxes),
    ):
        readme.update(README, markdown(lines(Record(file).rows())), name)
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
