"""Explainers against slow definitions, and the game on synthetic reviews."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("safetensors")
from experiments.early_stopping import Schedule
from experiments.explanation_game import layperson, run
from experiments.explanation_game import table as game_table
from experiments.explanation_game.classifier import MAPS, Classifier, Sets, decisions, sets
from experiments.explanation_game.explainers import (
    METHODS,
    attention,
    erasure,
    gradient,
    messages,
    people,
)
from experiments.explanation_game.layperson import DECAYS, choose, fit
from experiments.explanation_game.run import Game, measure
from experiments.methods import Settings, add_rows
from experiments.rationales.reviews import build
from experiments.record import Record
from experiments.translation.corpus import PAD, UNKNOWN

SETTINGS = Settings(12, 0.0, 16, 1, Schedule(2e-2, epochs=6, patience=3))
PLAIN = 20  # words without a class, behind the four special ones


def drawn(count: int, seed: int) -> Sets:
    """Nine words; one of the last six, three of each class, decides, and is marked."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    words, marked = [], []
    for label in labels.tolist():
        plain = 4 + torch.randperm(PLAIN, generator=generator)[:8]
        telling = 4 + PLAIN + 3 * label + torch.randint(3, (1,), generator=generator)
        words.append(torch.cat([plain, telling]))
        marked.append(words[-1] >= 4 + PLAIN)
    return Sets(words, marked, labels)


@pytest.fixture(scope="module")
def game() -> Game:
    return Game(4 + PLAIN + 6, drawn(320, 0), drawn(60, 1), drawn(60, 2))


def model_of(game: Game, name: str) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(game.vocabulary, 12, 0.0, MAPS[name]).eval()
    with torch.no_grad():
        model.query.weight.mul_(4)
    return model


def padded(game: Game) -> tuple[Tensor, Tensor]:
    """Two reviews, the first without its last two words."""
    words, _ = game.test.batch([0, 1])
    words[0, -2:] = PAD
    return words, torch.zeros_like(words, dtype=torch.bool)


def test_reviews_are_sets_of_known_words() -> None:
    corpus = build({
        "train": [([["b", "a"], ["b"]], "POS", [(2, 3)])],
        "valid": [([["new", "a"]], "NEG", [(0, 1)])], "test": [],
    }, least=1)  # fmt: skip
    a, b = corpus.vocabulary.numbers(["a", "b"])[:-1]
    train, valid = sets(corpus.train), sets(corpus.valid)
    assert train.words[0].tolist() == sorted([a, b])
    assert train.words[0][train.marked[0]].tolist() == [b]
    assert valid.words[0].tolist() == [a]
    assert UNKNOWN in corpus.valid.words[0].tolist()
    assert not valid.marked[0].any()


def test_erasure_is_that_of_the_classifier_without_the_word(game: Game) -> None:
    model = model_of(game, "softmax")
    words, marked = padded(game)
    found = erasure(model, words, marked)
    for row in range(2):
        known = words[row][words[row] != PAD]
        before = model(known.unsqueeze(0)).softmax(1)[0]
        decision = int(before.argmax())
        for place in range(len(known)):
            rest = torch.cat([known[:place], known[place + 1 :]])
            after = model(rest.unsqueeze(0)).softmax(1)[0, decision]
            expected = float((before[decision] - after).detach())
            assert float(found[row, place]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="sparse attention"):
        erasure(model_of(game, "sparsemax"), words, marked)


@pytest.mark.parametrize("name", MAPS)
def test_gradients_are_those_of_differences(game: Game, name: str) -> None:
    model = model_of(game, name).double()
    words, marked = padded(game)
    found = gradient(model, words, marked)
    vectors = model.embedding(words).detach()
    mask = words != PAD
    decision = model.classes(vectors, mask).argmax(1)
    slopes = torch.zeros_like(vectors)
    for place in range(words.shape[1]):
        for entry in range(12):
            change = torch.zeros_like(vectors)
            change[:, place, entry] = 1e-6
            high, low = (
                model.classes(vectors + sign * change, mask).log_softmax(1).detach()
                for sign in (1, -1)
            )
            slopes[:, place, entry] = ((high - low) / 2e-6).gather(1, decision[:, None])[:, 0]
    torch.testing.assert_close(found, slopes.norm(dim=2), atol=1e-5, rtol=1e-4)


def test_messages_are_the_best_words(game: Game) -> None:
    model = model_of(game, "sparsemax")
    sent = messages(attention, model, game.test, 3)
    assert len(sent) == len(game.test)
    for message, words in zip(sent, game.test.words, strict=True):
        weights, _ = model.attend(
            model.embedding(words.unsqueeze(0)), torch.ones(1, len(words)) > 0
        )
        best = weights[0].topk(3)
        assert set(message.tolist()) == set(words[best.indices[best.values > 0]].tolist())
    assert min(map(len, sent)) < 3
    for message, words, marked in zip(
        messages(people, model, game.test, 3), game.test.words, game.test.marked, strict=True
    ):
        assert message.tolist() == words[marked].tolist()


def test_a_layperson_learns_which_words_tell() -> None:
    sent = [torch.tensor(words) for words in ([5, 6], [5, 7], [8, 6], [8, 7])] * 8
    decided = torch.tensor([0, 0, 1, 1] * 8)
    layperson, decay = choose(9, (sent, decided), (sent, decided))
    assert decay in DECAYS
    assert layperson.guesses(sent).equal(decided)
    assert layperson.guesses([torch.tensor([8]), torch.tensor([5])]).tolist() == [1, 0]
    apart = (layperson.weight[6] - layperson.weight[7]).abs().max()
    assert apart < 0.1 * (layperson.weight[5] - layperson.weight[8]).abs().max()
    strong, weak = (fit(9, sent, decided, decay).weight.norm() for decay in (DECAYS[-1], DECAYS[0]))
    assert strong < weak
    none = layperson.scores([torch.tensor([], dtype=torch.long)])
    torch.testing.assert_close(none[0], layperson.bias)


def test_rows_are_added_once_and_attention_beats_chance(
    game: Game, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layperson, "STEPS", 40)
    monkeypatch.setattr(run, "WORDS", (1, 3))
    monkeypatch.setattr(game_table, "WORDS", (1, 3))
    results, models = tmp_path / "results.json", tmp_path / "models"
    methods = ["random", "people", "1.5-entmax", "erasure"]
    for _ in range(2):
        add_rows(partial(measure, game, SETTINGS, 0, models), methods, SETTINGS, 0, results)
    rows = {row["method"]: row for row in Record(results).rows()}
    assert [*rows] == methods
    assert all(row["accuracy"] > 0.85 for row in rows.values())
    for name in ("people", "1.5-entmax", "erasure"):
        assert rows[name]["success, 1 words"] > 0.85 > 0.75 > rows["random"]["success, 1 words"]
    assert rows["random"]["words with weight"] == 9 > rows["1.5-entmax"]["words with weight"]
    text = game_table.table([*rows.values()])
    assert "success, 3 words" in text
    assert [line.split(" | ")[0] for line in text.split("\n")[2:]] == [
        f"| {name}" for name in METHODS if name in rows
    ]


def test_decisions_are_in_the_order_of_reviews(game: Game) -> None:
    model = model_of(game, "1.5-entmax")
    alone = [int(model(words.unsqueeze(0)).argmax()) for words in game.test.words]
    assert decisions(model, game.test).tolist() == alone
