"""A sender tells a receiver, by one of 256 symbols, which of sixteen images it sees.

``python -m experiments.signalling_game.run`` adds the rows that are missing to results.json:
``--method sparse --seed 322 --epochs 100`` some of them, ``--data mnist`` those of other images,
``--one-class`` those of games whose images are all of one class, ``--lr 0.005 --entropy 0.05``
those of another learning rate or reward of an even choice, ``--full`` those of the published
length. It may be stopped and started again: a run on its way is kept in build/signalling_game, and
goes on as if it had never stopped.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments import checkpoint, datasets
from experiments.arguments import add_epochs
from experiments.record import Record, Row, origin
from experiments.signalling_game import data
from experiments.signalling_game.data import Games
from experiments.signalling_game.methods import METHODS
from fewfold import _progress

HERE = Path(__file__).parent
RECORD = Record(HERE / "results.json")
RUNS = HERE.parents[1] / "build" / "signalling_game"


@dataclass(frozen=True)
class Budget:
    """How much of everything."""

    epochs: int = 100
    batches: int = 100
    games: int = 64
    candidates: int = 16
    valid: int = 1024
    test: int = 9984
    sizes: dict[str, int] = field(default_factory=dict)


FULL = 500  # epochs, as published


class Playable(Protocol):
    """What a run is of: a learning rate, and players who learn with it.

    Players have `play` and `success`, as those of `methods.py` have.
    """

    @property
    def lr(self) -> float: ...

    def players(self, dim: int, **sizes: int) -> Any:
        """Before training, for images of this dimension."""


class Run:
    """A method on its way: players, their optimiser, chance, and what was measured."""

    def __init__(self, method: Playable, dim: int, budget: Budget, seed: int) -> None:
        torch.manual_seed(seed)
        self.budget = budget
        self.players = method.players(dim, **budget.sizes)
        self.optimizer = torch.optim.Adam(self.players.parameters(), method.lr, fused=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.curve: list[dict[str, float]] = []

    @property
    def step(self) -> int:
        """How many were made."""
        return len(self.curve) * self.budget.batches

    def epoch(self, games: Games, valid: Games) -> None:
        """Learn from some batches, and measure."""
        began, calls, start = time.perf_counter(), [], self.step
        self.players.train()
        for step in range(start, start + self.budget.batches):
            batch = games.draw(self.budget.games, self.budget.candidates, self.generator)
            loss, asked = self.players.play(batch, step, self.generator)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            calls.append(asked)
        seconds = time.perf_counter() - began
        asked = torch.cat(calls).float()
        low, high = asked.quantile(torch.tensor([0.1, 0.9])).tolist()
        end = start + self.budget.batches
        found = self.measure(valid, self.budget.valid, data.VALID_SEED, end)
        spent = {"calls": float(asked.mean()), "low": low, "high": high, "seconds": seconds}
        self.curve.append({name: round(x, 4) for name, x in {**found, **spent}.items()})

    def measure(self, games: Games, count: int, seed: int, step: int) -> dict[str, float]:
        """Per cent of some games, always the same ones, that are won after so many steps."""
        self.players.eval()
        generator = torch.Generator().manual_seed(seed)
        parts: list[tuple[Tensor, ...]] = []
        for _ in range(count // self.budget.games):
            batch = games.draw(self.budget.games, self.budget.candidates, generator)
            parts.append(self.players.success(batch, step, generator))
        won, best, calls = (torch.cat(part).float() for part in zip(*parts, strict=True))
        return {
            "success": 100 * float(won.mean()),
            "best": 100 * float(best.mean()),
            "calls at the end": float(calls.mean()),
        }

    def save(self, path: Path) -> None:
        """All of it, in one file."""
        told = {"curve": self.curve}
        checkpoint.save(path, self.players, self.optimizer, self.generator, told)

    def load(self, path: Path) -> None:
        """Go on from what was saved."""
        told = checkpoint.load(path, self.players, self.optimizer, self.generator)
        self.curve = told["curve"]


def train(
    name: str, method: Playable, games: tuple[Games, Games], budget: Budget, seed: int, kept: Path
) -> Row:
    """A row: how many games of test images are won after the last epoch, and the way there."""
    train_games, test_games = games
    run = Run(method, train_games.features.shape[1], budget, seed)
    if kept.exists():
        run.load(kept)
    if len(run.curve) > budget.epochs:
        raise ValueError(f"{kept} has had {len(run.curve)} epochs, more than {budget.epochs}")
    while len(run.curve) < budget.epochs:
        run.epoch(train_games, train_games)
        last = run.curve[-1]
        said = f"{name}: epoch {len(run.curve)} of {budget.epochs}, {last['success']:.1f} %, "
        said += f"{last['calls']:.2f} calls per game, {last['seconds']:.1f} s"
        _progress.line(said)
        if len(run.curve) % 5 == 0 or len(run.curve) == budget.epochs:
            run.save(kept)
            print(said, flush=True)
    _progress.line("")
    found = run.measure(test_games, budget.test, data.TEST_SEED, run.step)
    names = ("success", "best", "calls", "low", "high")
    return {
        **{name: round(x, 2) for name, x in found.items()},
        "seconds of training": round(sum(point["seconds"] for point in run.curve), 1),
        "curve": {name: [round(point[name], 2) for point in run.curve] for name in names},
    }


def run(
    name: str,
    chosen: list[str],
    seeds: list[int],
    budget: Budget,
    *,
    one_class: bool = False,
    settings: Sequence[dict[str, Any]] = ({},),
) -> None:
    """Add the rows that are not there yet; settings that are not given are the method's own."""
    loaded: tuple[Games, Games] | None = None
    for seed, other in product(seeds, settings):
        for method in chosen:
            own = replace(METHODS[method], **other)
            key: dict[str, Any] = {"data": name, "one class": one_class, "method": method}
            key |= {"seed": seed, "epochs": budget.epochs, "lr": own.lr, "entropy": own.entropy}
            if RECORD.rows(**key):
                continue
            if loaded is None:
                train_games, test_games = (
                    data.load(name, part, one_class=one_class) for part in ("train", "test")
                )
                loaded = train_games, test_games
            row = train(method, own, loaded, budget, seed, RUNS / file_name(key))
            RECORD.add([{**key, **row, **origin()}])
            shown = {name: row[name] for name in ("success", "best", "calls at the end")}
            print(key, shown, flush=True)


def file_name(key: dict[str, Any]) -> str:
    """Of the state of a run: more epochs go on from fewer."""
    told = (str(value) for name, value in key.items() if name != "epochs")
    return "-".join(told).replace("/", "").replace(" ", "-") + ".safetensors"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    found = data.FEATURES if datasets.has(data.FEATURES) else data.NAMES[0]
    parser.add_argument("--data", choices=data.NAMES, default=found)
    parser.add_argument("--one-class", action="store_true", help="all candidates of one class")
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 322")
    parser.add_argument("--lr", type=float, action="append", help="by default the method's own")
    parser.add_argument("--entropy", type=float, action="append", help="by default its own")
    add_epochs(parser, Budget.epochs, FULL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    budget = Budget(epochs=options.epochs)
    methods, seeds = options.method or [*METHODS], options.seed or [322]
    rates = [{"lr": lr} for lr in options.lr or []] or [{}]
    bonuses = [{"entropy": entropy} for entropy in options.entropy or []] or [{}]
    settings = [{**rate, **bonus} for rate, bonus in product(rates, bonuses)]
    run(options.data, methods, seeds, budget, one_class=options.one_class, settings=settings)


if __name__ == "__main__":
    main()
