"""Quality and size of a model with anchors compared with the same model with dense tables."""

from dataclasses import dataclass
from typing import Any

from fewfold._resources import format_bytes
from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.models.model import Fitted

__all__ = ["DenseComparison", "bytes_of"]

_TABLES = ("table.", "vae.inputs", "vae.items")


@dataclass(frozen=True, eq=False)
class DenseComparison:
    """Quality and size of a model with anchors, and of the model with dense tables.

    The latter is the one that was compressed, or one that was fitted in the same way.

    Attributes:
        own, dense: evaluations on the held-out items.
        own_bytes, dense_bytes: bytes of all weights in a saved model.
        own_tables, dense_tables: bytes of the two tables alone.
        shortcut: whether both have a shortcut, which dense tables have by default.
    """

    own: Evaluation
    dense: Evaluation
    own_bytes: int
    dense_bytes: int
    own_tables: int
    dense_tables: int
    shortcut: bool

    @classmethod
    def of(
        cls, own: Fitted, dense: Fitted, evaluation: Evaluation, dense_evaluation: Evaluation
    ) -> "DenseComparison":
        """Build from two evaluated models."""
        return cls(
            evaluation, dense_evaluation, bytes_of(own), bytes_of(dense),
            bytes_of(own, tables=True), bytes_of(dense, tables=True),
            shortcut="shortcut.table" in own.state(),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
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
        for name, evaluation, tables, size in (
            ("anchors", self.own, self.own_tables, self.own_bytes),
            ("dense", self.dense, self.dense_tables, self.dense_bytes),
        ):
            cells = "".join(f"{evaluation.overall[metric].mean:11.4f}" for metric in shown)
            lines.append(f"{name:<9}{cells}{format_bytes(tables):>11}{format_bytes(size):>11}")
        change = self.own.overall[shown[0]].mean / max(self.dense.overall[shown[0]].mean, 1e-12)
        lines.append(
            f"tables {self.dense_tables / self.own_tables:.1f} times smaller, all weights "
            f"{self.dense_bytes / self.own_bytes:.1f} times, {shown[0]} {change - 1:+.1%} "
            f"(both {'with' if self.shortcut else 'without'} the shortcut)"
        )
        return "\n".join(lines)


def bytes_of(fitted: Fitted, *, tables: bool = False) -> int:
    """Bytes of all weights in a saved model, or of the tables of a VAE alone."""
    state = fitted.state()
    if tables:
        state = {name: part for name, part in state.items() if name.startswith(_TABLES)}
    return sum(tensor.nbytes for tensor in state.values())
