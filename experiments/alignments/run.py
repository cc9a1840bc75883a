"""Natural language inference with alignments of softmax, sparse maps and SparseMAP.

``python -m experiments.alignments.run`` adds the rows that are missing to results.json. It may be
stopped and started again: a model on its way is kept after every epoch in build/alignments.
``--method matching --seed 2`` makes one row.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.alignments.model import METHODS, Aligner
from experiments.alignments.pairs import PAD, Batch, Corpus, Pairs, snli
from experiments.early_stopping import Schedule, Training
from experiments.methods import Settings, add_rows, folder, options
from experiments.record import Row

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "alignments"
SETTINGS = Settings(64, 0.3, 64, 2, Schedule(2e-3, epochs=10, patience=3))


@dataclass(frozen=True)
class Inference:
    """The task: cross-entropy of training pairs, accuracy of validation pairs."""

    model: Aligner
    corpus: Corpus
    size: int

    def batches(self) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        return self.corpus.train.batches(self.size)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        premises, hypotheses, labels = batch
        return F.cross_entropy(self.model(premises, hypotheses), labels)

    def valid(self) -> float:
        """Return the accuracy on validation pairs."""
        return accuracy(self.model, self.corpus.valid)


@torch.no_grad()
def accuracy(model: Aligner, pairs: Pairs) -> float:
    """Return the share of pairs whose class is found."""
    right = sum(
        int((model(premises, hypotheses).argmax(1) == labels).sum())
        for premises, hypotheses, labels in pairs.in_order(128)
    )
    return right / len(pairs)


@torch.no_grad()
def sparsity(model: Aligner, pairs: Pairs) -> Row:
    """Return shares of zeros and of partners, over the words of both sentences.

    A word of a sentence has as many partners as words of the other with weight.
    """
    counts, zeros, places = [], 0, 0
    spent = 0.0
    for premises, hypotheses, _ in pairs.in_order(64):
        first, second = model.encode(premises), model.encode(hypotheses)
        mask = (premises != PAD).unsqueeze(2) & (hypotheses != PAD).unsqueeze(1)
        scores = model.scores(first, second)
        start = time.process_time()
        weights = model.align(scores, mask, model.steps)
        spent += time.process_time() - start
        for share, known in zip(weights, (mask, mask.mT), strict=True):
            zeros += int((share[known] == 0).sum())
            places += int(known.sum())
            counts.append((share > 0).sum(2)[known.any(2)])
    partners = torch.cat(counts)
    return {
        "zero": round(zeros / places, 4),
        "partners": round(float(partners.double().mean()), 2),
        "one partner": round(float((partners == 1).double().mean()), 4),
        "no partner": round(float((partners == 0).double().mean()), 4),
        "milliseconds of 64 alignments": round(64e3 * spent / len(pairs), 2),
    }


def measure(corpus: Corpus, settings: Settings, seed: int, models: Path, method: str) -> Row:
    """Train a model, and evaluate its best epoch on both test parts."""
    words = len(corpus.vocabulary)
    place = folder(models, method, settings, seed, len(corpus.train), words)
    torch.manual_seed(seed)
    model = Aligner(words, settings.width, settings.dropout, method)
    task = Inference(model, corpus, settings.size)
    trained = Training(model, task, settings.schedule, place).finish()
    return {
        **trained,
        "test": round(accuracy(model, corpus.test), 4),
        "revised": round(accuracy(model, corpus.revised), 4),
        **sparsity(model, corpus.test),
    }


def main() -> None:
    """Parse the command line and run."""
    methods, seeds = options(__doc__, METHODS)
    corpus = snli(SETTINGS.least)
    for seed in seeds:
        make = partial(measure, corpus, SETTINGS, seed, MODELS)
        add_rows(make, methods, SETTINGS, seed, RESULTS)


if __name__ == "__main__":
    main()
