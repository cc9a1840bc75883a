"""Inspection of a model folder: data, quality, sizes and speed."""

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfold.embeddings.anchor_inspection import AnchorInspection
from fewfold.recommender.artifact.folder import Folder, open_artifact, read_consistently
from fewfold.recommender.artifact.hub import local_folder
from fewfold.recommender.recommender import Recommender
from fewfold.recommender.selection.half_life import Recency
from fewfold.recommender.user_profiles import ProfileColumn, ProfileSettings

__all__ = ["Inspection", "describe_anchors", "inspect"]


@dataclass(frozen=True, eq=False)
class Inspection:
    """Result of `inspect`.

    Attributes:
        folder: path of the model.
        config: model, training, seed, data and versions, as in `config.json`.
        metrics: as in `metrics.json`.
        sizes: bytes of each file.
        load: seconds to read it.
        answer: seconds to rank for one user, the median of several.
        anchors: description of the anchors of the tables, if there are any.
    """

    folder: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    sizes: Mapping[str, int]
    load: float
    answer: float
    anchors: AnchorInspection | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "folder": self.folder, "config": dict(self.config), "metrics": dict(self.metrics),
            "bytes": dict(self.sizes), "seconds to load": self.load,
            "seconds to answer": self.answer,
            "anchors": None if self.anchors is None else self.anchors.as_dict(),
        }  # fmt: skip

    def _profiles(self) -> str:
        """Return how attributes of users are used."""
        found = dict(self.config["profiles"])
        found["columns"] = tuple(ProfileColumn(**column) for column in found["columns"])
        return str(ProfileSettings(**found))

    def _results(self) -> list[str]:
        """Return a line for the training curve and one for the comparison, if there are any."""
        lines, curve = [], self.config.get("curve") or []
        if curve:
            first, last = curve[0]["loss"], curve[-1]["loss"]
            lines.append(f"training curve of {len(curve)} epochs: loss {first:.3f} to {last:.3f}")
        comparison = self.config.get("comparison")
        if comparison:
            names = ", ".join(one["model"] for one in comparison["models"])
            lines.append(f"compared models, best first: {names}. {comparison['verdict']}")
        return lines

    def __str__(self) -> str:
        model, learned = dict(self.config["model"]), self.config["learned from"]
        data = self.config["data"]
        kind = model.pop("kind")
        options = ", ".join(f"{name} {value}" for name, value in model.items() if value is not None)
        lines = [
            f"{self.folder}: {kind} ({options}), seed {self.config['seed']}",
            f"learned from {learned['pairs']:,} interactions of {learned['users']:,} users with "
            f"{learned['items']:,} items",
        ]
        if self.config.get("choice"):
            lines.append(self.config["choice"]["why"])
        if data.get("where"):
            lines.append(
                f"{data['left_out']:,} of {data['rows']:,} rows left out by where "
                f"{' and '.join(data['where'])}"
            )
        if data.get("disliked"):
            lines.append(f"{data['disliked']:,} dislikes are never recommended to their users")
        if data.get("weight_scale"):
            column = ((data["plan"]["columns"] or {}).get("weight") or {}).get("name", "values")
            lines.append(f"weights: {column}, {data['weight_scale']}")
        if self.config.get("recency"):
            lines.append(str(Recency(**self.config["recency"])))
        if self.config.get("profiles"):
            lines.append(self._profiles())
        if "tables" in learned:
            lines.append(f"tables: {learned['tables']}")
        if self.metrics:
            scores = self.metrics["overall"]["scores"]
            shown = ", ".join(f"{name} {score['mean']:.4f}" for name, score in scores.items())
            ranked = self.metrics.get("users ranked", "all")
            sample = "" if ranked == "all" else f" ({ranked})"
            lines.append(f"{shown} on {self.metrics['split']}{sample}")
        else:
            lines.append("not evaluated: nothing was held out")
        lines += self._results()
        wide = max(map(len, self.sizes))
        lines += [f"  {name:{wide}} {size / 1e3:11,.1f} kB" for name, size in self.sizes.items()]
        lines.append(f"loads in {self.load:.2f} s, answers one user in {self.answer * 1e3:.1f} ms")
        if self.anchors is not None:
            lines += ["", str(self.anchors)]
        return "\n".join(lines)


def inspect(folder: str | os.PathLike[str]) -> Inspection:
    """Load a model, which verifies its checksums, and describe it."""

    def read(root: Path) -> tuple[Folder, Recommender, float]:
        began = time.perf_counter()
        opened = open_artifact(root)
        return opened, Recommender.opened(opened), time.perf_counter() - began

    opened, rec, load = read_consistently(local_folder(folder), read)
    history, times = rec.items.take(range(min(20, len(rec.items)))), []
    for _ in range(9):
        began = time.perf_counter()
        rec.recommend_from_history(history, 10)
        times.append(time.perf_counter() - began)
    return Inspection(
        str(folder), opened.config, opened.metrics, opened.sizes, load, statistics.median(times),
        describe_anchors(rec),
    )  # fmt: skip


def describe_anchors(rec: Recommender) -> AnchorInspection | None:
    """Describe anchors by the attribute with the fewest values, at most a tenth of the items."""
    if rec.fitted.recipe.without_anchors() is None:
        return None
    labels, fewest = None, max(2, len(rec.items) // 10)
    for column in (rec.attributes.columns if rec.attributes else {}).values():
        values = [column[item] or None for item in range(len(rec.items))]
        kinds = len({value for value in values if value is not None})
        if 1 < kinds <= fewest:
            labels, fewest = values, kinds
    return rec.fitted.inspect_anchors(labels, rec.items.tolist())
