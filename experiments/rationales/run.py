"""Sentiment of movie reviews from selected sentences, and how these agree with marked evidence.

``python -m experiments.rationales.run`` adds the rows that are missing to results.json. It may be
stopped and started again: a model on its way is kept after every epoch in build/rationales.
``--method "Hopfield pooling" --seed 2`` makes one row.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from experiments.early_stopping import Schedule, Training
from experiments.methods import Settings, add_rows, folder, options
from experiments.rationales.model import METHODS, Reader, reader
from experiments.rationales.reviews import Batch, Corpus, Reviews, movies, token_f1
from experiments.record import Row

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "rationales"
SETTINGS = Settings(100, 0.3, 16, 3, Schedule(2e-3, epochs=15, patience=4))


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


def measure(corpus: Corpus, settings: Settings, seed: int, models: Path, method: str) -> Row:
    """Train a model, and evaluate its best epoch."""
    words = len(corpus.vocabulary)
    place = folder(models, method, settings, seed, len(corpus.train), words)
    torch.manual_seed(seed)
    model = reader(words, settings.width, settings.dropout, method)
    trained = Training(model, Sentiment(model, corpus, settings.size), settings.schedule, place)
    return {**trained.finish(), **evaluate(model, corpus.test)}


def main() -> None:
    """Parse the command line and run."""
    methods, seeds = options(__doc__, METHODS)
    corpus = movies(SETTINGS.least)
    for seed in seeds:
        make = partial(measure, corpus, SETTINGS, seed, MODELS)
        add_rows(make, methods, SETTINGS, seed, RESULTS)


if __name__ == "__main__":
    main()
