"""The language-model experiment on a text of a few words, without a dataset."""

import json
from pathlib import Path

import pytest
import torch

from experiments.language_model.run import (
    METHODS,
    Budget,
    LanguageModel,
    Text,
    batches,
    perplexity,
    race,
    run,
)

BUDGET = Budget(steps=30, batch=4, length=8, width=9, refresh=10, valid=400, lr=5e-2, dropout=0.0)


@pytest.fixture(scope="module")
def text() -> Text:
    """Each word says which comes next, but for one time in ten."""
    generator = torch.Generator().manual_seed(0)
    words = 40
    jump = torch.rand(4400, generator=generator) < 0.1
    anywhere = torch.randint(words, (4400,), generator=generator)
    tokens = [0]
    for wild, other in zip(jump.tolist(), anywhere.tolist(), strict=True):
        tokens.append(other if wild else (tokens[-1] + 1) % words)
    return Text(torch.tensor(tokens[:4000]), torch.tensor(tokens[4000:]), words)


def test_batches_continue_and_look_one_ahead() -> None:
    first, second = list(batches(torch.arange(10), 2, 2))
    assert first[0].tolist() == [[0, 5], [1, 6]]
    assert first[1].tolist() == [1, 6, 2, 7]
    assert second[0].tolist() == [[2, 7], [3, 8]]


def test_it_begins_as_the_unigram_model(text: Text) -> None:
    model = LanguageModel(text, BUDGET.width, BUDGET.dropout, sparse=True)
    with torch.no_grad():
        model.table[:, :-1] = 0
    log_p = (text.counts / len(text.train)).log()
    after = torch.cat([after for _, after in batches(text.valid, BUDGET.batch, BUDGET.length)])
    assert perplexity(model, text.valid, BUDGET) == pytest.approx(
        float((-log_p[after].mean()).exp()), rel=1e-5
    )


def test_every_method_learns_and_nothing_is_done_twice(text: Text, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    names = list(METHODS)
    run(text, names[:2], BUDGET, 1, results)
    begun = json.loads(results.read_text())
    run(text, names, BUDGET, 1, results)
    rows = json.loads(results.read_text())
    assert rows[:2] == begun
    assert [row["method"] for row in rows] == names
    for row in rows:  # a word drawn at random would leave 40
        assert row["perplexity"] < 20, row


def test_every_method_is_timed(text: Text) -> None:
    assert race(text, BUDGET, 1).keys() == METHODS.keys()
