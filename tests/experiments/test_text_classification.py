"""The text classification experiment end to end, on small generated texts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.record import Record
from experiments.text_classification import run, tables
from experiments.text_classification.corpora import PADDING, Corpus, corpus
from experiments.text_classification.model import WIDTHS, TextCNN
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")
from experiments.text_classification import table

TINY = run.Budget(epochs=10, batch=32, dim=8, filters=4, lr=3e-2)
TOPICS = ("ball goal team win", "stock bank price trade", "chip code data net")


def texts(count: int = 180) -> Corpus:
    """Words of one of three topics, between words that say nothing."""
    generator = torch.Generator().manual_seed(0)
    made, labels = [], []
    for row in range(count):
        topic = TOPICS[row % 3].split()
        which = torch.randint(4, (6,), generator=generator).tolist()
        empty = torch.randint(12, (6,), generator=generator).tolist()
        made.append(
            " ".join(f"the{e} {topic[w].title()}," for w, e in zip(which, empty, strict=True))
        )
        labels.append(f"topic {row % 3}")
    parts = [
        "train" if row < 0.6 * count else "valid" if row < 0.8 * count else "test"
        for row in range(count)
    ]
    return corpus(made, labels, parts)


def related(made: Corpus, anchors: Tensor) -> run.ff.embeddings.Relations:
    """In the place of WordNet."""
    return tables.Near(width=2)(made, anchors)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Keep what is measured out of the folder of the experiment."""
    kept = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", kept)
    monkeypatch.setattr(table, "RECORD", kept)
    monkeypatch.setattr(run, "load", lambda name, length: texts())
    monkeypatch.setattr(run, "BUDGETS", dict.fromkeys(run.BUDGETS, TINY))
    small = {}
    for name, method in run.METHODS.items():
        if isinstance(method, tables.Anchored):
            knowledge = related if method.knowledge is tables.wordnet else method.knowledge
            method = replace(method, anchors=6, keep=method.keep and 3, knowledge=knowledge)
        elif isinstance(method, tables.Mixed):
            method = replace(method, anchors=2)
        elif not isinstance(method, tables.Dense):
            method = replace(method, times=4)
        small[name] = method
    monkeypatch.setattr(run, "METHODS", small)
    return kept


def test_a_vocabulary_is_that_of_training() -> None:
    made = corpus(["b a A", "a new", "new"], ["x", "y", "x"], ["train", "test", "test"], length=3)
    assert made.vocabulary == ["", "a", "b"]
    assert made.counts.tolist() == [0, 2, 1]
    assert [words.tolist() for words in made.test.words] == [[1], [PADDING]]
    assert (made.test.labels.tolist(), made.classes) == ([1, 0], 2)


def test_batches_hold_every_text_once() -> None:
    train = texts().train
    for generator in (None, torch.Generator().manual_seed(0)):
        batches = list(train.batches(32, generator))
        assert max(len(words) for words, _ in batches) == 32
        rows = [
            (tuple(row[row != PADDING].tolist()), int(label))
            for words, labels in batches
            for row, label in zip(words, labels, strict=True)
        ]
        own = [tuple(words.tolist()) for words in train.words]
        assert sorted(rows) == sorted(zip(own, train.labels.tolist(), strict=True))


@pytest.mark.parametrize("length", [2, 9])
def test_the_model_is_a_convolution(length: int) -> None:
    torch.manual_seed(0)
    vectors = nn.Embedding(50, 8, padding_idx=PADDING)
    model = TextCNN(vectors, 8, 3, filters=6).double().eval()
    words = torch.randint(50, (7, length))
    padded = vectors(F.pad(words, (0, max(0, max(WIDTHS) - length)))).transpose(1, 2)
    maxima = [
        F.conv1d(padded, taps.permute(2, 0, 1), bias).amax(2).relu()
        for taps, bias in zip(model.taps.split(WIDTHS, 1), model.bias.split(6), strict=True)
    ]
    expected = model.output(torch.cat(maxima, 1))
    torch.testing.assert_close(model(words), expected)
    weights = torch.randn_like(expected)
    params = list(model.parameters())
    ours = torch.autograd.grad(model(words), params, weights)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, params, weights))


@pytest.mark.parametrize("method", run.METHODS)
def test_every_table_gives_vectors_and_zero_for_padding(record: Record, method: str) -> None:
    made = texts()
    held = run.METHODS[method].make(made, 8, torch.Generator().manual_seed(0))
    vectors = held(torch.arange(len(made.vocabulary)))
    assert vectors.shape == (len(made.vocabulary), 8)
    assert not vectors[PADDING].any()
    assert vectors[1:10].abs().sum(1).gt(0).any()
    whole = len(made.vocabulary) * 8
    assert tables.size(held) == whole if method == run.DENSE else tables.size(held) < whole


def test_results_grow_and_are_shown(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.run("mr", [*run.METHODS], seeds=1)
    first = record.path.read_text()
    run.run("mr", [*run.METHODS], seeds=1)
    assert record.path.read_text() == first
    rows = {row["method"]: row for row in record.rows(data="mr", seed=0)}
    assert rows[run.DENSE]["times fewer"] == 1
    assert rows[run.DENSE]["test"] > 80
    anchored = rows["ANT, 20 frequent"]
    assert anchored["test"] > 80
    assert anchored["numbers"] == 6 * 8 + anchored["non-zeros"]
    assert anchored["non-zeros"] <= 3 * anchored["words"]
    readme = tmp_path / "README.md"
    parts = [f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("table", "long")]
    readme.write_text("".join(parts))
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "LONG", Record(tmp_path / "long.json"))
    record_of_long(table.LONG)
    monkeypatch.setattr(table, "PICTURE", tmp_path / "sizes.png")
    table.main()
    assert all(f"| {method} |" in readme.read_text() for method in run.METHODS)
    assert (
        "| dense | 91.6, 15.87 (1x) | 90.50, 0.500, 2 seeds | 20, 20 | 7, 9 |" in readme.read_text()
    )
    assert "| TF-IDF | 91.0, 1.28 (12x) | not measured |" in readme.read_text()
    assert has_colour(tmp_path / "sizes.png")


def record_of_long(long: Record) -> None:
    """Two seeds of the dense table."""
    row = {"data": "ag_news_partial", "method": "dense", "epochs": 20, "numbers": 500_000}
    long.add([{**row, "test": 90.0, "epoch": 7, "times fewer": 1.0}])
    long.add([{**row, "test": 91.0, "epoch": 9, "times fewer": 1.0}])


def test_no_model_is_tested_but_the_one_that_validation_chose(record: Record) -> None:
    made = texts()
    row = run.train(run.METHODS[run.DENSE], made, replace(TINY, epochs=2), seed=0)
    assert len(row["valid"]) == 2
    assert row["valid"][row["epoch"] - 1] == max(row["valid"])
