"""Tables of the README: trainings until validation stops falling, and both softmaxes."""

import statistics
from collections.abc import Sequence

from experiments.record import Row

# Test perplexity and millions of values after 500 epochs, of the paper's tables on Penn Treebank
# with a LSTM of 256.
PUBLISHED = {
    "dense": (70.3, 2.56),
    "ANT 2000 random": (71.5, 0.78),
    "ANT 1000 random": (73.1, 0.49),
    "ANT 500 random": (77.2, 0.31),
    "ANT 100 random": (96.5, 0.05),
}
HEADING = ["table", "softmax", "published", "values", "times fewer", "valid", "test",
           "test / dense", "best epoch", "epochs", "seeds"]  # fmt: skip


def converged(rows: Sequence[Row]) -> list[list[str]]:
    """Return lines, a row per method and softmax, means over seeds.

    Ratios are to the dense table of the same softmax and seeds, and empty without it.
    """
    lines = [HEADING, ["---", "---", *["--:"] * (len(HEADING) - 2)]]
    groups: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["budget"]["samples"]), []).append(row)
    for (method, samples), some in groups.items():
        dense = {row["seed"]: row for row in groups.get(("dense", samples), [])}
        same = [dense[row["seed"]] for row in some if row["seed"] in dense]
        values, valid, test = (
            statistics.mean(row[name] for row in some) for name in ("parameters", "valid", "test")
        )
        fewer = worse = ""
        if len(same) == len(some):
            fewer = f"{statistics.mean(row['parameters'] for row in same) / values:.1f}"
            worse = f"{test / statistics.mean(row['test'] for row in same):.3f}"
        best, most = PUBLISHED.get(method, (None, None))
        lines.append([
            method, "full" if samples is None else "sampled",
            "" if best is None else f"{best}, {most} M", f"{values:,.0f}", fewer, f"{valid:.1f}",
            f"{test:.1f}", worse, _range([row["epoch"] for row in some]),
            _range([row["epochs"] for row in some]), str(len(some)),
        ])  # fmt: skip
    return lines


def softmaxes(rows: Sequence[Row]) -> list[list[str]]:
    """Return lines, a row per pair of trainings that differ in the softmax only."""
    lines = [["table", "epochs", "seed", "valid, sampled", "valid, full", "sampled / full",
              "values, sampled", "values, full"]]  # fmt: skip
    lines.append(["---", *["--:"] * (len(lines[0]) - 1)])
    for row in rows:
        same = [
            other for other in rows
            if other["budget"]["samples"] is None and row["budget"]["samples"] is not None
            and all(other[name] == row[name] for name in ("settings", "seed", "epochs"))
        ]  # fmt: skip
        for other in same:
            lines.append([
                row["method"], str(row["epochs"]), str(row["seed"]), f"{row['valid']:.1f}",
                f"{other['valid']:.1f}", f"{row['valid'] / other['valid']:.3f}",
                f"{row['parameters']:,}", f"{other['parameters']:,}",
            ])  # fmt: skip
    return lines


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
