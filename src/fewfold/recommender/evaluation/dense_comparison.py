"""A model with anchors beside the same with dense tables: what the smaller size costs."""

from dataclasses import dataclass
from typing import Any

from fewfold.recommender.evaluation.evaluate import Evaluation
from fewfold.recommender.models.fitted import Fitted

__all__ = ["Beside", "bytes_of", "in_words"]

_TABLES = ("table.", "vae.inputs", "vae.items")


@dataclass(frozen=True, eq=False)
class Beside:
    """How good and how large a model is, and the one with dense tables it was cut from.

    Where it was not cut from one, one that was fitted likewise.

    Attributes:
        own, dense: what was found of what was held out.
        own_bytes, dense_bytes: of all weights as they are written.
        own_tables, dense_tables: of the two tables alone.
        shortcut: whether both have one; dense tables by themselves do by default.
    """

    own: Evaluation
    dense: Evaluation
    own_bytes: int
    dense_bytes: int
    own_tables: int
    dense_tables: int
    shortcut: bool

    @classmethod
    def of(cls, own: Fitted, dense: Fitted, found: Evaluation, theirs: Evaluation) -> "Beside":
        """Of two fitted models what they were found to be worth."""
        return cls(
            found, theirs, bytes_of(own), bytes_of(dense), bytes_of(own, tables=True),
            bytes_of(dense, tables=True), shortcut="shortcut.table" in own.tensors(),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "bytes": self.own_bytes,
            "bytes with dense tables": self.dense_bytes,
            "bytes of tables": self.own_tables,
            "bytes of dense tables": self.dense_tables,
            "shortcut": self.shortcut,
            "overall with dense tables": self.dense.as_dict()["overall"],
        }

    def __str__(self) -> str:
        shown = [score.metric for score in self.own.overall.scores][:4]
        head = "".join(f"{metric!s:>11}" for metric in shown)
        lines = [f"{'tables':<9}{head}{'tables':>11}{'weights':>11}"]
        for name, found, tables, size in (
            ("anchors", self.own, self.own_tables, self.own_bytes),
            ("dense", self.dense, self.dense_tables, self.dense_bytes),
        ):
            cells = "".join(f"{found.overall[metric].mean:11.4f}" for metric in shown)
            lines.append(f"{name:<9}{cells}{in_words(tables):>11}{in_words(size):>11}")
        change = self.own.overall[shown[0]].mean / max(self.dense.overall[shown[0]].mean, 1e-12)
        lines.append(
            f"tables {self.dense_tables / self.own_tables:.1f} times smaller, all weights "
            f"{self.dense_bytes / self.own_bytes:.1f} times, {shown[0]} {change - 1:+.1%} "
            f"(both {'with' if self.shortcut else 'without'} the shortcut)"
        )
        return "\n".join(lines)


def bytes_of(fitted: Fitted, *, tables: bool = False) -> int:
    """Of all weights, as an artifact keeps them, or of the tables of a VAE alone."""
    kept = fitted.tensors()
    if tables:
        kept = {name: part for name, part in kept.items() if name.startswith(_TABLES)}
    return sum(tensor.nbytes for tensor in kept.values())


def in_words(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
