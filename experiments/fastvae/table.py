"""Write the table of the README from results.json: ``python -m experiments.fastvae.table``."""

import json
import statistics
from pathlib import Path
from typing import Any

from experiments import readme

HERE = Path(__file__).parent
RESULTS, README = HERE / "results.json", HERE / "README.md"
DATA = {"ml10m": "ML10M", "gowalla": "Gowalla", "epinions": "Epinions"}
# NDCG@50 and Recall@50 of Table 3 of the paper, means of five runs.
PUBLISHED = {
    "WRMF": {"ml10m": (0.3194, 0.4967), "gowalla": (0.1316, 0.2223)},
    "BPR": {"ml10m": (0.2915, 0.4642), "gowalla": (0.1216, 0.1978)},
    "WARP": {"ml10m": (0.2968, 0.4785), "gowalla": (0.1273, 0.2073)},
    "AOBPR": {"ml10m": (0.2934, 0.4753), "gowalla": (0.1385, 0.2369)},
    "DNS": {"ml10m": (0.3153, 0.4988), "gowalla": (0.1622, 0.2761)},
    "PRIS": {"ml10m": (0.3162, 0.4937), "gowalla": (0.1657, 0.2736)},
    "Self-adversarial": {"ml10m": (0.3237, 0.5066), "gowalla": (0.1704, 0.2866)},
    "Mult-VAE": {"ml10m": (0.3206, 0.5037), "gowalla": (0.1751, 0.2911)},
    "FastVAE, multi-index, popularity": {"ml10m": (0.3275, 0.5078), "gowalla": (0.1797, 0.2971)},
}
# Names of the published rows that the models of `published` are trained for.
THEIRS = {
    f"published network, {name}{beta}": theirs
    for name, theirs in (
        ("full softmax", "Mult-VAE"),
        ("multi-index, popularity", "FastVAE, multi-index, popularity"),
    )
    for beta in ("", ", KL weight 0")
}
Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a Markdown table: published rows, then ours; both metrics per cell, and seconds."""
    shown = [name for name in DATA if any(row["data"] == name for row in rows)]
    published = {name for model in PUBLISHED.values() for name in model}
    columns = [name for name in DATA if name in published or name in shown]
    heading = ["NDCG@50 / Recall@50", *(DATA[name] for name in columns)]
    heading += [f"{DATA[name]}, seconds" for name in shown]
    lines = [heading, ["---"] * len(heading)]
    for model, values in PUBLISHED.items():
        cells = [_both(*values[name]) if name in values else "" for name in columns]
        lines.append([f"{model} (published)", *cells, *[""] * len(shown)])
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = {name: _of(rows, name, model) for name in columns}
        cells = [_cell(mine[name]) for name in columns]
        lines.append([model, *cells, *(_seconds(mine[name]) for name in shown)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _of(rows: list[Row], data: str, model: str) -> list[Row]:
    return [row for row in rows if (row["data"], row["model"]) == (data, model)]


def _cell(rows: list[Row]) -> str:
    if not rows:
        return ""
    means = (statistics.mean(row[name] for row in rows) for name in ("NDCG@50", "Recall@50"))
    seeds = f" ({len(rows)} seeds)" if len(rows) > 1 else ""
    return f"{_both(*means)}{seeds}"


def _both(ndcg: float, recall: float) -> str:
    return f"{ndcg:.4f} / {recall:.4f}"


def _seconds(rows: list[Row]) -> str:
    # Other work on the machine only ever adds to a time, so the least is the fairest; that of the
    # processor leaves out most of it.
    clocks = ("processor seconds", "train seconds")
    seconds = [next(row[clock] for clock in clocks if clock in row) for row in rows]
    return f"{min(seconds):.0f}" if rows else ""


def published_table(rows: list[Row]) -> str:
    """Return a Markdown table: each published row, and ours of that network or method.

    Ours are the models after the last epoch; the column of epochs is ours, theirs are up to 200.
    """
    rows = [row for row in rows if row.get("protocol")]
    data = ("ml10m", "gowalla")
    heading = ["NDCG@50 / Recall@50", "epochs"]
    heading += [f"{DATA[name]}{part}" for name in data for part in (", published", "")]
    lines, left = [heading, ["---"] * len(heading)], dict(PUBLISHED)
    for model, epochs in dict.fromkeys((row["model"], row["epochs"]) for row in rows):
        mine = [row for row in rows if row["epochs"] == epochs]
        theirs = THEIRS.get(model, model)
        values = PUBLISHED.get(theirs, {})
        left.pop(theirs, None)
        cells = [
            cell
            for name in data
            for cell in (_both(*values[name]) if values else "", _cell(_of(mine, name, model)))
        ]
        lines.append([model, str(epochs), *cells])
    for model, values in left.items():
        lines.append([model, "", *(cell for name in data for cell in (_both(*values[name]), ""))])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Rewrite the README."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    readme.update(README, table([row for row in rows if not row.get("protocol")]))
    readme.update(README, published_table(rows), "published")


if __name__ == "__main__":
    main()
