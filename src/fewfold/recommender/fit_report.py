"""What a fit came to, for a person and for a program."""

from dataclasses import asdict, dataclass
from typing import Any

from fewfold._resources import ResourceUsage
from fewfold.recommender.evaluation.dense_comparison import Beside
from fewfold.recommender.evaluation.evaluate import Evaluation
from fewfold.recommender.models.recipes import Recipe
from fewfold.recommender.models.registry import described
from fewfold.recommender.reading.log import Log
from fewfold.recommender.training.train import Epoch

__all__ = ["FitReport"]


@dataclass(frozen=True, eq=False)
class FitReport:
    """What a fit came to; printing it gives what a person wants to know.

    Attributes:
        log: as it was read.
        recipe: of the model.
        evaluation: on what was held out, if anything was.
        epochs: of the training, if there were any.
        cost: time and memory.
        beside: the same with dense tables, where anchors were asked for and to be compared.
        tables: how those of anchors came about, where there are any.
    """

    log: Log
    recipe: Recipe
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
        lines.append(f"{described(self.recipe)['kind']}: {passes}{self.cost}")
        if self.tables is not None:
            lines.append(f"tables: {self.tables}")
        return "\n".join(lines)
