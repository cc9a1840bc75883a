"""Training with Adam that stops early on a validation score, from checkpoints."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from experiments import checkpoint

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Schedule:
    """How to train, the same for all methods of an experiment.

    Attributes:
        rate: of Adam; halved after each epoch without a better validation.
        clip: norm of gradients.
        epochs: at most.
        patience: epochs without a better validation after which to stop.
    """

    rate: float = 1e-3
    clip: float = 1.0
    epochs: int = 10
    patience: int = 3


class Task(Protocol[Batch]):
    """What is trained: batches of an epoch, the loss of one, and a score, larger if better."""

    def batches(self) -> Iterable[Batch]: ...
    def loss(self, batch: Batch) -> Tensor: ...
    def valid(self) -> float: ...


class Training(Generic[Batch]):
    """A training run whose state is kept in a folder after every epoch.

    Random numbers are drawn from the default generator, which is part of the state.

    Attributes:
        record: rate, best epoch, validation and loss of each epoch, and processor seconds.
    """

    def __init__(
        self, model: nn.Module, task: Task[Batch], schedule: Schedule, folder: Path
    ) -> None:
        self.model, self.task, self.schedule, self.folder = model, task, schedule, folder
        self.optimizer = torch.optim.Adam(model.parameters(), schedule.rate, fused=True)
        self.record: dict[str, Any] = {
            "rate": schedule.rate, "best": 0, "valid": [], "loss": [], "seconds": 0.0
        }  # fmt: skip
        if (folder / "last.safetensors").exists():
            self.record = self._load("last")

    def _save(self, name: str) -> None:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        checkpoint.save(path, self.model, self.optimizer, generator, self.record)

    def _load(self, name: str) -> dict[str, Any]:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        return checkpoint.load(path, self.model, self.optimizer, generator)

    def epoch(self) -> None:
        """Train on all batches, validate, and keep the state."""
        start, losses = time.process_time(), []
        for group in self.optimizer.param_groups:
            group["lr"] = self.record["rate"]
        self.model.train()
        for batch in self.task.batches():
            loss = self.task.loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.schedule.clip)
            self.optimizer.step()
            losses.append(loss.item())
        self.record["seconds"] += time.process_time() - start
        self.record["loss"].append(round(sum(losses) / len(losses), 4))
        self.model.eval()
        found = round(self.task.valid(), 4)
        better = not self.record["valid"] or found > max(self.record["valid"])
        self.record["valid"].append(found)
        if better:
            self.record["best"] = len(self.record["valid"])
            self._save("best")
        else:
            self.record["rate"] /= 2
        self._save("last")

    @property
    def done(self) -> bool:
        """Whether the last epoch was the last of all."""
        epochs = len(self.record["valid"])
        return epochs >= self.schedule.epochs or (
            epochs - self.record["best"] >= self.schedule.patience
        )

    def finish(self) -> dict[str, Any]:
        """Train to the end, restore the best epoch, and return fields of a row."""
        while not self.done:
            self.epoch()
            print(f"  epoch {len(self.record['valid'])}: loss {self.record['loss'][-1]:.3f}, "
                  f"validation {self.record['valid'][-1]:.4f}", flush=True)  # fmt: skip
        self._load("best")
        self.model.eval()
        epochs = len(self.record["valid"])
        return {
            "valid": max(self.record["valid"]),
            "best epoch": self.record["best"],
            "epochs": epochs,
            "processor seconds of an epoch": round(self.record["seconds"] / epochs, 2),
        }
