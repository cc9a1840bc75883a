"""Write README and figure from results.json: ``python -m experiments.movielens_ratings.table``."""

import json
import statistics
from pathlib import Path
from typing import Any

from experiments import readme
from experiments.movielens_ratings import published_table
from experiments.movielens_ratings.models import WIDTH
from experiments.movielens_ratings.run import COSTS, METHODS, SPLITS

HERE = Path(__file__).parent
RESULTS, README, PICTURE = HERE / "results.json", HERE / "README.md", HERE / "ratings.png"
CONVERGENCE = HERE / "convergence.png"
# Mean squared error and thousands of parameters, Table 13 of the paper.
PUBLISHED = {
    "MF": (0.771, 155.2),
    "MixDim, 16 blocks, temperature 0.6": (1.073, 42.9),
    "ANT, 120 and 8 anchors": (0.772, 59.4),
    "ANT, 15 and 15 anchors": (0.786, 29.2),
    "ANT, 5 and 10 anchors": (0.836, 10.8),
    "NBANT, found 11 and 11": (0.795, 27.7),
    "NBANT, found 11 and 11, sparser": (0.837, 10.6),
}
Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a Markdown table: the published rows, then ours on both splits."""
    heading = ["", "MSE, as published", "parameters", "MSE, third split", "parameters"]
    lines = [[*heading, "processor seconds"], ["---"] * 6]
    for name, (error, size) in PUBLISHED.items():
        lines.append([f"{name} (published)", f"{error:.3f}", f"{size:.1f}K", "", "", ""])
    for name in METHODS:
        cells, its = [name], [row for row in rows if row["method"] == name]
        if not its:
            continue
        for split in SPLITS:
            cells += _cells([row for row in its if row["split"] == split])
        lines.append([*cells, f"{min(row['processor seconds'] for row in its):.0f}"])
    return _markdown(lines)


def grid(rows: list[Row]) -> str:
    """Return a Markdown table: the validation objective by number of anchors, and of NBANT."""
    heading = ["anchors of each table", "MSE, validation", "MSE, test", "non-zeros", "objective"]
    lines = [heading, ["---"] * len(heading)]
    some = [row for row in rows if row["split"] == "third" and _compared(row["method"])]
    for row in sorted(some, key=lambda row: (row["method"] == "NBANT", row["anchors"])):
        count, name = row["anchors"][0], row["method"]
        lines.append([
            f"{count}, found by NBANT, seed {row['seed']}" if name == "NBANT" else str(count),
            f"{row['validation mse']:.4f}", f"{row['mse']:.4f}", f"{nonzeros(row):,}",
            f"{objective(row):.4f}",
        ])  # fmt: skip
    return _markdown(lines)


def nonzeros(row: Row) -> int:
    """Return the non-zeros of both transforms at the selected epoch."""
    return int(row["parameters"]) - (sum(row["anchors"]) + 2) * WIDTH


def objective(row: Row) -> float:
    """Return the objective of NBANT for a trained model."""
    cost = COSTS.l1 * nonzeros(row) + (COSTS.per_anchor - COSTS.l1) * sum(row["anchors"])
    return float(row["validation mse"]) + cost


LABELS = {"NBANT under": "NBANT under the penalty"}


def picture(rows: list[Row], path: Path) -> None:
    """Plot mean squared error against parameters."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), dpi=150, layout="constrained")
    shown = {name: point for name, point in PUBLISHED.items() if point[0] < 0.9}
    errors, sizes = zip(*shown.values(), strict=True)
    axes.scatter(
        [size * 1e3 for size in sizes], errors, marker="x", color="black", label="published"
    )
    kinds = {"ANT, plain": ("^", "#56B4E9"), "ANT": ("o", "#D55E00"),
             "NBANT under": ("d", "#332288"), "NBANT": ("D", "#0072B2"),
             "MF, weight decay, coded": ("*", "#000000"), "MF": ("s", "#009E73"),
             "MixDim": ("v", "#E69F00"), "Sparse": ("P", "#CC79A7"),
             "slimming": ("X", "#777777")}  # fmt: skip
    done = set()
    for row in rows:
        kind = next((kind for kind in kinds if row["method"].startswith(kind)), None)
        if row["split"] != "published" or kind is None or "fixed at" in row["method"]:
            continue  # fixed numbers of anchors are no NBANT
        marker, color = kinds[kind]
        label = None if kind in done else f"{LABELS.get(kind, kind)}, ours"
        axes.scatter(row["parameters"], row["mse"], marker=marker, color=color, label=label)
        done.add(kind)
    axes.set(xscale="log", xlabel="parameters", ylabel="mean squared error, the published tenth")
    axes.set_xticks([1e4, 3e4, 1e5], ["10K", "30K", "100K"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def _compared(method: str) -> bool:
    return method == "NBANT" or method.startswith("grid")


def _cells(rows: list[Row]) -> list[str]:
    if not rows:
        return ["", ""]
    errors, sizes = ([row[name] for row in rows] for name in ("mse", "parameters"))
    spread = f" ({min(errors):.4f} to {max(errors):.4f})" if len(rows) > 1 else ""
    return [f"{statistics.mean(errors):.4f}{spread}", f"{max(sizes) / 1e3:.1f}K"]


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Rewrite the README and the figure."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    costs = f"{COSTS.l1:g} for a non-zero and {COSTS.per_anchor:g} for an anchor"
    both = f"{table(rows)}\n\nThe objective, with {costs}:\n\n{grid(rows)}"
    readme.update(README, both)
    picture(rows, PICTURE)
    readme.update(README, published_table.as_published(rows), "published")
    readme.update(README, published_table.growth(rows), "growth")
    readme.update(README, published_table.cut(rows), "cut")
    readme.update(README, published_table.purity(rows), "genres")
    published_table.convergence(rows, CONVERGENCE)


if __name__ == "__main__":
    main()
