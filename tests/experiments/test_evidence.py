"""The page of published tables, and the rows that it is computed from."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")
from experiments import readme
from experiments.evidence import __main__ as evidence
from experiments.evidence import fastvae_figures, fastvae_tables, published, rating_tables
from experiments.evidence.order import order
from experiments.evidence.page import page, paragraph
from experiments.evidence.published import (
    EXPERIMENTS,
    Cell,
    Column,
    Length,
    Measure,
    Method,
    Paper,
    Statement,
    Table,
    exactly,
    method_of,
    named,
    number,
)
from experiments.evidence.sentences import agreement, ratio, seeds, sentence, status
from experiments.evidence.tables import NOTHING_PUBLISHED, TABLES
from experiments.movielens_ratings.growth_sweep import PREFIX
from experiments.record import Row

AGAIN = "run `python -m experiments.evidence`, and commit what it writes"
WITH_ROWS = sorted(path.parent.name for path in EXPERIMENTS.glob("*/results.json"))
COMPARED = {table.experiment for table in TABLES}

# The committed page


def test_page_is_what_the_rows_give() -> None:
    assert evidence.PAGE.read_text() == page(), AGAIN


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_readme_is_what_the_rows_give(name: str) -> None:
    text = (EXPERIMENTS / name / "README.md").read_text()
    assert readme.insert(text, paragraph(name), evidence.MARKER) == text, AGAIN


def test_every_experiment_is_compared_or_listed() -> None:
    listed = set(NOTHING_PUBLISHED)
    assert not COMPARED & listed
    assert set(WITH_ROWS) <= COMPARED | listed, "see experiments/evidence/tables.py"


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_no_published_figure_of_an_experiment_is_left_out(name: str) -> None:
    """The first figure of each line that the README shows is that of a method on the page."""
    module = import_module(f"experiments.{name}.table")
    cells = [cell for table in TABLES if table.experiment == name for cell in table.cells]
    here = {figure for cell in cells for figure in cell.method.published}
    own = getattr(module, "PUBLISHED", {})
    if name == "multiple_instance_learning":
        own = {label: module.published(label) for label in own}
    assert set(first_figures(own)) <= here


def first_figures(figures: object) -> Iterator[float]:
    """The first figure of each line of a dictionary, also of one for each dataset."""
    if isinstance(figures, dict):
        for value in figures.values():
            yield from first_figures(value)
    elif isinstance(figures, tuple):
        yield from first_figures(figures[0])
    elif isinstance(figures, str):
        yield from [number(figures)[0]] if figures else []
    else:
        yield float(figures)  # type: ignore[arg-type]


def test_titles_are_different() -> None:
    titles = [(table.paper, table.number) for table in TABLES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.paper.cited}-{table.number}")
def test_nothing_is_said_without_rows(table: Table) -> None:
    assert [one.holds([]) for one in table.statements] == [None] * len(table.statements)
    assert not any(cell.method.chosen([], table.length) for cell in table.cells)
    if status(table.cells) == "not run":
        assert table.missing != Table.missing, "say why"


# Rows that are added later

EPOCHS = Length("epochs", 100, lambda row: row["epochs"])
PUBLISHED = {"a": 1.0, "b": 3.0, "c": 2.0}
SCORE = Measure("score", lambda row: row["score"], 1)


def compared(**options: object) -> Table:
    """A table of three methods, of which the second is ahead of the others as published."""
    methods = [Method(name, (figure,), exactly(name)) for name, figure in PUBLISHED.items()]
    table = Table(
        Paper("Somebody", "Something"), "Table 1", "a table", "tiny",
        (Column("data", tuple(methods), (SCORE,)),), EPOCHS, 5, missing="No time.",
    )  # fmt: skip
    return replace(table, **options)  # type: ignore[arg-type]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(published, "EXPERIMENTS", tmp_path)
    (tmp_path / "tiny").mkdir()

    def rows(*found: tuple[str, int, int, float]) -> None:
        fields = ("method", "seed", "epochs", "score")
        made = [dict(zip(fields, row, strict=True)) for row in found]
        (tmp_path / "tiny" / "results.json").write_text(json.dumps(made))

    return rows


def test_longer_runs_and_more_seeds_are_found(write: Callable[..., None]) -> None:
    table = compared()
    assert sentence(table) == "**not run**. No time."
    short = [("a", 0, 10, 4.0), ("b", 0, 10, 5.0)]
    write(*short)
    table = compared()
    assert (status(table.cells), ratio(table)) == ("no", "0 of 3")
    assert agreement(table).text() == "1 of 1 pairs, τ 1.00"
    assert agreement(table, long=True).text() == "–"
    write(*short, ("a", 0, 50, 6.0), ("a", 1, 50, 8.0), ("a", 1, 50, 9.0), ("c", 0, 49, 1.0))
    table = compared()
    assert table.cells[0].values == (7.5,)
    assert (status(table.cells), ratio(table), seeds(table)) == ("partly", "1 of 3", "1 to 2")
    assert agreement(table).text() == "1 of 3 pairs, τ -0.33"
    assert "100 epochs (ours 10 to 50); seeds: 1 to 2 (published 5)" in sentence(table)
    write(*((name, 0, 100, figure) for name, figure in PUBLISHED.items()))
    table = compared()
    assert status(table.cells) == "yes"
    assert agreement(table) == agreement(table, long=True)
    assert agreement(table).pairs.tau == 1
    text = page((table,))
    assert "**1** have every method" in text
    assert "| data | a | 1 | 1.0 |  | 1 | 100 |" in text


def test_statements_count_when_all_runs_are_long(write: Callable[..., None]) -> None:
    held = Statement("It holds", lambda rows: True)
    unknown = Statement("It is not known", lambda rows: None)
    write(("a", 0, 100, 1.0), ("b", 0, 10, 2.0), ("c", 0, 100, 0.0))
    table = compared(statements=(held, replace(held, holds=lambda rows: False), unknown))
    assert agreement(table).text().endswith("1 of 2 statements")
    assert agreement(table, long=True).decided == 0
    untrained = compared(length=None, statements=(held,))
    assert agreement(untrained, long=True).held == 1
    assert "have rows" in sentence(untrained)


def test_pairs_within_the_published_deviation_and_ties() -> None:
    figures = {"a": (1.0, 5.0), "b": (1.5, 4.0), "c": (4.0, 5.0)}  # published, ours
    column = Column("", (), (SCORE,))
    cells = [
        Cell(column, Method(name, (theirs,), error=0.5), [{"method": name, "score": ours}], None)
        for name, (theirs, ours) in figures.items()
    ]
    found = order(cells)
    assert (found.pairs, found.same, found.reverse) == (2, 1, 0)  # a and c are tied
    assert found.tau == 0.5
    assert order([*cells[:2], replace(cells[2], column=Column("", (), (SCORE,)))]).pairs == 0


def test_the_first_pattern_with_rows_counts() -> None:
    rows = [{"method": "ANT, 20"}, {"method": "dense"}]
    select = named("ANT, 50||ANT, 20||dense")
    assert select(rows) == rows[:1]
    assert select([*rows, {"method": "ANT, 50"}]) == [{"method": "ANT, 50"}]
    assert named("ANT")(rows) == []
    assert named(".*", seed=1)(rows) == []
    assert Method("m", ours=named(".*")).chosen(rows, None) == rows[:1]  # rows of one name only


# Which rows are compared with each other


def names(table: Table, rows: list[Row]) -> set[str]:
    cells = (
        Cell(c, m, m.chosen(rows, table.length), None) for c in table.columns for m in c.methods
    )
    return {method_of(row) for cell in cells for row in cell.rows}


def test_both_autoencoders_have_the_same_network() -> None:
    (table,) = fastvae_tables.TABLES
    both = ("full softmax", "multi-index, popularity")
    ours, published = (
        [{"data": "ml10m", "model": f"{network}, {name}", "epochs": 9} for name in both]
        for network in ("FastVAE", "published network")
    )
    ours_alone = {row["model"] for row in ours}
    assert names(table, ours) == names(table, [*ours, published[0]]) == ours_alone
    assert names(table, [*ours, *published]) == {row["model"] for row in published}


def test_all_samplers_of_a_figure_have_the_same_network() -> None:
    table = next(table for table in fastvae_figures.TABLES if table.number == "Figure 3")
    key = {"figure": "training", "codewords": 0, "NDCG@50": [0.1], "epochs": 9}
    ours = [
        {**key, "sampler": name, "samples": 200, "file": "figures.json"}
        for name in ("uniform", "popularity")
    ]
    assert names(table, ours) == {"uniform", "popularity"}
    published = {**key, "sampler": "uniform", "samples": 1000, "file": "paper_figures.json"}
    assert names(table, [*ours, published]) == {"uniform"}
    closeness = next(table for table in fastvae_figures.TABLES if table.number == "Figure 2")
    key = {"figure": "divergence", "model": "trained"}
    ours = [{**key, "sampler": name, "file": "figures.json"} for name in ("uniform", "popularity")]
    assert names(closeness, [*ours, {**ours[0], "file": "paper_figures.json"}]) == {"uniform"}


def test_number_of_anchors_is_compared_under_one_penalty() -> None:
    table = next(table for table in rating_tables.TABLES if table.number == "Figure 3")
    ours, fixed = ("NBANT", "grid, 4 and 4 anchors"), f"{PREFIX}published, fixed at 4"
    rows: list[Row] = [
        {"method": name, "split": "third", "objective": value, "recipe": {"epochs": 50}}
        for name, value in zip(
            (*ours, fixed, f"{PREFIX}published"), (1.02, 1.0, 2.0, 2.01), strict=True
        )
    ]
    assert names(table, rows[:2]) == set(ours)
    assert names(table, rows) == {fixed, f"{PREFIX}published"}
    assert [table.statements[0].holds(some) for some in (rows[:2], rows)] == [False, True]
