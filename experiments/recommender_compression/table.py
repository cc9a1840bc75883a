"""Write the table, the targets and the figure of the README from results.json.

``python -m experiments.recommender_compression.table`` writes the two into this folder.
"""

import statistics
from pathlib import Path
from typing import Any

from experiments import readme
from experiments.fastvae.table import DATA
from experiments.recommender_compression.run import ANCHORS, DENSE, LOW_RANK, RECORD

HERE = Path(__file__).parent
README, PICTURE = HERE / "README.md", HERE / "size.png"
NDCG, RECALL = "NDCG@50", "Recall@50"
BARS = {10: None, 30: 1.0, 100: 2.5}  # per cent that may be lost; None: the deviation of dense
Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a Markdown table: one line per dataset and method, averaged over seeds."""
    heading = "Data", "Method", "Bytes", "Smaller", "Parameters", NDCG, RECALL, "Lost", "Seconds"
    lines = [heading, ["---"] * len(heading)]
    for data, title in DATA.items():
        for method in _methods(rows, data):
            some = _some(rows, data, method)
            lost = loss(rows, data, method)
            lines.append([
                title, method, f"{_mean(some, 'bytes'):,.0f}", f"{_mean(some, 'ratio'):.1f}",
                f"{_mean(some, 'parameters'):,.0f}", f"{_mean(some, NDCG):.4f}{_spread(some)}",
                f"{_mean(some, RECALL):.4f}", "" if lost is None else f"{lost:+.1f} %",
                f"{min(row['train seconds'] for row in some):.0f}",
            ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loss(rows: list[Row], data: str, method: str) -> float | None:
    """Return the loss of NDCG relative to the dense tables in per cent, over common seeds."""
    mine, dense = ({row["seed"]: row[NDCG] for row in _some(rows, data, name)}
                   for name in (method, DENSE))  # fmt: skip
    both = mine.keys() & dense.keys()
    if method == DENSE or not both:
        return None
    before: float = sum(dense[seed] for seed in both)
    after: float = sum(mine[seed] for seed in both)
    return 100 * (before - after) / before


def bars(rows: list[Row]) -> str:
    """Return a Markdown table: which targets are met."""
    lines = []
    for data, title in DATA.items():
        dense = [row[NDCG] for row in _some(rows, data, DENSE)]
        for ratio, most in BARS.items():
            small = [
                m for m in _methods(rows, data) if _mean(_some(rows, data, m), "ratio") >= ratio
            ]
            found = [(lost, m) for m in small if (lost := loss(rows, data, m)) is not None]
            if not found:
                continue
            lost, method = min(found)
            some = _some(rows, data, method)
            if most is None:
                many = len(dense) > 1
                most = 100 * statistics.stdev(dense) / statistics.mean(dense) if many else 0.0
            met = lost <= most and _mean(some, "ratio") >= ratio
            lines.append(
                f"- {title}, {ratio} times: {'met' if met else '**missed**'}; {lost:+.2f} % lost "
                f"where {most:.2f} % may be, at {_mean(some, 'ratio'):.1f} times smaller, "
                f"{len(some)} {'seed' if len(some) == 1 else 'seeds'} ({method})."
            )
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Plot NDCG@50 against the bytes of both tables, one panel per dataset."""
    from matplotlib.figure import Figure

    shown = [data for data in DATA if _methods(rows, data)]
    figure = Figure(figsize=(4.2 * len(shown), 3.6), dpi=120, layout="constrained")
    styles = {ANCHORS: ("#0072B2", "o-"), LOW_RANK: ("#E69F00", "s--"), DENSE: ("#444444", "^:")}
    for place, data in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), place + 1)
        for kind, (colour, style) in styles.items():
            of_kind = [m for m in _methods(rows, data) if m.partition(", ")[0] == kind]
            points = sorted(
                (_mean(some, "bytes"), _mean(some, NDCG))
                for some in (_some(rows, data, method) for method in of_kind)
            )
            if points:
                label = f"{DENSE}, int8, cut" if kind == DENSE else kind
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
        axes.set(xscale="log", xlabel="bytes of both tables", ylabel=NDCG, title=DATA[data])
        low, high = axes.get_ylim()
        whole = _mean(_some(rows, data, DENSE), NDCG)
        axes.set_ylim(min(low, 0.95 * whole), max(high, 1.02 * whole))  # noise looks small
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path)


def _methods(rows: list[Row], data: str) -> list[str]:
    """Return the methods by kind, the largest first."""
    mine = {row["method"]: row["bytes"] for row in rows if row["data"] == data}
    kinds = [DENSE, ANCHORS, LOW_RANK]
    return sorted(mine, key=lambda name: (kinds.index(name.partition(", ")[0]), -mine[name]))


def _some(rows: list[Row], data: str, method: str) -> list[Row]:
    return [row for row in rows if (row["data"], row["method"]) == (data, method)]


def _mean(rows: list[Row], name: str) -> float:
    return statistics.mean(float(row[name]) for row in rows)


def _spread(rows: list[Row]) -> str:
    values = [row[NDCG] for row in rows]
    return f" ± {statistics.stdev(values):.4f} ({len(values)} seeds)" if len(values) > 1 else ""


def main() -> None:
    """Rewrite the README and the figure."""
    rows = RECORD.rows()
    readme.update(README, f"{bars(rows)}\n\n{table(rows)}")
    draw(rows, PICTURE)


if __name__ == "__main__":
    main()
