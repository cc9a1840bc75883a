"""The report of a fit: evaluation, epochs, time and memory."""

from dataclasses import asdict, dataclass
from typing import Any

from fewfold._resources import ResourceUsage
from fewfold.recommender.evaluation.dense_comparison import Beside
from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.models.model import Model
from fewfold.recommender.models.stored import described
from fewfold.recommender.reading.log import Log
from fewfold.recommender.training.train import Epoch

__all__ = ["FitReport"]


@dataclass(frozen=True, eq=False)
class FitReport:
    """Report of a fit; printing it gives a summary.

    Attributes:
        log: the log that was read.
        recipe: the model with its settings.
        evaluation: on the held-out interactions, if there are any.
        epochs: of the training, if there was one.
        cost: time and memory.
        beside: comparison of a model with anchors with dense tables, if it was made.
        tables: how the tables of anchors were trained, if there are any.
    """

    log: Log
    recipe: Model
    evaluation: Evaluation | None
    epochs: list[Epoch]
    cost: ResourceUsage
    beside: Beside | None = None
    tables: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "data": self.log.summary.as_dict(),
            "recipe": described(self.recipe),
            "evaluation": None if self.evaluation is None else self.evaluation.as_dict(),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "seconds": self.cost.seconds,
            "peak memory bytes": self.cost.memory,
            "anchors": None if self.beside is None else self.beside.as_dict(),
            "tables": self.tables,
        }

    def __str__(self) -> str:
        lines = [] if self.evaluation is None else [str(self.evaluation), ""]
        if self.beside is not None:
            lines += [str(self.beside), ""]
        count = len(self.epochs)
        passes = f"{count} epoch{'s' if count > 1 else ''}, " if count else ""
        lines.append(f"{self.recipe.name}: {passes}{self.cost}")
        if self.tables is not None:
            lines.append(f"tables: {self.tables}")
        return "\n".join(lines)
