"""Schedule of a training: optimisers and learning rate, time budget, early stopping."""

import math
import time
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fewfold import optim
from fewfold.distributed.group import Group
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.training.checkpoint import print_message
from fewfold.recommender.training.train_options import TrainOptions

__all__ = ["BestWeights", "TimeBudget", "build_optimizers", "relative_rate"]

_WARM = 100  # steps over which the learning rate rises
_LEAST = 0.02  # of the learning rate at the end
_SHARED = 0.1  # of the learning rate, for parameters that move the vectors of all items
_MEASURED = 50, 2.0  # steps or seconds after which the speed is known
_TARGET, _LIMIT = 0.95, 1.2  # parts of a time budget: to aim at, and to stop at


def build_optimizers(
    model: FastVAE, options: TrainOptions, steps: int, counts: Tensor
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimisers of the row parameters ("tables") and of all others ("others").

    Each parameter group has a `share` of the learning rate.
    """
    shared = model.tables.shared_parameters
    excluded = [*model.tables.row_parameters, *shared]
    others = [p for p in model.parameters() if all(p is not e for e in excluded)]
    groups = [{"params": others, "share": 1.0}]
    if shared:
        groups.append({"params": shared, "share": _SHARED})
    tables = [{"params": model.tables.row_parameters, "share": 1.0}]
    lr, dense = options.lr, options.optimizer
    if dense is not None:
        if model.tables.group.world > 1:
            raise ValueError("DenseAdam trains tables of one process; start without torchrun")
        decay = dense.weight_decay
        return {
            "tables": _DenseRows(tables, lr=lr, weight_decay=decay, fused=True),
            "others": torch.optim.Adam(groups, lr=lr, weight_decay=decay, fused=True),
        }
    rows = optim.Adam(tables, lr=lr, betas=(0.0, 0.99), by_row=True)
    return {
        "tables": model.tables.row_optimizer(rows, steps, counts),
        "others": torch.optim.Adam(groups, lr=lr, betas=(0.9, 0.99), fused=True),
    }


class _DenseRows(torch.optim.Adam):
    """Adam of parameters whose gradients may be sparse, as if they were dense."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None and each.grad.is_sparse:
                    each.grad = each.grad.to_dense()
        return super().step(closure)


def relative_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step relative to the highest: linear warm-up, then a cosine."""
    fall = (1 + math.cos(math.pi * step / steps)) / 2
    return min(1.0, (step + 1) / _WARM) * (fall * (1 - _LEAST) + _LEAST)


class Timed(Protocol):
    """What `TimeBudget` needs of a training."""

    step: int
    steps: int
    steps_per_epoch: int
    progress: bool

    def where(self) -> str:
        """Return the current step and epoch, as text."""

    def validation_seconds(self) -> float:
        """Estimate the seconds of a validation."""


class TimeBudget:
    """Measures the speed of a training and limits its steps to those that fit into the budget.

    All processes of a group have the clock of rank 0, so that they decide alike.
    """

    def __init__(self, budget: float | None, group: Group | None = None) -> None:
        self._budget, self._fixed, self._upkeep = budget, False, 0.0
        self._group = group or Group()
        self._began = self._epoch_began = self.now()
        self._first: tuple[float, int] | None = None  # when and at which step timing began

    def now(self) -> float:
        """Return the seconds of a clock that all processes share."""
        return self._group.agree(time.perf_counter())[0]

    def start_epoch(self) -> None:
        """Note that an epoch begins."""
        self._epoch_began = self.now()

    def proposal_updated(self, every: int) -> None:
        """Note that the proposal has been updated, as it is every so many epochs."""
        self._upkeep = max(self._upkeep, self.epoch_seconds() / every)

    def epoch_seconds(self) -> float:
        """Return the seconds since the epoch began."""
        return self.now() - self._epoch_began

    def total_steps(self, run: Timed) -> int:
        """Return the number of steps of the whole training, after each step."""
        if self._budget is None or run.step >= run.steps:
            return run.steps
        now = self.now()
        elapsed = now - self._began
        if elapsed > _LIMIT * self._budget:
            if self._group.leads:
                print_message(
                    f"warning: {elapsed:.0f} s of {self._budget:g} have passed; stopped "
                    f"{run.where()}"
                )
            return run.step
        if self._first is None:
            self._first = now, run.step
        done, took = run.step - self._first[1], now - self._first[0]
        known = done >= _MEASURED[0] or (done and took >= min(_MEASURED[1], self._budget / 8))
        if self._fixed or not known:
            return run.steps
        self._fixed = True
        each = took / done + (self._upkeep + run.validation_seconds()) / run.steps_per_epoch
        left = max(0.0, _TARGET * self._budget - elapsed)
        fit = run.step + int(left / max(each, 1e-9))
        if fit < run.steps and run.progress:
            print_message(f"{fit} of {run.steps} steps fit into {self._budget:g} s")
        return min(fit, run.steps)

    def facts(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        elapsed = self.now() - self._began
        return {
            "spent": elapsed, "epoch": self.epoch_seconds(), "upkeep": self._upkeep,
            "fixed": self._fixed,
        }  # fmt: skip

    def load(self, facts: dict[str, Any]) -> None:
        """Restore what `facts` returned; the time since then does not count."""
        now = self.now()
        self._began, self._epoch_began = now - facts["spent"], now - facts["epoch"]
        self._upkeep, self._fixed = facts["upkeep"], facts["fixed"]


class BestWeights:
    """Early stopping: a copy of the weights with the best score, if there is a patience."""

    def __init__(self, patience: int | None) -> None:
        self._patience, self._score, self._since = patience, -math.inf, 0
        self.state: dict[str, Tensor] = {}

    def update(self, model: nn.Module, score: float | None) -> bool:
        """Copy the weights if the score is the best; return whether patience has run out."""
        if self._patience is None or score is None:
            return False
        self._since += 1
        if score > self._score:
            self._score, self._since = score, 0
            self.state = {name: value.clone() for name, value in model.state_dict().items()}
        return self._since >= self._patience

    def restore(self, model: nn.Module) -> None:
        """Load the best weights into the model."""
        if self.state:
            model.load_state_dict(self.state)

    def facts(self) -> list[float]:
        """Return the state for a checkpoint, without the weights."""
        return [self._score, self._since]

    def load(self, facts: list[Any], state: dict[str, Tensor]) -> None:
        """Restore what `facts` returned, and the weights."""
        self._score, self._since = facts
        self.state = {name: value.clone() for name, value in state.items()}
