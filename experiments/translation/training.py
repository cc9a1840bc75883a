"""Training with early stopping on the BLEU of validation, from checkpoints."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments import checkpoint
from experiments.translation.bleu import bleu
from experiments.translation.corpus import Corpus, Part, Vocabulary
from experiments.translation.model import Method, Translator
from experiments.translation.search import greedy


@dataclass(frozen=True)
class Settings:
    """Training settings, the same for all methods.

    Attributes:
        least: occurrences of a word in the training part below which it is unknown.
        patience: epochs without a better validation after which to stop; the learning rate is
            halved after each.
    """

    width: int = 256
    dropout: float = 0.3
    size: int = 64
    rate: float = 1e-3
    clip: float = 1.0
    least: int = 2
    epochs: int = 12
    patience: int = 3


def score(model: Translator, part: Part, words: Vocabulary) -> float:
    """Return the BLEU of greedy translations."""
    model.eval()
    lines = [words.line(line) for some, _ in part.in_order(128) for line in greedy(model, some)]
    model.train()
    return bleu(lines, part.references)


class Training:
    """A training run, whose state is kept after every epoch.

    Attributes:
        record: learning rate, epochs, best epoch, validation BLEU of each epoch, and seconds.
    """

    def __init__(
        self, method: Method, corpus: Corpus, settings: Settings, seed: int, folder: Path
    ) -> None:
        torch.manual_seed(seed)
        self.corpus, self.settings, self.folder = corpus, settings, folder
        self.model = Translator(
            len(corpus.source), corpus.counts(), settings.width, settings.dropout, method
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), settings.rate, fused=True)
        self.record: dict[str, Any] = {
            "rate": settings.rate, "best": 0, "bleu": [], "loss": [], "seconds": 0.0
        }  # fmt: skip
        if (folder / "last.safetensors").exists():
            self._load("last")

    def _save(self, name: str) -> None:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        checkpoint.save(path, self.model, self.optimizer, generator, self.record)

    def _load(self, name: str) -> None:
        path, generator = self.folder / f"{name}.safetensors", torch.default_generator
        self.record = checkpoint.load(path, self.model, self.optimizer, generator)

    def epoch(self) -> None:
        """Train on all batches, and keep the state."""
        start, losses = time.process_time(), []
        for group in self.optimizer.param_groups:
            group["lr"] = self.record["rate"]
        for source, target in self.corpus.train.batches(self.settings.size):
            loss = self.model.loss(source, target)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            losses.append(loss.item())
        self.record["seconds"] += time.process_time() - start
        self.record["loss"].append(round(sum(losses) / len(losses), 4))
        found = round(score(self.model, self.corpus.valid, self.corpus.target), 2)
        better = found > max(self.record["bleu"], default=-1.0)
        self.record["bleu"].append(found)
        if better:
            self.record["best"] = len(self.record["bleu"])
            self._save("best")
        else:
            self.record["rate"] /= 2
        self._save("last")

    @property
    def done(self) -> bool:
        """Whether the last epoch was the last of all."""
        epochs = len(self.record["bleu"])
        return epochs - self.record["best"] >= self.settings.patience or (
            epochs >= self.settings.epochs
        )

    def finish(self) -> Translator:
        """Train to the end, and return the model of the best epoch for evaluation."""
        while not self.done:
            self.epoch()
            print(f"  epoch {len(self.record['bleu'])}: loss {self.record['loss'][-1]:.3f}, "
                  f"validation BLEU {self.record['bleu'][-1]:.2f}", flush=True)  # fmt: skip
        whole = self.record
        self._load("best")
        self.record = whole
        return self.model.eval()
