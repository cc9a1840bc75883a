"""The table of the automatic choice in the README, from auto.json.

``python -m experiments.best_by_default.auto_table`` writes it between the two markers.
"""

from pathlib import Path

from experiments import readme
from experiments.best_by_default.auto import LOGS, RECORD
from experiments.record import Row

__all__ = ["main", "table"]

METRICS = ("ndcg@10", "ndcg@50", "recall@50")
# The best rows before there was a choice: experiments/fastvae, ALS of implicit, EASE.
BEFORE = {
    "bundled": "EASE .5761 NDCG@10",
    "epinions": "implicit .0624 / .1090 NDCG@50 / Recall@50",
    "gowalla": "FastVAE with shortcut, settings of its experiment: .1889 / .2898",
    "ml10m": "FastVAE with shortcut: .3580 / .5360",
}


def table(rows: list[Row]) -> str:
    """Markdown: a line for each log, means over its seeds."""
    lines = [
        "| log | seeds | chosen | NDCG@10 | NDCG@50 | Recall@50 | processor minutes | before |",
        "|---|--:|---|--:|--:|--:|--:|---|",
    ]
    for name in LOGS:
        found = [row for row in rows if row["log"] == name]
        if not found:
            continue
        chosen = "; ".join(dict.fromkeys(f"{row['chosen']}: {row['settings']}" for row in found))
        cells = [f"{_mean(found, metric):.4f}".removeprefix("0") for metric in METRICS]
        minutes = f"{_mean(found, 'processor seconds') / 60:.1f}"
        cells = [name, str(len(found)), chosen, *cells, minutes, BEFORE[name]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: list[Row], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def main() -> None:
    """Write the table."""
    readme.update(Path(__file__).with_name("README.md"), table(RECORD.rows()), "auto")


if __name__ == "__main__":
    main()
