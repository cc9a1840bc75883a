"""A model with anchors beside the same with dense tables: what the smaller size costs."""

from dataclasses import dataclass
from typing import Any

from fewfold.recommender.evaluation import Evaluation
from fewfold.recommender.fitted import Fitted

__all__ = ["Beside", "bytes_of", "in_words"]


@dataclass(frozen=True, eq=False)
class Beside:
    """How good and how large a model is, and the one with dense tables it was cut from.

    Where it was not cut from one, one that was fitted likewise.

    Attributes:
        own, dense: what was found of what was held out.
        own_bytes, dense_bytes: of the weights as they are written.
    """

    own: Evaluation
    dense: Evaluation
    own_bytes: int
    dense_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "bytes": self.own_bytes,
            "bytes with dense tables": self.dense_bytes,
            "overall with dense tables": self.dense.as_dict()["overall"],
        }

    def __str__(self) -> str:
        shown = [score.metric for score in self.own.overall.scores][:4]
        lines = [f"{'tables':<9}{''.join(f'{metric!s:>11}' for metric in shown)}{'weights':>11}"]
        for name, found, size in (
            ("anchors", self.own, self.own_bytes),
            ("dense", self.dense, self.dense_bytes),
        ):
            cells = "".join(f"{found.overall[metric].mean:11.4f}" for metric in shown)
            lines.append(f"{name:<9}{cells}{in_words(size):>11}")
        change = self.own.overall[shown[0]].mean / max(self.dense.overall[shown[0]].mean, 1e-12)
        lines.append(
            f"{self.dense_bytes / self.own_bytes:.1f} times smaller, {shown[0]} {change - 1:+.1%}"
        )
        return "\n".join(lines)


def bytes_of(fitted: Fitted) -> int:
    """Of all weights, as an artifact keeps them."""
    return sum(tensor.nbytes for tensor in fitted.tensors().values())


def in_words(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
