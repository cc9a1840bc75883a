"""The experiment with anchor tables in language models, on a text of a few words."""

import json
from pathlib import Path

import pytest
import torch

from experiments.ptb_language_model import table
from experiments.ptb_language_model.axes import anchored, sensitivity
from experiments.ptb_language_model.models import (
    Anchored,
    Axes,
    Budget,
    Coded,
    Dense,
    KSvd,
    LanguageModel,
    LowRank,
    Method,
    Nearest,
    coded,
    perplexity,
    table_of,
)
from experiments.ptb_language_model.run import METHODS, Text, Training, run, trained
from tests.pictures import has_colour

BUDGET = Budget(epochs=2, batch=4, length=8, width=16, samples=30, lr=5e-2, dropout=0.0)
WORDS = 40
SOME: dict[str, Method] = {
    "dense": Dense(),
    "anchors": Anchored(20, 6),
    "anchors, post-hoc": Anchored(20, 6, after=1.0),
    "low rank": LowRank(8),
    "hash": Nearest(20, 8),
    "k-SVD": KSvd(20, 8),
    "axes": Axes(8),
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


def test_it_begins_near_the_unigram_model(text: Text) -> None:
    model = LanguageModel(table_of(Dense(), WORDS, BUDGET.width), text.counts, BUDGET)
    assert perplexity(model, text.valid, BUDGET) == pytest.approx(WORDS, rel=0.05)


@pytest.mark.parametrize("anchors", [6, 20])
def test_anchors_take_over_a_dense_table_as_it_is(anchors: int) -> None:
    torch.manual_seed(0)
    table, root = torch.randn(WORDS, 6), torch.randn(6, 6)
    counts = torch.arange(WORDS, 0, -1.0)
    made = anchored(table, anchors, 6, metric=root @ root.T, counts=counts)
    torch.testing.assert_close(made.weight, table, rtol=1e-3, atol=1e-4)
    assert made.nonzeros() == (WORDS - (anchors - 6)) * 6 + anchors - 6


def test_fewer_anchors_than_dimensions_are_the_longest_axes() -> None:
    torch.manual_seed(0)
    table = torch.randn(WORDS, 3) @ torch.randn(3, 6)
    made = anchored(table, 3, 3, metric=torch.eye(6), counts=torch.ones(WORDS))
    torch.testing.assert_close(made.weight, table, rtol=1e-3, atol=1e-4)


def test_the_entries_that_stay_are_those_of_use() -> None:
    """Frequent words keep more, and what the metric does not see goes first."""
    torch.manual_seed(0)
    table, counts = torch.randn(WORDS, 6), torch.full((WORDS,), 100.0)
    counts[WORDS // 2 :] = 1.0
    metric = torch.diag(torch.tensor([1.0, 1, 1, 1e-4, 1e-4, 1e-4]))
    made = anchored(table, 6, 2, metric=metric, counts=counts)
    assert made.nonzeros() == 2 * WORDS
    kept = made.transform != 0
    assert kept[: WORDS // 2].sum() > 1.5 * kept[WORDS // 2 :].sum()
    error = (made.weight - table).square().mean(0)
    assert error[:3].max() < error[3:].min()


def test_sensitivity_is_what_errors_cost(text: Text, tmp_path: Path) -> None:
    """Errors of the same size hurt most along the metric's longest axis, least along the last."""
    training = trained(Dense(), text, BUDGET, 0, tmp_path)
    model, table = training.model, training.model.table.get_parameter("weight")
    metric = sensitivity(model, text.train, BUDGET, 0)
    assert metric.shape == (16, 16)
    torch.testing.assert_close(metric, metric.T)
    vectors = torch.linalg.eigh(metric).eigenvectors
    right, costs = table.detach().clone(), []
    signs = torch.randn(WORDS, 1, generator=torch.Generator().manual_seed(0))
    for direction in (vectors[:, 0], vectors[:, -1]):
        table.data = right
        cost = -perplexity(model, text.train, BUDGET)
        for way in (-1, 1):
            table.data = right + way * right.std() * signs * direction
            cost += perplexity(model, text.train, BUDGET) / 2
        costs.append(cost)
    assert costs[1] > 3 * abs(costs[0])


@pytest.mark.parametrize("method", [Nearest(20, 6), KSvd(20, 6), Axes(6)])
def test_a_code_with_room_for_everything_loses_little(method: Coded) -> None:
    table = torch.randn(WORDS, 6, generator=torch.Generator().manual_seed(0))
    made, parameters = coded(table, method, seed=0)
    torch.testing.assert_close(made, table, rtol=1e-3, atol=1e-3)
    assert parameters <= 20 * 6 + WORDS * 6


def test_every_method_learns_and_nothing_is_done_twice(text: Text, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    first = {"dense": SOME["dense"]}
    run(text, first, BUDGET, 0, results, tmp_path)
    begun = json.loads(results.read_text())
    run(text, SOME, BUDGET, 0, results, tmp_path)
    rows = json.loads(results.read_text())
    assert rows[:1] == begun
    assert [row["method"] for row in rows] == list(SOME)
    for row in rows:  # a word drawn at random would leave 40
        assert row["test"] < 20, row
    sizes = {row["method"]: row["parameters"] for row in rows}
    assert sizes["dense"] == WORDS * 16
    assert sizes["anchors"] <= 20 * 16 + 6 * WORDS
    assert sizes["low rank"] == 8 * (WORDS + 16)


@pytest.mark.parametrize("method", [Dense(), Anchored(20, 6, after=0.3)])
def test_a_training_goes_on_where_it_was_stopped(
    text: Text, tmp_path: Path, method: Method
) -> None:
    whole = trained(method, text, BUDGET, 0, tmp_path / "whole")
    begun = Training(method, text, BUDGET, 0)
    begun.epoch()
    begun.save(tmp_path)
    torch.manual_seed(1)
    resumed = Training(method, text, BUDGET, 0)
    resumed.load(tmp_path)
    assert 0 < resumed.step < resumed.steps
    resumed.epoch()
    assert resumed.step == whole.step == whole.steps
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, msg=name)


def test_rows_meant_to_be_small_are() -> None:
    """A fifth and a tenth of 10,000 vectors of 256 numbers."""
    dense = 10_000 * 256
    for name, share in (("anchors 256, 44 each", 5), ("anchors 256, 19 each", 10)):
        method = METHODS["ptb"][name]
        assert isinstance(method, Anchored)
        assert method.anchors * 256 + method.keep * 10_000 <= dense / share


def test_the_table_is_next_to_the_dense_row_of_the_same_seeds(tmp_path: Path) -> None:
    both = {"text": "ptb", "valid": 120.0, "seed": 0}
    rows = [
        {**both, "method": "anchors 256, 9 each", "parameters": 250, "test": 110.0},
        {**both, "method": "dense", "parameters": 1000, "test": 100.0},
        {**both, "method": "dense", "parameters": 1000, "test": 140.0, "seed": 1},
        {**both, "method": "anchors 256, 9 each, post-hoc", "parameters": 250, "test": 120.0},
        {**both, "text": "another", "method": "dense", "parameters": 1, "test": 1.0},
    ]
    lines = table.table(rows, "ptb")[2:]
    assert lines[0] == ["dense", "1,000", "1.0", "120.0", "120.0", "1.000", "2"]
    assert lines[1] == ["anchors 256, 9 each", "250", "4.0", "120.0", "110.0", "1.100", "1"]
    assert lines[2][-2] == "1.200"
    table.draw(rows, tmp_path / "figure.png")
    assert has_colour(tmp_path / "figure.png")
