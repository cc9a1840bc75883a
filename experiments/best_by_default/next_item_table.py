"""The table of the README from results.json, with the published figures.

``python -m experiments.best_by_default.next_item_table`` writes it between the two markers.
"""

from pathlib import Path
from typing import Any

from experiments import readme
from experiments.best_by_default.sequences import SEQUENCES
from experiments.best_by_default.session_knn import RECORD
from experiments.best_by_default.sessions import SESSIONS

MODELS = ("session-knn", "transformer", "blend")  # in the order of the tables
README = Path(__file__).parent / "README.md"
Row = dict[str, Any]
# Recall@20 and MRR@20 in per cent for sessions; NDCG@10 and Recall@10 for sequences.
PUBLISHED = {
    "diginetica": {"SR-GNN": (50.73, 17.59), "GCE-GNN": (54.22, 19.04)},
    "yoochoose1_64": {"SR-GNN": (70.57, 30.94)},
    "nowplaying": {"GCE-GNN": (22.37, 8.40)},
    "s3rec/beauty": {"SASRec": (0.0318, 0.0605), "S3-Rec": (0.0327, 0.0647)},
    "s3rec/sports": {"SASRec": (0.0192, 0.0350), "S3-Rec": (0.0204, 0.0385)},
    "s3rec/toys": {"SASRec": (0.0374, 0.0675), "S3-Rec": (0.0376, 0.0700)},
}


def table(rows: list[Row]) -> str:
    """Markdown: a table of the sessions and one of the sequences."""
    sessions = _part(rows, SESSIONS, ("Recall@20", "MRR@20"), lambda x: f"{100 * x:.2f}")
    sequences = _part(rows, SEQUENCES, ("NDCG@10", "Recall@10"), lambda x: f"{x:.4f}")
    return f"{sessions}\n\n{sequences}"


def _part(rows: list[Row], names: tuple[str, ...], metrics: tuple[str, str], shown: Any) -> str:
    lines = [f"| data | model | {' | '.join(metrics)} |", "|---|---|--:|--:|"]
    for name in names:
        for model, figures in PUBLISHED.get(name, {}).items():
            scale = 100 if name in SESSIONS else 1
            cells = " | ".join(shown(figure / scale) for figure in figures)
            lines.append(f"| {name} | {model}, published | {cells} |")
        groups: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: MODELS.index(row["model"])):
            if row["task"] == name:
                groups.setdefault(f"{row['model']}, {_settings(row)}", []).append(row)
        for label, group in groups.items():
            means = (sum(row[metric.lower()] for row in group) / len(group) for metric in metrics)
            seeds = f", mean of {len(group)} seeds" if len(group) > 1 else ""
            lines.append(f"| {name} | {label}{seeds} | {' | '.join(map(shown, means))} |")
    return "\n".join(lines)


def _settings(row: Row) -> str:
    """Settings of a row, and the processor minutes of its training."""
    took = row.get("training processor seconds")
    minutes = "" if took is None else f", {took / 60:.1f} processor minutes"
    if row["tuning"] == "default":
        return f"defaults{minutes}"
    told = ", ".join(f"{name} {value:g}" for name, value in row["settings"].items())
    return f"chosen: {told}{minutes}"


if __name__ == "__main__":
    readme.update(README, table(RECORD.rows()))
