"""The game with mixed messages end to end."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from experiments.mixed_communication import run, table
from experiments.mixed_communication.methods import METHODS, Method
from experiments.record import Record, Row
from experiments.signalling_game import data
from experiments.signalling_game.data import Games
from experiments.signalling_game.run import Budget, Run
from tests.pictures import has_colour

pytest.importorskip("safetensors")
SIZES = {"symbols": 12, "embedding": 8, "hidden": 16}
TINY = Budget(epochs=2, batches=5, games=16, candidates=4, valid=64, test=64, sizes=SIZES)


def games() -> Games:
    """Images of six classes which are easy to tell apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (120,), generator=generator)
    noise = torch.rand(120, 6, generator=generator)
    return data.gather(4 * F.one_hot(labels, 6).float() + noise, labels)


@pytest.mark.parametrize("name", METHODS)
def test_a_message_is_a_point_of_the_simplex(name: str) -> None:
    scores = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)).requires_grad_()
    message = METHODS[name].message(scores, 0, torch.Generator().manual_seed(1))
    torch.testing.assert_close(message.sum(1), torch.ones(50))
    assert (message >= 0).all()
    symbols = (message > 0).sum(1).float()
    if name == "straight-through":
        assert (symbols == 1).all()
    elif name == "Gumbel-softmax":
        assert (symbols == 12).all()
    else:
        assert 1 < symbols.mean() < 12
    (slope,) = torch.autograd.grad(message.square().sum(), scores)
    assert slope.isfinite().all()
    assert slope.any()
    again = METHODS[name].message(scores, 0, torch.Generator().manual_seed(1))
    assert message.equal(again)


@pytest.mark.parametrize("name", ["Gumbel-softmax", "Gaussian-sparsemax"])
def test_games_are_learned(name: str) -> None:
    method = Method(METHODS[name].message, lr=2e-2)
    played = Run(method, 6, replace(TINY, batches=60), seed=0)
    for _ in range(8):
        played.epoch(games(), games())
    assert played.curve[-1]["success"] > 45  # by chance 25
    assert 1 <= played.curve[-1]["calls"] <= 12


def test_rows_are_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(tmp_path / "results.json")
    monkeypatch.setattr(run, "RECORD", record)
    monkeypatch.setattr(run, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(data, "load", lambda name, part: games())
    for _ in range(2):
        run.run("mnist", [*METHODS], [0], TINY)
    rows = record.rows()
    assert [row["method"] for row in rows] == [*METHODS]
    symbols = {row["method"]: row["symbols"] for row in rows}
    assert (symbols["Gumbel-softmax"], symbols["straight-through"]) == (12, 1)
    assert 1 <= symbols["Gaussian-sparsemax"] < 12
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    monkeypatch.setattr(table, "RECORD", record)
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "PICTURE", tmp_path / "curves.png")
    table.main()
    text = readme.read_text()
    assert all(f"| {method} | {table.PUBLISHED[method][0]} |" in text for method in METHODS)
    assert has_colour(tmp_path / "curves.png")


def test_the_rate_that_wins_in_validation_is_shown() -> None:
    def row(epochs: int, lr: float, valid: float, test: float) -> Row:
        key = {"data": "mnist", "method": "hard concrete", "epochs": epochs, "lr": lr}
        found = {"success": test, "best": test, "symbols": 3.0}
        return {**key, **found, "curve": {"success": [99.0, valid]}}

    rows = [row(2, 1e-3, 50.0, 90.0), row(2, 5e-3, 60.0, 40.0), row(1, 1e-3, 31.5, 32.0)]
    text = table.table(rows)
    published = "| hard concrete | 76.07 ± 7.76 | 21.43 ± 17.56 |"
    assert f"{published} 40.00 | 40.00 | 3.00 | 2 | 1 | 0.005 |" in text
    assert "90.00" not in text
    assert "| hard concrete | 50.0 | 60.0 |" in text
    assert "31.5" not in text  # one rate is no choice
