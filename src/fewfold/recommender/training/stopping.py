"""How long training takes and when it has had enough: the time budget, the best weights."""

import math
import time
from typing import Any, Protocol

from torch import Tensor

from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.training.checkpoint import say

__all__ = ["Best", "Pace"]

_LOOK = 50, 2.0  # steps or seconds after which the speed is known
_WITHIN, _BEYOND = 0.95, 1.2  # parts of a time budget: to aim at, and to stop at


class Paced(Protocol):
    """What `Pace` asks of a run."""

    step: int
    steps: int
    count: int
    progress: bool

    def where(self) -> str:
        """How far it is, in words."""

    def validation_seconds(self) -> float:
        """About how long the validation at the end of an epoch will take."""


class Pace:
    """The clock: how long things took, and how many steps fit into the time budget."""

    def __init__(self, budget: float | None) -> None:
        self._budget, self._fixed, self._upkeep = budget, False, 0.0
        self._began = self._epoch_began = time.perf_counter()
        self._first: tuple[float, int] | None = None  # step since the start or a resume, and when

    def begin(self) -> None:
        """An epoch begins."""
        self._epoch_began = time.perf_counter()

    def followed(self, every: int) -> None:
        """The proposal has followed, as it does every so many epochs."""
        self._upkeep = max(self._upkeep, self.epoch() / every)

    def epoch(self) -> float:
        """Seconds of this epoch."""
        return time.perf_counter() - self._epoch_began

    def steps(self, run: Paced) -> int:
        """How many steps there are in all, now that one more has been made."""
        if self._budget is None or run.step >= run.steps:
            return run.steps
        now = time.perf_counter()
        spent = now - self._began
        if spent > _BEYOND * self._budget:
            say(f"warning: {spent:.0f} s of {self._budget:g} have passed; stopped {run.where()}")
            return run.step
        if self._first is None:
            self._first = now, run.step
        made, took = run.step - self._first[1], now - self._first[0]
        known = made >= _LOOK[0] or (made and took >= min(_LOOK[1], self._budget / 8))
        if self._fixed or not known:
            return run.steps
        self._fixed = True
        each = took / made + (self._upkeep + run.validation_seconds()) / run.count
        left = max(0.0, _WITHIN * self._budget - spent)
        fit = run.step + int(left / max(each, 1e-9))
        if fit < run.steps and run.progress:
            say(f"{fit} of {run.steps} steps fit into {self._budget:g} s")
        return min(fit, run.steps)

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        spent = time.perf_counter() - self._began
        return {
            "spent": spent, "epoch": self.epoch(), "upkeep": self._upkeep, "fixed": self._fixed
        }  # fmt: skip

    def load(self, facts: dict[str, Any]) -> None:
        """Go on from there; the time between does not count."""
        now = time.perf_counter()
        self._began, self._epoch_began = now - facts["spent"], now - facts["epoch"]
        self._upkeep, self._fixed = facts["upkeep"], facts["fixed"]


class Best:
    """The best weights so far, kept where stopping early was asked for."""

    def __init__(self, patience: int | None) -> None:
        self._patience, self._score, self._since = patience, -math.inf, 0
        self.state: dict[str, Tensor] = {}

    def enough(self, model: FastVAE, score: float | None) -> bool:
        if self._patience is None or score is None:
            return False
        self._since += 1
        if score > self._score:
            self._score, self._since = score, 0
            self.state = {name: value.clone() for name, value in model.state_dict().items()}
        return self._since >= self._patience

    def restore(self, model: FastVAE) -> None:
        if self.state:
            model.load_state_dict(self.state)

    def facts(self) -> list[float]:
        return [self._score, self._since]

    def load(self, facts: list[Any], state: dict[str, Tensor]) -> None:
        self._score, self._since = facts
        self.state = {name: value.clone() for name, value in state.items()}
