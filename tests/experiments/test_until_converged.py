"""Language models trained until validation stops falling, on a text of a few words."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fewfold as ff
from experiments.ptb_language_model import until_converged
from experiments.ptb_language_model.converged_table import converged, softmaxes
from experiments.ptb_language_model.models import KSvd, perplexity, size
from experiments.ptb_language_model.regularised_lstm import DropLSTM, Settings, locked
from experiments.ptb_language_model.table_kinds import (
    AnchorTable,
    Code,
    Cut,
    DenseTable,
    HashedTable,
    Kind,
    Largest,
    LowRankTable,
    Trained,
)
from experiments.ptb_language_model.texts import Text
from experiments.ptb_language_model.until_converged import Training, agreement, run, trained

WORDS = 40
SETTINGS = Settings(
    least=3, most=3, batch=4, length=8, width=16, samples=30, lr=3e-2, clip=1.0, dropout=0.0,
    word=0.0, input=0.0, between=0.0, weight=0.0, activation=0.01, change=0.01,
)  # fmt: skip
ANCHORS = AnchorTable(20, "frequency", l1=1e-4)
SOME: dict[str, Kind] = {
    "dense": DenseTable(),
    "cut": Cut(DenseTable(), 16, 6),
    "k-SVD": Code(DenseTable(), KSvd(20, 8)),
    "low rank": LowRankTable(8),
    "hashed": HashedTable(30, 5),
    "ANT": ANCHORS,
    "ANT, largest": Largest(ANCHORS, 8),
}


@pytest.fixture(scope="module")
def text() -> Text:
    """Each word says which comes next, but for one time in ten."""
    generator = torch.Generator().manual_seed(0)
    jump = torch.rand(2200, generator=generator) < 0.1
    anywhere = torch.randint(WORDS, (2200,), generator=generator)
    tokens = [0]
    for wild, other in zip(jump.tolist(), anywhere.tolist(), strict=True):
        tokens.append(other if wild else (tokens[-1] + 1) % WORDS)
    every = torch.tensor(tokens)
    return Text("tiny", WORDS, every[:1600], every[1600:1900], every[1900:])


def test_every_method_learns_and_nothing_is_done_twice(
    text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_converged, "METHODS", SOME)
    results = tmp_path / "converged.json"
    run(text, list(SOME), SETTINGS, 0, results, tmp_path)
    first = results.read_text()
    run(text, list(SOME), SETTINGS, 0, results, tmp_path)
    assert results.read_text() == first
    rows = {row["method"]: row for row in json.loads(first)}
    assert list(rows) == list(SOME)
    for row in rows.values():  # a word drawn at random would leave 40
        assert row["test"] < 20, row
        assert row["epochs"] == len(row["curve"]) == 3
    numbers = {name: row["parameters"] for name, row in rows.items()}
    assert numbers["dense"] == WORDS * 16
    assert numbers["cut"] <= 16 * 16 + 6 * WORDS
    assert numbers["hashed"] == 35 * 16
    ant = rows["ANT"]
    assert ant["sizes"][ant["epoch"] - 1] == numbers["ANT"] < 20 * 16 + 20 * WORDS
    assert numbers["ANT, largest"] == 20 * 16 + 8 * WORDS


def test_the_model_of_the_best_epoch_is_measured(text: Text, tmp_path: Path) -> None:
    """A rate that is far too high makes later epochs worse, and is halved after each."""
    settings = replace(SETTINGS, lr=0.3, least=2, most=9, patience=2)
    training = trained(DenseTable(), text, settings, 0, tmp_path)
    best = min(training.curve)
    assert perplexity(training.model, text.valid, settings) == pytest.approx(best, abs=0.01)
    worse = sum(
        value >= min(training.curve[:epoch], default=torch.inf) * (1 - settings.enough)
        for epoch, value in enumerate(training.curve)
    )
    assert worse > 0
    for optimizer, first in zip(training.optimizers, (0.9, 0.3), strict=True):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(first * 0.5**worse)


@pytest.mark.parametrize(
    ("curve", "done"),
    [
        ([9.0, 8.0], False),
        ([9.0, 8.0, 8.5, 7.9999], True),  # not better by enough
        ([8.0, 9.0, 9.0], True),
        ([8.0, 9.0], False),  # fewer than the least number of epochs
        ([9.0, 8.0, 7.0, 6.0, 5.0], True),  # the largest number
    ],
)
def test_when_a_training_stops(text: Text, curve: list[float], done: bool) -> None:
    settings = replace(SETTINGS, least=3, most=5, patience=2)
    training = Training(DenseTable(), text, settings, 0)
    training.curve = curve
    assert training.done == done


@pytest.mark.parametrize("method", [DenseTable(), ANCHORS])
def test_a_training_goes_on_where_it_was_stopped(
    text: Text, tmp_path: Path, method: Trained
) -> None:
    settings = replace(SETTINGS, word=0.1, weight=0.5, dropout=0.4)
    begun = Training(method, text, settings, 0)
    begun.epoch()
    begun.save(tmp_path / "state.pt")
    begun.epoch()
    whole = Training(method, text, settings, 1)
    whole.load(tmp_path / "state.pt")
    whole.epoch()
    assert whole.curve == begun.curve
    assert whole.sizes == begun.sizes
    for name, value in begun.model.state_dict().items():
        torch.testing.assert_close(whole.model.state_dict()[name], value, msg=name)


def test_both_softmaxes_are_compared_on_the_same_batches(
    text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_converged, "METHODS", SOME)
    agreement(text, ["dense"], SETTINGS, 2, 0, tmp_path / "softmax.json", tmp_path)
    rows = json.loads((tmp_path / "softmax.json").read_text())
    assert [row["budget"]["samples"] for row in rows] == [30, None]
    assert [row["epochs"] for row in rows] == [2, 2]
    assert rows[0]["valid"] == pytest.approx(rows[1]["valid"], rel=0.2)
    assert rows[0]["valid"] != rows[1]["valid"]


def test_anchors_are_the_words_that_are_asked_for(text: Text, monkeypatch) -> None:
    known = ff.embeddings.Relations.from_edges(
        [(7, 0)], objects=WORDS, anchors=text.counts.argsort(descending=True, stable=True)[:6]
    )
    monkeypatch.setattr(ff.embeddings.Relations, "from_wordnet", lambda words, path, anchors: known)
    monkeypatch.setattr("experiments.ptb_language_model.table_kinds.wordnet_folder", lambda: None)
    made = AnchorTable(6, "frequency", wordnet=True).make(text, SETTINGS, 0)
    table = made.table
    assert isinstance(table, ff.AnchorEmbedding)
    chosen = text.counts.argsort(descending=True, stable=True)[:6]
    assert torch.equal(table.transform[chosen], torch.eye(6))
    assert made.shared == [table.anchors]
    basis = AnchorTable(6, "random").make(text, SETTINGS, 0).table
    assert basis.weight.std().detach().item() == pytest.approx(0.1, rel=0.5)
    spread = AnchorTable(6, "clustering").make(text, SETTINGS, 0).table
    assert size(spread) > 6 * 16
    assert (spread.weight.norm(dim=1) > 0).all()


def test_a_lstm_without_dropout_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = DropLSTM(6, 0.5, 0.5).eval(), torch.nn.LSTM(6, 6, 2)
    for depth, layer in enumerate(ours.layers):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            layer.get_parameter(f"{name}_l0").data = theirs.get_parameter(f"{name}_l{depth}").data
    words = torch.randn(5, 3, 6)
    for state in (None, (torch.randn(2, 3, 6), torch.randn(2, 3, 6))):
        hidden, (h, c) = ours(words, state)
        expected, (last, cell) = theirs(words, state)
        for mine, other in zip((hidden, h, c), (expected, last, cell), strict=True):
            torch.testing.assert_close(mine, other)
    assert not torch.equal(ours.train()(words, None)[0], ours(words, None)[0])


def test_locked_dropout_is_the_same_at_every_position() -> None:
    torch.manual_seed(0)
    out = locked(torch.ones(4, 3, 50), 0.5)
    assert torch.equal(out, out[:1].expand_as(out))
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_the_tables_compare_with_the_dense_table_of_the_same_softmax() -> None:
    def row(method: str, samples: int | None, valid: float, seed: int = 0) -> dict:
        return {
            "method": method, "settings": {"of": method}, "seed": seed, "valid": valid, "epoch": 3,
            "budget": {"samples": samples}, "parameters": 1000 if method == "dense" else 250,
            "test": valid - 20, "epochs": 20 + seed,
        }  # fmt: skip

    ant = "ANT 500 random"
    rows = [row("dense", 1000, 120.0), row(ant, 1000, 130.0), row("dense", 1000, 140.0, 1)]
    rows += [row(ant, None, 145.0), row(ant, 1000, 150.0, 1)]
    _, _, dense, sampled, full = converged(rows)
    assert dense == ["dense", "sampled", "70.3, 2.56 M", "1,000", "1.0", "130.0", "110.0", "1.000",
                     "3", "20-21", "2"]  # fmt: skip
    assert sampled[3:8] == ["250", "4.0", "140.0", "120.0", "1.091"]
    assert full[1:8] == ["full", "77.2, 0.31 M", "250", "", "145.0", "125.0", ""]
    assert softmaxes(rows)[2:] == [[ant, "20", "0", "130.0", "145.0", "0.897", "250", "250"]]
