"""Write the table and the figure of the README from results.json.

``python -m experiments.mixed_vae.table``
"""

import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.mixed_vae.latents import LATENTS
from experiments.mixed_vae.run import RECORD
from experiments.record import Row

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "curves.png"
FIGURES = ("distortion", "rate", "nll")
# Distortion, rate and negative log-likelihood of the test after 500 epochs, means of five seeds.
PUBLISHED = {
    "Gaussian": (76.67, 19.94, 91.12),
    "Dirichlet": (78.62, 19.94, 93.81),
    "categorical": (164.72, 2.28, 166.95),
    "straight-through": (171.76, 1.70, 168.50),
    "mixed Dirichlet": (90.34, 19.39, 106.59),
}
# Colours of Okabe and Ito, which everybody can tell apart.
COLORS = dict(
    zip(LATENTS, ["#000000", "#009E73", "#0072B2", "#56B4E9", "#E69F00", "#D55E00"], strict=True)
)
HEAD = [
    *("", "published: distortion", "rate", "NLL", "ours: distortion", "rate", "NLL"),
    *("seeds", "epochs", "processor s an epoch"),
]


def longest(rows: list[Row], method: str) -> list[Row]:
    """Return the runs with the most epochs, one per seed."""
    own = [row for row in rows if row["method"] == method]
    most = max((row["epochs"] for row in own), default=0)
    return [row for row in own if row["epochs"] == most]


def table(rows: list[Row]) -> str:
    """Return a Markdown table: nats per image, published and ours."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for method in LATENTS:
        theirs = [f"{value:.2f}" for value in PUBLISHED.get(method, ())] or [""] * 3
        lines.append([method, *theirs, *_cells(longest(rows, method))])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(rows: list[Row]) -> list[str]:
    if not rows:
        return ["not run", *[""] * 5]
    figures = [f"{statistics.mean(row[what] for row in rows):.2f}" for what in FIGURES]
    seconds = statistics.mean(statistics.mean(row["curve"]["seconds"]) for row in rows)
    return [*figures, str(len(rows)), str(rows[0]["epochs"]), f"{seconds:.0f}"]


def draw(rows: list[Row]) -> Figure:
    """Plot the validation bound against epochs, and distortion against rate on the test set."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    for method, color in COLORS.items():
        if method in PUBLISHED:
            distortion, rate, _ = PUBLISHED[method]
            right.scatter(rate, distortion, facecolors="none", edgecolors=color)
        for number, row in enumerate(longest(rows, method)):
            pairs = zip(row["curve"]["distortion"], row["curve"]["rate"], strict=True)
            bound = [sum(pair) for pair in pairs]
            label = method if number == 0 else None
            left.plot(range(1, len(bound) + 1), bound, c=color, lw=1.2, label=label)
            right.scatter(row["rate"], row["distortion"], c=color)
    left.set(xlabel="epoch", ylabel="distortion + rate on validation, nats")
    right.set(xlabel="rate, nats", ylabel="distortion, nats", title="full: ours, hollow: published")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if left.lines:
        left.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Rewrite the README and the figure."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(draw(rows), PICTURE)


if __name__ == "__main__":
    main()
