"""Tables of the runs with the authors' training, of NBANT under the penalty, and of genres."""

from pathlib import Path
from typing import Any

from experiments import readme
from experiments.movielens_ratings import cut_trained, genres, growth_sweep, published_run

Row = dict[str, Any]
PUBLISHED = {
    "MF": (0.771, 155.2),
    "MixDim, 16 blocks, temperature 0.6": (1.073, 42.9),
    "MixDim, width 16, 8 blocks, temperature 0.4": (1.113, 66.6),
    "MixDim, width 16, 16 blocks, temperature 0.4": (1.084, 66.2),
    "MixDim, width 16, 8 blocks, temperature 0.6": (1.098, 47.0),
    "MixDim, width 32, 8 blocks, temperature 0.6": (1.163, 94.0),
    "MixDim, width 32, 16 blocks, temperature 0.6": (1.130, 84.6),
    "ANT, 120 and 8 anchors, l1 0.0001": (0.772, 59.4),
    "ANT, 15 and 15 anchors, l1 0.0001": (0.786, 29.2),
    "ANT, 5 and 10 anchors, l1 0.0001": (0.836, 10.8),
}
CURVES = {
    "MF": "#009E73",
    "MixDim, 16 blocks, temperature 0.6": "#E69F00",
    "Sparse CBOW, l1 0.0001": "#CC79A7",
    "Sparse CBOW, l1 1e-05": "#882255",
    "ANT, 15 and 15 anchors, l1 0.0001": "#D55E00",
    "ANT, 15 and 15 anchors, l1 1e-05": "#0072B2",
}


def as_published(rows: list[Row]) -> str:
    """Return a table of the methods with the authors' training on both splits."""
    lines = [
        ["", "published MSE", "parameters", "MSE, as published", "parameters", "epoch",
         "MSE, third split", "parameters", "epoch"],
        ["---"] * 9,
    ]  # fmt: skip
    for name in published_run.METHODS:
        error, size = PUBLISHED.get(name, (0.0, 0.0))
        cells = [name, f"{error:.3f}" if error else "", f"{size:.1f}K" if size else ""]
        found = _of(rows, published_run.PREFIX + name)
        for split in ("published", "third"):
            row = next((row for row in found if row["split"] == split), None)
            cells += _cells(row)
        if found:
            lines.append(cells)
    return _markdown(lines)


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [f"{row['mse']:.4f}", f"{row['parameters'] / 1e3:.1f}K", str(row.get("epoch", ""))]


def growth(rows: list[Row]) -> str:
    """Return a table of the regimes of NBANT and of fixed numbers of anchors (third split)."""
    rows = [row for row in rows if row["split"] == "third"]
    lines = [
        ["", "penalty", "cost of a non-zero, of an anchor", "anchors", "with entries",
         "MSE, validation", "MSE, test", "non-zeros", "objective", "above the best fixed"],
        ["---"] * 10,
    ]  # fmt: skip
    every = growth_sweep.REGIMES | growth_sweep.FIXED
    for name, regime in every.items():
        for row in _of(rows, growth_sweep.PREFIX + name):
            least = best_fixed(rows, regime)
            above = f"{row['objective'] / least - 1:+.1%}" if least else ""
            users, items = row["anchors in use"]
            lines.append([
                name, f"{regime.l1:g}", f"{regime.nonzero:g}, {regime.per_anchor:g}",
                str(row["anchors"][0]), f"{users} and {items}", f"{row['validation mse']:.4f}",
                f"{row['mse']:.4f}", f"{row['nonzeros']:,}", f"{row['objective']:.4f}", above,
            ])  # fmt: skip
    return _markdown(lines)


def best_fixed(rows: list[Row], regime: growth_sweep.Regime) -> float | None:
    """Return the lowest objective of a fixed number of anchors with the same penalty and costs."""
    same = [
        row["objective"]
        for name, other in growth_sweep.FIXED.items()
        for row in _of(rows, growth_sweep.PREFIX + name)
        if (other.l1, other.nonzero, other.per_anchor)
        == (regime.l1, regime.nonzero, regime.per_anchor)
    ]
    return min(same, default=None)


def cut(rows: list[Row]) -> str:
    """Return a table of trained dense tables that were cut afterwards."""
    lines = [["", "MSE, as published", "parameters", "MSE, third split", "parameters"], ["---"] * 5]
    for one in cut_trained.CUTS:
        for suffix in ("", cut_trained.TRAINED):
            name = f"{cut_trained.PREFIX} to {one.budget:,}{suffix}"
            cells, found = [name], _of(rows, name)
            for split in ("published", "third"):
                row = next((row for row in found if row["split"] == split), None)
                cells += (
                    [f"{row['mse']:.4f}", f"{row['parameters'] / 1e3:.1f}K"] if row else ["", ""]
                )
            if found:
                lines.append(cells)
    return _markdown(lines)


def purity(rows: list[Row]) -> str:
    """Return a table of the purity of genres, and one of the anchors of each model."""
    lines = [
        ["films of", "anchors in use", "purity, ten films", "by chance", "purity, all films",
         "by chance"],
        ["---"] * 6,
    ]  # fmt: skip
    groups = [["model", "genre of most", "share", "films with it"], ["---"] * 4]
    for name in genres.MODELS:
        for row in _of(rows, genres.PREFIX + name):
            shares = [row[key] for key in ("purity", "by chance", "purity of all films",
                                           "all films by chance")]  # fmt: skip
            cells = [f"{share:.1%}" for share in shares]
            lines.append([name, str(row["anchors in use"]), *cells])
            groups += [
                [name, genre, f"{share:.0%}", f"{objects:,}"]
                for genre, share, objects in row["groups"][:5]
            ]
    return f"{_markdown(lines)}\n\n{_markdown(groups)}"


def convergence(rows: list[Row], path: Path) -> None:
    """Plot the validation error by epoch of the runs with the authors' training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for name, color in CURVES.items():
        found = [row for row in _of(rows, published_run.PREFIX + name) if row["split"] == "third"]
        for row in found[:1]:
            epochs = range(1, len(row["curve"]) + 1)
            label = f"{name} ({row['parameters'] / 1e3:.0f}K)"
            axes.plot(epochs, row["curve"], color=color, label=label)
    axes.set(xlabel="epoch", ylabel="mean squared error, validation tenth")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    readme.keep(figure, path)


def _of(rows: list[Row], method: str) -> list[Row]:
    return [row for row in rows if row["method"] == method]


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
