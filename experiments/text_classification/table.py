"""Write the table and the figure of the README from results.json and long.json.

``python -m experiments.text_classification.table``
"""

import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.record import Row
from experiments.text_classification.run import LONG, RECORD

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "sizes.png"
DATA = {
    "ag_news_partial": "AG-News (partial)",
    "searchsnippets": "search snippets",
    "stackoverflow_titles": "StackOverflow titles",
    "mr": "movie reviews",
}
# Accuracy and millions of numbers on the whole of AG-News, of which we have a part.
PUBLISHED = {
    "CNN": (91.6, 15.87),
    "ANT, 50 frequent": (89.5, 1.01),
    "ANT, 10 frequent, domain knowledge": (91.0, 0.40),
    "ANT, 10 random, domain knowledge": (90.5, 0.40),
    "ANT, 5, mixture": (90.5, 0.70),
}
# Rows of the paper's table, on the whole of AG-News after 200 epochs; names are those of `run`.
ELEVEN = {
    "dense": (91.6, 15.87),
    "frequency": (91.0, 1.28),
    "TF-IDF": (91.0, 1.28),
    "group lasso": (91.0, 1.02),
    "variational vocabulary dropout": (91.0, 0.77),
    "sparse variational dropout": (88.8, 1.72),
    "sparse variational dropout of entries and words": (89.2, 0.73),
    "sparse code, 100 frequent": (89.5, 2.03),
    "ANT, 50 frequent, any non-zeros": (89.5, 1.01),
    "ANT, 10 frequent, any non-zeros": (91.0, 0.40),
    "ANT, 10 random, any non-zeros": (90.5, 0.40),
}
# Colours of Okabe and Ito, which everybody can tell apart.
STYLE = {
    "dense": ("black", "s"),
    "rows": ("#56B4E9", "v"),
    "low rank": ("#E69F00", "D"),
    "ANT": ("#D55E00", "o"),
}


def table(rows: list[Row]) -> str:
    """Return a Markdown table: published rows, then ours; accuracy, size and compression."""
    shown = [name for name in DATA if any(row["data"] == name for row in rows)]
    whole = PUBLISHED["CNN"][1]
    lines = [["accuracy, millions of numbers", *(DATA[name] for name in shown)]]
    lines.append(["---"] * len(lines[0]))
    for method, (accuracy, millions) in PUBLISHED.items():
        cell = f"{accuracy:.1f}, {millions:.2f} ({whole / millions:.0f}x)"
        lines.append([f"{method} (published, all of AG-News)", cell, *[""] * (len(shown) - 1)])
    for method in dict.fromkeys(row["method"] for row in rows):
        lines.append([method, *(_cell(_of(rows, name, method)) for name in shown)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def long_table(rows: list[Row]) -> str:
    """Return a Markdown table of AG-News after many epochs, next to the published rows."""
    lines = [["", "published: accuracy, millions", "ours", "epochs", "best epoch"], ["---"] * 5]
    mine = [row for row in rows if row["data"] == "ag_news_partial"]
    whole = ELEVEN["dense"][1]
    for method in dict.fromkeys([*ELEVEN, *(row["method"] for row in mine)]):
        some = _of(mine, "ag_news_partial", method)
        theirs = ""
        if method in ELEVEN:
            accuracy, millions = ELEVEN[method]
            theirs = f"{accuracy:.1f}, {millions:.2f} ({whole / millions:.0f}x)"
        epochs, best = (", ".join(str(row[name]) for row in some) for name in ("epochs", "epoch"))
        lines.append([method, theirs, _cell(some) or "not measured", epochs, best])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw(rows: list[Row]) -> Figure:
    """Plot accuracy against table size, one panel per corpus."""
    shown = [name for name in DATA if any(row["data"] == name for row in rows)]
    figure, panels = pyplot.subplots(
        1, len(shown), figsize=(3.2 * len(shown), 3.2), squeeze=False, layout="constrained"
    )
    for axes, name in zip(panels[0], shown, strict=True):
        for family, (color, marker) in STYLE.items():
            selected = [
                row for row in rows if row["data"] == name and row["method"].startswith(family)
            ]
            points = [(row["numbers"], row["test"]) for row in selected]
            if points:
                axes.scatter(*zip(*points, strict=True), c=color, marker=marker, label=family)
        axes.set(xscale="log", title=DATA[name], xlabel="numbers in the table")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test accuracy, per cent")
    panels[0][0].legend(frameon=False)
    return figure


def _of(rows: list[Row], data: str, method: str) -> list[Row]:
    return [row for row in rows if (row["data"], row["method"]) == (data, method)]


def _cell(rows: list[Row]) -> str:
    if not rows:
        return ""
    accuracy, numbers, times = (
        statistics.mean(row[name] for row in rows) for name in ("test", "numbers", "times fewer")
    )
    seeds = f", {len(rows)} seeds" if len(rows) > 1 else ""
    fewer = "" if times == 1 else f" ({times:.0f}x)"
    return f"{accuracy:.2f}, {numbers / 1e6:.3f}{fewer}{seeds}"


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.update(README, long_table(LONG.rows()), "long")
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
