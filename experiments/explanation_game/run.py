"""The explanation game on movie reviews: how often a layperson guesses a classifier's decision.

``python -m experiments.explanation_game.run`` adds the rows that are missing to results.json. It
may be stopped and started again: classifiers are kept after every epoch in build/explanation_game.
``--method erasure --seed 2`` makes one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.early_stopping import Schedule, Training
from experiments.explanation_game.classifier import MAPS, Classifier, Sets, decisions, sets
from experiments.explanation_game.explainers import METHODS, attention, messages
from experiments.explanation_game.layperson import choose
from experiments.methods import Settings, add_rows, folder, options
from experiments.rationales.reviews import Corpus, movies
from experiments.record import Row

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "explanation_game"
SETTINGS = Settings(100, 0.3, 16, 3, Schedule(2e-3, epochs=8, patience=2))
WORDS = (5, 10, 20)  # at most, in a message


@dataclass(frozen=True)
class Game:
    """Training, validation and test reviews as sets of words, and the number of words."""

    vocabulary: int
    train: Sets
    valid: Sets
    test: Sets

    @classmethod
    def of(cls, corpus: Corpus) -> "Game":
        """Return the game of a corpus."""
        parts = (sets(part) for part in (corpus.train, corpus.valid, corpus.test))
        return cls(len(corpus.vocabulary), *parts)


@dataclass(frozen=True)
class Deciding:
    """The task of the classifier: cross-entropy on training reviews, accuracy on validation."""

    model: Classifier
    game: Game
    size: int

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of an epoch."""
        return self.game.train.batches(self.size)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss of a batch."""
        words, labels = batch
        return F.cross_entropy(self.model(words), labels)

    def valid(self) -> float:
        """Return the accuracy on validation reviews."""
        return _share(decisions(self.model, self.game.valid), self.game.valid.labels)


def _share(found: Tensor, right: Tensor) -> float:
    return round(float((found == right).double().mean()), 4)


def trained(
    game: Game, settings: Settings, seed: int, models: Path, name: str
) -> tuple[Classifier, Row]:
    """Return a trained classifier with this map, the same for all of its explainers."""
    place = folder(models, name, settings, seed, len(game.train), game.vocabulary)
    torch.manual_seed(seed)
    model = Classifier(game.vocabulary, settings.width, settings.dropout, MAPS[name])
    training = Training(model, Deciding(model, game, settings.size), settings.schedule, place)
    return model, training.finish()


def measure(game: Game, settings: Settings, seed: int, models: Path, method: str) -> Row:
    """Train classifier and layperson, and play on the test reviews."""
    name, explain = METHODS[method]
    model, row = trained(game, settings, seed, models, name)
    parts = game.train, game.valid, game.test
    decided = [decisions(model, part) for part in parts]
    row["accuracy"] = _share(decided[2], game.test.labels)
    everything = messages(attention, model, game.test, game.vocabulary)
    row["words with weight"] = round(sum(map(len, everything)) / len(everything), 1)
    torch.manual_seed(seed)  # random words do not depend on whether the model was there
    for k in WORDS:
        sent = [messages(explain, model, part, k) for part in parts]
        layperson, decay = choose(game.vocabulary, (sent[0], decided[0]), (sent[1], decided[1]))
        guesses = layperson.guesses(sent[2])
        row[f"success, {k} words"] = _share(guesses, decided[2])
        row[f"success of validation, {k} words"] = _share(layperson.guesses(sent[1]), decided[1])
        row[f"layperson's accuracy, {k} words"] = _share(guesses, game.test.labels)
        row[f"decay, {k} words"] = decay
    return row


def main() -> None:
    """Parse the command line and run."""
    methods, seeds = options(__doc__, METHODS)
    game = Game.of(movies(SETTINGS.least))
    for seed in seeds:
        make = partial(measure, game, SETTINGS, seed, MODELS)
        add_rows(make, methods, SETTINGS, seed, RESULTS)


if __name__ == "__main__":
    main()
