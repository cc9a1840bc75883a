"""The model card: data, quality and limits of a model, in Markdown."""

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch

import fewfold

__all__ = ["model_card", "versions"]


def versions() -> dict[str, str]:
    """Return the versions of fewfold, Python and the libraries in use."""
    found = {"fewfold": fewfold.__version__, "python": platform.python_version()}
    found |= {"torch": str(torch.__version__), "numpy": np.__version__}
    for name in ("polars", "safetensors", "faiss-cpu"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def model_card(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return the model card in Markdown: data, model, quality and usage."""
    data, learned, model = config["data"], config["learned from"], dict(config["model"])
    kind = model.pop("kind")
    options = ", ".join(f"{name} {value}" for name, value in model.items())
    lines = [
        "# Recommender",
        "",
        f"A `{kind}` model ({options}), seed {config['seed']}."
        + (f" Tables: {learned['tables']}." if "tables" in learned else ""),
        "",
        "```python",
        "import fewfold as ff",
        'rec = ff.Recommender.load("this folder")',
        "rec.recommend_from_history([...], k=10)",
        "```",
        "",
        "## Data",
        "",
        "{users:,} users, {items:,} items, {pairs:,} interactions, of which the model ".format(
            **data["after"]
        )
        + f"learned from {learned['pairs']:,}"
        + (" (everything)." if learned["everything"] else "."),
        "",
        *_counts(data),
        "",
        *_choice(config.get("choice")),
        "## How good it is",
        "",
        *_quality(metrics, learned["everything"]),
        "",
        *_comparison(config.get("comparison")),
        "## Limits",
        "",
        "Scores order the items for one user; they are not probabilities and do not compare across "
        f"users. {_new_items(config)} The "
        "model reproduces the behaviour in the data, including its biases.",
        "",
        "## Made with",
        "",
        ", ".join(f"{name} {version}" for name, version in sorted(config["versions"].items())),
        "",
    ]
    return "\n".join(lines)


def _new_items(config: Mapping[str, Any]) -> str:
    """Return which items can be recommended although nobody had them."""
    if "attributes" in config:
        return "Items without interactions are ranked by their attributes, as well as these tell."
    return "Items that are not in the log cannot be recommended (see `add_items`)."


def _choice(choice: Mapping[str, Any] | None) -> list[str]:
    """Return why the model was chosen and what else was tried; nothing if it was named."""
    if choice is None:
        return []
    lines = ["## Why this model", "", choice["why"], ""]
    if choice["tried"]:
        lines[2] += f" Validated on {choice['users']:,} users of the training data."
        lines += ["| tried | settings | NDCG@10 | against the chosen one |", "|---|---|---|---|"]
        lines += [
            f"| {one['model']} | {one['settings']} | {one['ndcg']:.4f} | {one['gain']:+.4f} |"
            for one in choice["tried"]
        ]
        lines.append("")
    return lines


def _comparison(comparison: Mapping[str, Any] | None) -> list[str]:
    """Return a table of the models compared on the same log; nothing if there are none."""
    if comparison is None:
        return []
    metric = comparison["metric"]
    lines = ["## Beside other models", "", f"Held out: {comparison['split']}.", ""]
    lines += [
        f"| model | settings | {metric} | interval | seconds to fit |",
        "|---|---|---|---|---|",
    ]
    for one in comparison["models"]:
        score = one["scores"][metric]
        lines.append(
            f"| {one['model']} | {one['summary']} | {score['mean']:.4f} | "
            f"{score['low']:.4f} to {score['high']:.4f} | {one['seconds']:.1f} |"
        )
    return [*lines, "", comparison["verdict"], ""]


def _counts(data: Mapping[str, Any]) -> list[str]:
    """Return a table of the row counts of the log."""
    plan = data["plan"]
    rows = {
        "read from": ", ".join(plan["files"]),
        "columns": ", ".join(
            f"{role} = {column['name']}"
            for role, column in (plan["columns"] or {}).items()
            if column
        ),
        "rows": f"{data['rows']:,}",
        "rows where": " and ".join(data.get("where", ())).replace("|", "\\|"),
        "rows left out by where": f"{data['left_out']:,}" if data.get("where") else "",
        "rated below the threshold": f"{data['below_rating']:,}" if data["below_rating"] else "",
        "dislikes, never recommended": f"{data['disliked']:,}" if data.get("disliked") else "",
        "weights": data.get("weight_scale") or "",
        "bad rows skipped": ", ".join(f"{n:,} {why}" for why, n in data["bad_rows"].items()),
        "duplicates merged": f"{data['duplicates']:,}" if data["duplicates"] else "",
        "core": f"{data['core']}" if data["core"] > 1 else "",
    }
    table = (f"| {name} | {value} |" for name, value in rows.items() if value)
    return ["| | |", "|---|---|", *table]


def _quality(metrics: Mapping[str, Any], everything: bool) -> list[str]:
    if not metrics:
        return ["It has not been evaluated: nothing was held out."]
    lines = [f"Held out: {metrics['split']}. Ranked among all items except the user's history."]
    ranked = metrics.get("users ranked", "all")
    if ranked != "all":
        lines[0] += f" Ranked for {ranked}, drawn at random."
    if everything:
        lines[0] += " After this evaluation the model was refitted on the whole log."
    lines += ["", "| metric | mean | interval | formula |", "|---|---|---|---|"]
    for name, score in metrics["overall"]["scores"].items():
        interval = f"{score['low']:.4f} to {score['high']:.4f}"
        formula = metrics["formulas"][name].replace("|", "\\|")
        lines.append(f"| {name} | {score['mean']:.4f} | {interval} | {formula} |")
    return lines
