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
_SECONDS = "training processor seconds"
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
            cells = " | ".join(shown(_mean(group, metric.lower())) for metric in metrics)
            lines.append(f"| {name} | {label}{_trained(group)} | {cells} |")
    return "\n".join(lines)


def _mean(rows: list[Row], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _settings(row: Row) -> str:
    if row["tuning"] == "default":
        return "defaults"
    told = ", ".join(f"{name} {value:g}" for name, value in row["settings"].items())
    return f"chosen: {told}"


def _trained(rows: list[Row]) -> str:
    """Processor minutes of a training, and the number of seeds."""
    if _SECONDS not in rows[0]:
        return ""
    seeds = f", {len(rows)} seeds" if len(rows) > 1 else ""
    return f" ({_mean(rows, _SECONDS) / 60:.1f} processor minutes{seeds})"


if __name__ == "__main__":
    readme.update(README, table(RECORD.rows()))
