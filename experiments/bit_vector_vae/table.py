"""Write the table and the figures of the README from results.json.

``python -m experiments.bit_vector_vae.table``
"""

import statistics
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments import readme
from experiments.bit_vector_vae.model import LARGE, METHODS, SMALL
from experiments.bit_vector_vae.run import RECORD, per_pixel
from experiments.record import Row

HERE = Path(__file__).parent
README, CURVES, PLANE = HERE / "README.md", HERE / "curves.png", HERE / "plane.png"
# Bits per dimension after 100 epochs, as published for 32 and for 128 bits.
PUBLISHED = {
    "top-k sparsemax": (3.62, 3.61),
    "SparseMAP": (3.72, 3.67),
    "SparseMAP, budget": (3.64, 3.66),
    "SFE": (3.74, 3.77),
    "SFE+": (3.61, 3.59),
    "NVIL": (3.65, 3.60),
    "Gumbel": (3.57, 3.49),
}
# Colours of Okabe and Ito, which everybody can tell apart; one for each kind of method.
STYLE = {
    "top-k sparsemax": ("#D55E00", "-"),
    "SparseMAP": ("#E69F00", "-"),
    "SparseMAP, budget": ("#CC79A7", "-"),
    "SFE": ("#56B4E9", "-"),
    "SFE+": ("#0072B2", "-"),
    "NVIL": ("#0072B2", ":"),
    "Gumbel": ("#009E73", "-"),
    "ST Gumbel": ("#009E73", ":"),
    "straight-through": ("#B2182B", ":"),
    "unordered set": ("#8C510A", "-"),
    "MuProp": ("#5E3C99", "-"),
    "RELAX": ("#5E3C99", ":"),
}
HEAD = [
    *("", "bits", "published", "epochs", "bits/dim", "distortion + rate", "calls, first epoch"),
    *("last epoch", "test", "minutes an epoch"),
]


def lengths(rows: list[Row], method: str, bits: int) -> list[list[Row]]:
    """Return the runs by number of epochs, ascending; each has one row per seed."""
    own = [row for row in rows if (row["method"], row["bits"]) == (method, bits)]
    epochs = sorted({row["epochs"] for row in own})
    return [[row for row in own if row["epochs"] == some] for some in epochs]


def longest(rows: list[Row], method: str, bits: int) -> list[Row]:
    """Return the runs with the most epochs."""
    return next(reversed(lengths(rows, method, bits)), [])


def table(rows: list[Row]) -> str:
    """Return a Markdown table: one line per method and number of bits, with published figures."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for place, bits in enumerate((SMALL, LARGE)):
        for method in METHODS:
            published = f"{PUBLISHED[method][place]:.2f}" if method in PUBLISHED else ""
            labels = [_cells(own) for own in lengths(rows, method, bits)]
            for cells in labels or [["not run", *[""] * (len(HEAD) - 4)]]:
                lines.append([method, str(bits), published, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(rows: list[Row]) -> list[str]:
    mean = {
        name: statistics.mean(row[name] for row in rows)
        for name in ("bits/dim", "error", "distortion", "rate")
    }
    first, last = rows[0]["curve"][0], rows[0]["curve"][-1]
    seeds = f", {len(rows)} seeds" if len(rows) > 1 else ""
    minutes = statistics.mean(row["processor seconds"] / row["epochs"] / 60 for row in rows)
    return [
        f"{rows[0]['epochs']}{seeds}",
        f"{mean['bits/dim']:.3f} ± {mean['error']:.3f}",
        f"{mean['distortion']:.0f} + {mean['rate']:.1f}",
        _calls(first["calls"]),
        _calls(last["calls"]),
        f"{rows[0]['test calls']['mean']:.2f} ± {rows[0]['test calls']['deviation']:.2f}",
        f"{minutes:.1f}",
    ]


def _calls(calls: Row) -> str:
    low, median, high = calls["quartiles"]
    return f"{median:.0f}" if low == high else f"{median:.0f} ({low:.0f} to {high:.0f})"


def curves(rows: list[Row]) -> Figure:
    """Plot validation against epochs and decoder calls, and calls against epochs."""
    sizes = [bits for bits in (SMALL, LARGE) if any(row["bits"] == bits for row in rows)]
    figure, panels = pyplot.subplots(
        len(sizes), 3, figsize=(12, 3.4 * len(sizes)), squeeze=False, layout="constrained"
    )
    for bits, (over_epochs, over_calls, calls) in zip(sizes, panels, strict=True):
        for method, (color, line) in STYLE.items():
            for row in longest(rows, method, bits)[:1]:
                found = [per_pixel(_bound(at["valid"])) for at in row["curve"]]
                medians = [at["calls"]["quartiles"][1] for at in row["curve"]]
                total = [sum(medians[: i + 1]) for i in range(len(medians))]
                epochs = range(1, len(found) + 1)
                style = {"color": color, "linestyle": line, "marker": ".", "label": method}
                over_epochs.plot(epochs, found, **style)
                over_calls.plot(total, found, **style)
                calls.plot(epochs, medians, **style)
                low, _, high = zip(*(at["calls"]["quartiles"] for at in row["curve"]), strict=True)
                calls.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
        over_epochs.set(ylabel=f"{bits} bits\n-ELBO on validation images, bits/dim")
        calls.set(yscale="log", ylabel="median calls for an image, quartiles")
        for axes, labels in (
            (over_epochs, "epochs"),
            (over_calls, "median decoder calls, summed over epochs"),
            (calls, "epochs"),
        ):
            axes.set(xlabel=labels)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    labels = {line.get_label(): line for row in panels for line in row[0].get_lines()}
    figure.legend(
        labels.values(),
        labels,
        frameon=False,
        fontsize=8,
        ncols=len(STYLE),
        loc="outside upper center",
    )
    return figure


def plane(rows: list[Row]) -> Figure:
    """Plot distortion against rate of the test images."""
    sizes = [bits for bits in (SMALL, LARGE) if any(row["bits"] == bits for row in rows)]
    figure, panels = pyplot.subplots(
        1, len(sizes), figsize=(4.5 * len(sizes), 3.6), squeeze=False, layout="constrained"
    )
    for bits, axes in zip(sizes, panels[0], strict=True):
        for method, (color, line) in STYLE.items():
            for row in longest(rows, method, bits):
                full = color if line == "-" else "none"
                axes.scatter(row["rate"], row["distortion"], c=full, edgecolors=color, label=method)
                axes.annotate(
                    method, (row["rate"], row["distortion"]), xytext=(4, 4),
                    textcoords="offset points", fontsize=7,
                )  # fmt: skip
        axes.set(title=f"{bits} bits", xlabel="rate, nats", ylabel="distortion, nats")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bound(measured: Row) -> float:
    total: float = measured["distortion"] + measured["rate"]
    return total


def main() -> None:
    """Rewrite the README and the figures."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    for path, figure in ((CURVES, curves(rows)), (PLANE, plane(rows))):
        readme.keep(figure, path)


if __name__ == "__main__":
    main()
