"""What a model folder holds, for a person: data, quality, sizes, and how fast it answers."""

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewfold.embeddings.inspect_anchors import AnchorInspection, inspect_anchors
from fewfold.recommender.artifact.folder import Folder, open_artifact, steadily
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.recommender import Recommender

__all__ = ["Inspection", "inspect"]


@dataclass(frozen=True, eq=False)
class Inspection:
    """What `inspect` found.

    Attributes:
        folder: which.
        config: recipe, training, seed, data and versions, as in `config.json`.
        metrics: as in `metrics.json`.
        sizes: bytes of each file.
        load: seconds to read it.
        answer: seconds for one user from a history, the median of several.
        anchors: what the anchors of the tables stand for, if they are of anchors.
    """

    folder: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    sizes: Mapping[str, int]
    load: float
    answer: float
    anchors: AnchorInspection | None = None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "folder": self.folder, "config": dict(self.config), "metrics": dict(self.metrics),
            "bytes": dict(self.sizes), "seconds to load": self.load,
            "seconds to answer": self.answer,
            "anchors": None if self.anchors is None else self.anchors.as_dict(),
        }  # fmt: skip

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
        if data.get("where"):
            lines.append(
                f"{data['left_out']:,} of {data['rows']:,} rows left out by where "
                f"{' and '.join(data['where'])}"
            )
        if "tables" in learned:
            lines.append(f"tables: {learned['tables']}")
        if self.metrics:
            scores = self.metrics["overall"]["scores"]
            told = ", ".join(f"{name} {score['mean']:.4f}" for name, score in scores.items())
            ranked = self.metrics.get("users ranked", "all")
            sample = "" if ranked == "all" else f" ({ranked})"
            lines.append(f"{told} on {self.metrics['split']}{sample}")
        else:
            lines.append("not evaluated: nothing was held out")
        wide = max(map(len, self.sizes))
        lines += [f"  {name:{wide}} {size / 1e3:11,.1f} kB" for name, size in self.sizes.items()]
        lines.append(f"loads in {self.load:.2f} s, answers one user in {self.answer * 1e3:.1f} ms")
        if self.anchors is not None:
            lines += ["", str(self.anchors)]
        return "\n".join(lines)


def inspect(folder: str | os.PathLike[str]) -> Inspection:
    """Read a model and say what it is; also that it is whole, for its checksums are compared."""

    def read(root: Path) -> tuple[Folder, Recommender, float]:
        began = time.perf_counter()
        opened = open_artifact(root)
        return opened, Recommender.opened(opened), time.perf_counter() - began

    opened, rec, load = steadily(folder, read)
    history, times = rec.items.take(range(min(20, len(rec.items)))), []
    for _ in range(9):
        began = time.perf_counter()
        rec.recommend_from_history(history, 10)
        times.append(time.perf_counter() - began)
    return Inspection(
        str(folder), opened.config, opened.metrics, opened.sizes, load, statistics.median(times),
        _anchors(rec),
    )  # fmt: skip


def _anchors(rec: Recommender) -> AnchorInspection | None:
    """What the anchors stand for, by the attribute with the fewest values, if it has few."""
    tables = getattr(getattr(rec.fitted, "model", None), "tables", None)
    if not isinstance(tables, AnchoredTables):
        return None
    labels, fewest = None, max(2, len(rec.items) // 10)
    for column in (rec.attributes.columns if rec.attributes else {}).values():
        values = [column[item] or None for item in range(len(rec.items))]
        kinds = len({value for value in values if value is not None})
        if 1 < kinds <= fewest:
            labels, fewest = values, kinds
    table, bias = tables.without_bias(), int(tables.is_bias.sum())
    found = inspect_anchors(table, labels=labels, names=rec.items.tolist())
    kept = bias * table.embedding_dim + tables.table.nonzeros() - table.nonzeros()
    return replace(found, anchors=found.anchors - bias, beside=kept)
