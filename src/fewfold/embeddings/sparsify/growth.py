"""Selection of the number of anchors by a validation loss."""

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
    """Decision of `AnchorGrowth` after one epoch."""

    objective: float
    decision: Decision
    evaluated: tuple[int, ...]
    """number of anchors of each table when the loss was measured"""
    active: tuple[int, ...]
    """number of anchors of each table after the decision"""
    nonzeros: int
    """non-zeros of all transforms when the loss was measured"""
    best: bool
    """whether the objective is lower than all earlier ones"""


class AnchorGrowth:
    """Adapts the number of anchors of tables during training, once per epoch.

    With K the anchors in use and nnz the non-zeros of T, both summed over the tables, the objective

        validation loss + l1 nnz + (per_anchor - l1) K

    is compared with those of the two previous epochs: `trend` decides whether all tables gain
    `step` anchors, lose `step` anchors or stay. The loss is a mean over examples. Removed anchors
    stay in memory and return with their old values.

    Limitations:

    - Early in training every epoch improves the objective, so that the tables grow for any weights.
      Start when the loss has converged, or train long enough for the tables to shrink again. An L1
      penalty that is still rising also changes the objective.
    - A decision is based on one epoch after a change. With `wait=2` the three compared values
      belong to one number of anchors.
    - The number oscillates around the best one and does not converge: save the weights of the
      `best` epoch. They belong to `evaluated`; `active` may already differ.
    - `l1` is the cost of a non-zero. The paper uses the coefficient of the L1 penalty, but the
      units differ: where l1 nnz exceeds the loss, the best number of anchors is the smallest.
    - Under the full penalty an added anchor seldom survives: its entries shrink to zero before it
      is trained, and an entry leaves zero only if its gradient exceeds the penalty. The large first
      steps of optimisers with moments make that worse. Pause the penalty for an epoch after a
      change, and call `epoch` after another epoch with the penalty.
    - Weight decay and momentum still change anchors that are not in use.

    Args:
        tables: one table or several, with `width=None`; `anchors` of each is its maximum.
        l1: cost of a non-zero.
        per_anchor: cost of an anchor including the first non-zero of its column; more than `l1`.
        start: initial number of anchors in use in every table; None for all.
        step: number of anchors added or removed at once.
        wait: epochs without a change after a change; 0 is the published rule.

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
        """Return the objective of the tables as they are for this validation loss."""
        nonzeros = sum(table.nonzeros() for table in self.tables)
        anchors = sum(table.active for table in self.tables)
        return loss + self.l1 * nonzeros + (self.per_anchor - self.l1) * anchors

    @property
    def best(self) -> GrowthStep | None:
        """Step with the lowest objective so far, or None."""
        return min(self.history, key=lambda step: step.objective, default=None)

    def epoch(self, validation_loss: float) -> GrowthStep:
        """Decide after an epoch and set the `active` anchors of all tables."""
        loss = float(validation_loss)
        if not math.isfinite(loss):
            raise ValueError(f"validation_loss must be finite, got {loss}; has training diverged?")
        objective = self.objective(loss)
        lowest = min((step.objective for step in self.history), default=math.inf)
        nonzeros = sum(table.nonzeros() for table in self.tables)
        decision: Decision = "keep"
        if self._waited():
            decision = trend([*(step.objective for step in self.history), objective])
        before = self._active()
        change = {"grow": self.step, "shrink": -self.step, "keep": 0}[decision]
        for table in self.tables:
            table.active = min(max(table.active + change, 1), len(table.anchors))
        best = objective < lowest
        result = GrowthStep(objective, decision, before, self._active(), nonzeros, best)
        self.history.append(result)
        return result

    def _waited(self) -> bool:
        """Whether the last change is at least `wait` epochs ago."""
        recent = self.history[-self.wait :] if self.wait else []
        return all(step.evaluated == step.active for step in recent)

    def _active(self) -> tuple[int, ...]:
        return tuple(table.active for table in self.tables)

    def state_dict(self) -> dict[str, Any]:
        """Return the history; the number of anchors in use is in the `state_dict` of each table."""
        return {"history": [asdict(step) for step in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a history returned by `state_dict`."""
        self.history = [
            GrowthStep(**step | {name: tuple(step[name]) for name in ("evaluated", "active")})
            for step in state["history"]
        ]


def trend(objectives: Sequence[float]) -> Decision:
    """Return "grow" if the last three do not rise or are fewer, "shrink" if they rise, else "keep".

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
    """Raise unless these are tables in full storage, at least one."""
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
