"""Sentiment of movie reviews from selected sentences, and how these agree with marked evidence.

``python -m experiments.rationales.run`` adds the rows that are missing to results.json. It may be
stopped and started again: a model on its way is kept after every epoch in build/rationales.
``--method "Hopfield pooling" --seed 2`` makes one row.
"""

import argparse
import hashlib
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from experiments.early_stopping import Schedule, Training
from experiments.rationales.model import METHODS, Reader, reader
from experiments.rationales.reviews import Batch, Corpus, Reviews, movies, token_f1
from experiments.record import Record, Row

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "rationales"


@dataclass(frozen=True)
class Settings:
    """Settings of model and training, the same for all methods.

    Attributes:
        size: reviews per step.
        least: occurrences of a word in the training part below which it is unknown.
    """

    width: int = 100
    dropout: float = 0.3
    size: int = 16
    least: int = 3
    schedule: Schedule = field(default_factory=lambda: Schedule(2e-3, epochs=15, patience=4))


@dataclass(frozen=True)
class Sentiment:
    """The task: the loss of the selector on training reviews, accuracy on validation reviews."""

    model: Reader
    corpus: Corpus
    size: int

    def batches(self) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        return self.corpus.train.batches(self.size)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        return self.model.loss(batch).mean()

    def valid(self) -> float:
        """Return the accuracy on validation reviews, from the selected sentences alone."""
        return float(evaluate(self.model, self.corpus.valid)["accuracy"])


@torch.no_grad()
def evaluate(model: Reader, reviews: Reviews) -> Row:
    """Return accuracy and F1 from the selected sentences alone, and what is selected."""
    predicted, words, sentences, runs = [], [], [], []
    for batch in reviews.in_order(16):
        classes, chosen = model.explained(batch)
        predicted.append(classes.argmax(1))
        for own, known in zip(chosen, batch.mask, strict=True):
            selected = own[known]
            sizes = reviews.sizes[len(words)]
            words.append(selected.repeat_interleave(sizes))
            sentences.append(float(selected.double().mean()))
            begins = selected[1:] & ~selected[:-1]
            runs.append(int(begins.sum()) + int(selected[0]))
    found = torch.cat(predicted)
    return {
        "accuracy": round(float((found == reviews.labels).double().mean()), 4),
        "F1": round(_macro_f1(found, reviews.labels), 4),
        "token F1": round(token_f1(words, reviews.marked), 4),
        "sentences selected": round(statistics.fmean(sentences), 4),
        "words selected": round(float(torch.cat(words).double().mean()), 4),
        "runs": round(statistics.fmean(runs), 2),
    }


def _macro_f1(found: Tensor, labels: Tensor) -> float:
    """Mean over the classes of F1."""
    scores = []
    for label in (0, 1):
        ours, theirs = found == label, labels == label
        scores.append(2 * int((ours & theirs).sum()) / max(int(ours.sum() + theirs.sum()), 1))
    return statistics.fmean(scores)


def measure(method: str, corpus: Corpus, settings: Settings, seed: int, models: Path) -> Row:
    """Train a model, and evaluate its best epoch."""
    about = f"{method} {settings} {seed} {len(corpus.train)} {len(corpus.vocabulary)}"
    folder = models / hashlib.sha256(about.encode()).hexdigest()[:16]
    torch.manual_seed(seed)
    model = reader(len(corpus.vocabulary), settings.width, settings.dropout, method)
    trained = Training(model, Sentiment(model, corpus, settings.size), settings.schedule, folder)
    return {**trained.finish(), **evaluate(model, corpus.test)}


def run(
    corpus: Corpus, methods: list[str], settings: Settings, seed: int,
    results: Path = RESULTS, models: Path = MODELS,
) -> None:  # fmt: skip
    """Add the missing rows."""
    record = Record(results)
    for method in methods:
        print(method, flush=True)
        make = partial(measure, method, corpus, settings, seed, models)
        record.once(make, method=method, seed=seed, settings=asdict(settings))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    settings = Settings()
    corpus = movies(settings.least)
    for seed in options.seed or [1]:
        run(corpus, options.method or [*METHODS], settings, seed)


if __name__ == "__main__":
    main()
