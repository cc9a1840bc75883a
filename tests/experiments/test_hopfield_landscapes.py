"""Figures of energy landscapes, and counts of metastable states."""

import json
from pathlib import Path

import pytest
import torch

import fewfold as ff
from experiments.hopfield_landscapes import run
from experiments.record import Record
from tests.pictures import has_colour

pytest.importorskip("matplotlib")
from experiments.hopfield_landscapes import table


def corners() -> torch.Tensor:
    return torch.cat([torch.eye(6), -torch.eye(6)])


def test_sharp_memories_hold_one_pattern_and_subsets_k() -> None:
    queries = corners() + 0.01 * torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    for name in ("softmax", "1.5-entmax", "sparsemax", "normmax 2", "normmax 5"):
        assert run.sizes(queries, corners(), run.MAPS[name], 50.0).tolist() == [1] * 12
    for k in (2, 4):
        assert (run.sizes(queries, corners(), ff.Subset(k), 50.0) >= k).all()


def test_a_dull_memory_holds_everything() -> None:
    sizes = run.sizes(corners(), corners(), run.MAPS["1.5-entmax"], 0.01)
    assert sizes.tolist() == [12] * 12


@pytest.mark.parametrize("name", run.MAPS)
@pytest.mark.parametrize("few", [0.0, 1.0])
def test_sizes_are_those_of_the_retrieved_states(
    name: str, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FEW", few)  # dense products, and those of positive weights
    generator = torch.Generator().manual_seed(1)
    memory = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    queries, omega = torch.randn(30, 5, generator=generator, dtype=torch.float64), run.MAPS[name]
    for steps in (1, 3):
        energy = ff.FenchelYoung(omega, 0.7)
        if steps > 1:
            state = ff.hopfield_retrieve(queries, memory, energy, max_steps=steps - 1).state
        else:
            state = queries
        least = run.SOFTMAX_THRESHOLD if name == "softmax" else 0.0
        expected = (energy.probs(state, memory) > least).sum(1)
        assert run.sizes(queries, memory, omega, 0.7, steps).equal(expected)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    kept = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", kept)
    monkeypatch.setattr(table, "RECORD", kept)
    monkeypatch.setattr(run, "digits", lambda part: corners())
    return kept


def test_rows_are_added_once_and_told(record: Record, tmp_path: Path) -> None:
    for _ in range(2):
        run.run(["sparsemax", "2-subsets"], [1.0], 12)
    assert len(record.rows()) == 2
    row = record.rows(map="sparsemax")[0]
    assert sum(row["per cent"]) == pytest.approx(100, abs=0.1)
    assert row["per cent"][1] == 100
    assert "| 1 | sparsemax | 12 |  | 100.0 |" in table.table(record.rows())
    path = tmp_path / "states.png"
    table.readme.keep(table.states(record.rows()), path)
    assert has_colour(path)


def test_the_plane_is_drawn(tmp_path: Path) -> None:
    for draw in (table.basins, table.contours):
        table.readme.keep(draw(12), tmp_path / "plane.png")
        assert has_colour(tmp_path / "plane.png")


def test_what_is_committed_is_whole() -> None:
    rows = json.loads(Path(table.HERE / "results.json").read_text())
    assert {(row["map"], row["beta"]) for row in rows} == {
        (name, beta) for name in run.MAPS for beta in run.BETAS
    }
