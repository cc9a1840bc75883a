"""Metadata of a model for the Hugging Face Hub: the YAML block before the model card."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["hub_card"]

_TAGS = ("fewfold", "recommender-system", "collaborative-filtering")


def hub_card(card: str, address: str, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return a model card with metadata, and with the address from which to load the model.

    A card that begins with metadata of its own keeps them.

    Args:
        card: content of `README.md`.
        address: such as ``hf://owner/name``.
        config, metrics: content of `config.json` and `metrics.json`.
    """
    card = card.replace('Recommender.load("this folder")', f'Recommender.load("{address}")')
    if card.startswith("---\n"):
        return card
    found = {
        "library_name": "fewfold",
        "tags": [*_TAGS, config["model"]["kind"]],
        **({"model-index": [_results(address, metrics)]} if metrics else {}),
    }
    # JSON is YAML too, and leaves no doubt about quotes.
    lines = (f"{name}: {json.dumps(value)}" for name, value in found.items())
    return "\n".join(["---", *lines, "---", "", card])


def _results(address: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation as an entry of `model-index`."""
    scores = [
        {"type": name.lower(), "name": name, "value": score["mean"]}
        for name, score in metrics["overall"]["scores"].items()
    ]
    task = {"type": "recommendation", "name": "Recommendation"}
    data = {"type": "log", "name": f"held out: {metrics['split']}"}
    name = address.rpartition("/")[2]
    return {"name": name, "results": [{"task": task, "dataset": data, "metrics": scores}]}
