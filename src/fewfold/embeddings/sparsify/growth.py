"""How many anchors: tables that grow and shrink with a validation loss."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fewfold._check import positive_number, whole_number
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["AnchorGrowth", "Decision", "GrowthStep", "trend"]

Decision = Literal["grow", "shrink", "keep"]


@dataclass(frozen=True)
class GrowthStep:
    """What one epoch said, and what follows from it."""

    objective: float
    decision: Decision
    evaluated: tuple[int, ...]
    """anchors of each table the loss was measured with"""
    active: tuple[int, ...]
    """anchors of each table from now on"""
    nonzeros: int
    """of all transforms, when the loss was measured"""
    best: bool
    """whether no earlier objective was as low"""


class AnchorGrowth:
    """Chooses the number of anchors while the tables are trained, once per epoch.

    With K the anchors in use and nnz the non-zeros of T, both summed over the tables, the objective

        validation loss + l1 nnz + (per_anchor - l1) K

    is compared with those of the two epochs before: `trend` says whether all tables get `step` more
    anchors, lose as many, or stay. The loss is a mean over examples. Anchors that are taken away
    stay in memory and come back with the values they had.

    What to know before trusting it:

    - Early in a training everything improves, so it grows whatever the weights are. Start it where
      the loss has settled, or give it epochs enough to come back; a penalty that is still rising
      makes the objective fall or rise by itself, too.
    - It judges one epoch after a change. `wait=2` lets the three values that are compared belong to
      one number of anchors; an epoch is cheap, a wrong turn costs two.
    - It wanders about the best number and does not stop there: keep the weights of the epoch that
      was `best`. They go with `evaluated`; `active` may already be another number.
    - `l1` is what a non-zero costs. In the paper it is that of the penalty as well, but those are
      different units: where l1 nnz outweighs the loss, the best number of anchors is none.
    - Under a penalty at its height an anchor that joins seldom lives: its entries shrink to zero
      before it has found a direction, and from zero an entry returns only where its gradient is
      larger than the penalty. An optimiser with moments makes that worse, as its first steps on a
      new column are its largest. Pause the penalty after a change, for an epoch say, and call
      `epoch` when it has been back for another; else what grows is the count.
    - Anchors out of use still move by weight decay and by old momentum.

    Args:
        tables: one or several, with `width=None`; `anchors` of each is the most it can grow to.
        l1: what a non-zero costs.
        per_anchor: what an anchor costs, the first non-zero of its column included; more than `l1`.
        start: anchors in use at first, in every table; None: as many as there are.
        step: anchors to add or take away at once.
        wait: epochs after a change without another; 0 is the published rule.

    Example:
        >>> import fewfold as ff
        >>> table = ff.AnchorEmbedding(100, 8, anchors=20)
        >>> growth = ff.embeddings.AnchorGrowth(table, l1=1e-4, per_anchor=1e-2, start=5)
        >>> [growth.epoch(loss).decision for loss in (0.9, 0.8, 0.7, 0.9, 0.9, 1.2)]
        ['grow', 'grow', 'grow', 'keep', 'shrink', 'shrink']
        >>> table.active
        6

    Reference: Liang, Zaheer, Wang, Ahmed, "Anchor & Transform: learning sparse embeddings for large
    vocabularies", 2021, Algorithm 2.
    """

    def __init__(
        self,
        tables: AnchorEmbedding | Iterable[AnchorEmbedding],
        *,
        l1: float,
        per_anchor: float,
        start: int | None = None,
        step: int = 1,
        wait: int = 0,
    ) -> None:
        self.tables = [tables] if isinstance(tables, AnchorEmbedding) else list(tables)
        self.l1 = positive_number(l1, "l1")
        self.per_anchor = positive_number(per_anchor, "per_anchor")
        if self.per_anchor <= self.l1:
            raise ValueError(
                f"per_anchor must be greater than l1={l1:g}, got {per_anchor:g}: an anchor has at "
                "least one non-zero"
            )
        self.step, self.wait = whole_number(step, "step"), whole_number(wait, "wait", least=0)
        _check(self.tables)
        self.history: list[GrowthStep] = []
        if start is not None:
            for table in self.tables:
                table.active = start

    def objective(self, loss: float) -> float:
        """The loss, and what the tables cost as they are."""
        nonzeros = sum(table.nonzeros() for table in self.tables)
        anchors = sum(table.active for table in self.tables)
        return loss + self.l1 * nonzeros + (self.per_anchor - self.l1) * anchors

    @property
    def best(self) -> GrowthStep | None:
        """The step with the lowest objective so far."""
        return min(self.history, key=lambda step: step.objective, default=None)

    def epoch(self, validation_loss: float) -> GrowthStep:
        """Look at the tables after an epoch, decide, and set their `active` anchors."""
        loss = float(validation_loss)
        if not math.isfinite(loss):
            raise ValueError(f"validation_loss must be finite, got {loss}; has training diverged?")
        objective = self.objective(loss)
        lowest = min((step.objective for step in self.history), default=math.inf)
        nonzeros = sum(table.nonzeros() for table in self.tables)
        decision: Decision = "keep"
        if self._rested():
            decision = trend([*(step.objective for step in self.history), objective])
        before = self._active()
        change = {"grow": self.step, "shrink": -self.step, "keep": 0}[decision]
        for table in self.tables:
            table.active = min(max(table.active + change, 1), len(table.anchors))
        made = GrowthStep(objective, decision, before, self._active(), nonzeros, objective < lowest)
        self.history.append(made)
        return made

    def _rested(self) -> bool:
        """Whether the last change is `wait` epochs ago."""
        recent = self.history[-self.wait :] if self.wait else []
        return all(step.evaluated == step.active for step in recent)

    def _active(self) -> tuple[int, ...]:
        return tuple(table.active for table in self.tables)

    def state_dict(self) -> dict[str, Any]:
        """All steps so far; how many anchors are in use is in the `state_dict` of a table."""
        return {"history": [asdict(step) for step in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.history = [
            GrowthStep(**step | {name: tuple(step[name]) for name in ("evaluated", "active")})
            for step in state["history"]
        ]


def trend(objectives: Sequence[float]) -> Decision:
    """What the last three say: falling or equal, grow; rising, shrink; fewer than three, grow.

    Example:
        >>> trend([5, 4, 3]), trend([3, 4, 5]), trend([3, 5, 4])
        ('grow', 'shrink', 'keep')
    """
    if len(objectives) < 3:
        return "grow"
    first, second, third = objectives[-3:]
    if first >= second >= third:
        return "grow"
    return "shrink" if first <= second <= third else "keep"


def _check(tables: Sequence[AnchorEmbedding]) -> None:
    if not tables:
        raise ValueError("tables must be at least one, got none")
    for table in tables:
        if not isinstance(table, AnchorEmbedding):
            raise TypeError(f"tables must be AnchorEmbedding, got {type(table).__name__}")
        if table.slots is not None:
            raise ValueError(
                "a table of fixed width uses all of its anchors; write width=None for one that "
                "grows"
            )
