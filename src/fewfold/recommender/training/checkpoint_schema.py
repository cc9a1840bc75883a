"""Schema of a checkpoint: the tensors and facts that it must have."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import check
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.training.checkpoint_file import RESTART, Saved

__all__ = ["Origin", "Progress", "check_settings", "checkpoint_layout"]


@dataclass(frozen=True)
class Origin:
    """Settings and machine of the training that wrote a checkpoint."""

    made: Mapping[str, Any]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class _Pace:
    spent: float
    epoch: float
    upkeep: float
    fixed: bool


@dataclass(frozen=True)
class Progress:
    """Progress of a training, as a checkpoint stores it.

    Attributes:
        step: number of steps done.
        steps: number of steps of the whole training.
        total: loss of this epoch so far, summed over users.
        finished: whether training is finished.
        log: the fields of each `Epoch`.
        best: the best score, and the number of epochs since.
        pace: state of the time budget.
        growth: state of the search for the number of anchors, if there is one.
    """

    step: int
    steps: int
    total: float
    finished: bool
    log: list[tuple[int, float, float, float, float | None]]
    best: tuple[float, int]
    pace: _Pace
    growth: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, saved: Saved, steps: int, count: int, *, growing: bool) -> "Progress":
        """Return the progress that a checkpoint stores; ArtifactError names what does not fit.

        Args:
            saved: the checkpoint.
            steps: largest number of steps of the whole training.
            count: steps of an epoch.
            growing: whether the number of anchors is found in training.
        """
        found = check(cls, saved.facts, saved.source, exact=False)
        done = len(found.log) * count
        if not 0 <= found.step <= found.steps <= steps:
            saved.fail("step", f"is {found.step} of {found.steps}, and there are at most {steps}")
        if found.finished and found.step > done:
            saved.fail("log", f"has {len(found.log)} epochs, too few for {found.step} steps")
        if not found.finished and not 0 <= found.step - done <= count:
            saved.fail("log", f"has {len(found.log)} epochs, which do not fit {found.step} steps")
        if not math.isfinite(found.total):
            saved.fail("total", f"must be finite, got {found.total}")
        if math.isnan(found.best[0]) or found.best[1] < 0:
            saved.fail("best", f"must be a number and how long ago it was, got {found.best}")
        for name in ("spent", "epoch", "upkeep"):
            if not math.isfinite(getattr(found.pace, name)):
                saved.fail(f"pace.{name}", f"must be finite, got {getattr(found.pace, name)}")
        if growing != (found.growth is not None):
            saved.fail("growth", "belongs to tables whose number of anchors is found")
        return found


def checkpoint_layout(
    found: Found, model: nn.Module, tables: Sequence[Tensor], others: Sequence[Tensor],
    generator: Tensor,
) -> Iterator[tuple[str, Spec]]:  # fmt: skip
    """Yield the tensors that a checkpoint of a training must have.

    Args:
        found: those it has: an optimiser has no state of parameters that it has not updated yet.
        model: that is trained.
        tables: its parameters with a row per item.
        others: its other parameters.
        generator: the state of a generator of random numbers.
    """
    for name in ("generator.now", "generator.begin"):
        yield name, Spec(tuple(generator.shape), torch.uint8)
    for part in ("model", "best"):
        if part == "model" or any(name.startswith("best.") for name in found):
            for name, value in model.state_dict().items():
                yield f"{part}.{name}", Spec(tuple(value.shape), value.dtype)
    for index, each in enumerate(others):
        if f"others.{index}.step" in found:
            yield from _moments(f"others.{index}", each)
    for index, table in enumerate(tables):
        if f"tables.{index}.exp_avg" in found:  # of torch's Adam
            yield from _moments(f"tables.{index}", table)
        elif f"tables.{index}.step" in found:
            yield f"tables.{index}.step", Spec((len(table),), torch.int32, least=0)
            if f"tables.{index}.memory" in found:  # both moments of each entry
                shape = (len(table), 2, *table.shape[1:])
                yield f"tables.{index}.memory", Spec(shape, table.dtype)
            else:
                yield f"tables.{index}.square", Spec((len(table),), table.dtype, least=0)
    for name, (dtype, shape) in found.items():  # validated by the objects that load them
        if name.startswith(("winners.", "proposal.")):
            yield name, Spec(shape, dtype)


def _moments(name: str, parameter: Tensor) -> Iterator[tuple[str, Spec]]:
    """Yield the state of torch's Adam for a parameter."""
    yield f"{name}.step", Spec((), least=0)
    yield f"{name}.exp_avg", Spec(tuple(parameter.shape), parameter.dtype)
    yield f"{name}.exp_avg_sq", Spec(tuple(parameter.shape), parameter.dtype, least=0)


def check_settings(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise if the settings of a checkpoint differ from those of this training."""
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if names:
        changes = "; ".join(f"{name} was {there.get(name)}, is {here.get(name)}" for name in names)
        raise ArtifactError(
            f"the checkpoint {path} is of another training: {changes}. Train with its settings, or "
            f"{RESTART}"
        )
