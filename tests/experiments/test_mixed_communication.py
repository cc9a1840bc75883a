"""Messages of several symbols are sent, heard and learned from."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from experiments.mixed_communication import run
from experiments.mixed_communication.methods import METHODS, Method
from experiments.record import Record
from experiments.signalling_game import data
from experiments.signalling_game.data import Games
from experiments.signalling_game.run import Budget, Run

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
