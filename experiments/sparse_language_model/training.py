"""Training of a language model with the entmax loss, from checkpoints."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments import checkpoint
from experiments.language_model.run import LanguageModel, batches
from experiments.sparse_language_model.long_context import Context, build
from experiments.sparse_language_model.text import Text
from experiments.unigram import log_alpha

_SPARSE = 2.0  # alphas from which so few words have weight that their scores need not be stored
_BLOCK = 128  # positions whose scores of all words are held at once when measuring


@dataclass(frozen=True)
class Settings:
    """Training settings, the same for all alphas.

    Attributes:
        parts: of an epoch, behind each of which the state is kept.
        valid: tokens of the validation part that the best state is chosen by.
    """

    width: int = 128
    dropout: float = 0.1
    batch: int = 20
    length: int = 35
    rate: float = 5e-3
    clip: float = 1.0
    epochs: int = 1
    parts: int = 8
    valid: int = 30_000
    context: Context = Context()  # noqa: RUF009  (an immutable value)


def losses(queries: Tensor, table: Tensor, after: Tensor, alpha: float) -> Tensor:
    """Return the mean entmax loss of the next words."""
    if alpha >= _SPARSE:
        return ff.linear_entmax_loss(queries, table, after, alpha)
    scores = queries @ table.T
    return F.cross_entropy(scores, after) if alpha == 1 else ff.entmax_loss(scores, after, alpha)


@torch.no_grad()
def positions(
    model: LanguageModel, tokens: Tensor, settings: Settings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores (n, words) and next words, some positions at a time, ordered as in `batches`."""
    state = None
    for words, after in batches(tokens, settings.batch, settings.length):
        queries, state = model(words, state)
        for some, their in zip(queries.split(_BLOCK), after.split(_BLOCK), strict=True):
            yield some @ model.table.T, their


def validation_loss(
    model: LanguageModel, tokens: Tensor, alpha: float, settings: Settings
) -> float:
    """Return the mean entmax loss of the next words of a text."""
    model.eval()
    found = [
        ff.entmax_loss(scores, after, alpha, reduction="none")
        for scores, after in positions(model, tokens, settings)
    ]
    model.train()
    return float(torch.cat(found).double().mean())


class Training:
    """A training run, whose state is kept after every part of an epoch.

    Attributes:
        record: parts done, the best part, loss of validation behind each part, and seconds.
    """

    def __init__(
        self, alpha: float, text: Text, settings: Settings, seed: int, folder: Path
    ) -> None:
        torch.manual_seed(seed)
        self.alpha, self.text, self.settings, self.folder = alpha, text, settings, folder
        self.model = build(text, settings.width, settings.dropout, settings.context)
        with torch.no_grad():
            self.model.table[:, -1] = log_alpha(text.counts / len(text.train), alpha)
        self.optimizer = torch.optim.Adam(self.model.parameters(), settings.rate, fused=True)
        self.batches = list(batches(text.train, settings.batch, settings.length))
        self.record: dict[str, Any] = {"best": 0, "valid": [], "seconds": 0.0}
        if (folder / "last.safetensors").exists():
            self.record = self._load("last")

    def _save(self, name: str) -> None:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        checkpoint.save(path, self.model, self.optimizer, generator, self.record)

    def _load(self, name: str) -> dict[str, Any]:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        return checkpoint.load(path, self.model, self.optimizer, generator)

    @property
    def done(self) -> bool:
        """Whether all epochs are done."""
        return len(self.record["valid"]) >= self.settings.epochs * self.settings.parts

    def part(self) -> None:
        """Train on the next part of an epoch, and keep the state."""
        start, number = time.process_time(), len(self.record["valid"])
        size = -(-len(self.batches) // self.settings.parts)
        steps = self.settings.epochs * len(self.batches)
        epoch, first = divmod(number, self.settings.parts)
        first, state = first * size, None
        for place, (words, after) in enumerate(
            islice(self.batches, first, first + size), start=first
        ):
            for group in self.optimizer.param_groups:
                done = (epoch * len(self.batches) + place) / steps
                group["lr"] = self.settings.rate * (1 - done)
            queries, state = self.model(words, state)
            loss = losses(queries, self.model.table, after, self.alpha)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
        self.record["seconds"] += time.process_time() - start
        valid = self.text.valid[: self.settings.valid]
        found = validation_loss(self.model, valid, self.alpha, self.settings)
        better = found < min(self.record["valid"], default=float("inf"))
        self.record["valid"].append(round(found, 5))
        if better:
            self.record["best"] = len(self.record["valid"])
            self._save("best")
        self._save("last")

    def finish(self) -> LanguageModel:
        """Train to the end, and return the model of the best part for evaluation."""
        while not self.done:
            self.part()
            print(f"  part {len(self.record['valid'])}: validation loss "
                  f"{self.record['valid'][-1]:.4f}", flush=True)  # fmt: skip
        self._load("best")
        return self.model.eval()
