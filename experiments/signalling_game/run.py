"""A sender describes one of sixteen images to a receiver by one of 256 symbols.

``python -m experiments.signalling_game.run`` adds the rows that are missing to results.json:
``--method sparse --seed 322 --epochs 100`` some of them, ``--data mnist`` those of other images,
``--one-class`` those of games whose images are all of one class, ``--lr 0.005 --entropy 0.05``
those of another learning rate or reward of an even choice, ``--full`` those of the published
length. It may be stopped and started again: a run on its way is path in build/signalling_game, and
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
    """Training settings."""

    epochs: int = 100
    batches: int = 100
    games: int = 64
    candidates: int = 16
    valid: int = 1024
    test: int = 9984
    sizes: dict[str, int] = field(default_factory=dict)


FULL = 500  # epochs, as published


class Playable(Protocol):
    """Interface of a method: a learning rate, and agents to train with it.

    Players have `play` and `success`, as those of `methods.py` have.
    """

    @property
    def lr(self) -> float: ...

    def players(self, dim: int, **sizes: int) -> Any:
        """Return untrained agents for images of this dimension."""


class Run:
    """State of a training run: agents, optimiser, generator and learning curve."""

    def __init__(self, method: Playable, dim: int, budget: Budget, seed: int) -> None:
        torch.manual_seed(seed)
        self.budget = budget
        self.players = method.players(dim, **budget.sizes)
        self.optimizer = torch.optim.Adam(self.players.parameters(), method.lr, fused=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.curve: list[dict[str, float]] = []

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return len(self.curve) * self.budget.batches

    def epoch(self, games: Games, valid: Games) -> None:
        """Train on some batches, then evaluate."""
        began, calls, start = time.perf_counter(), [], self.step
        self.players.train()
        for step in range(start, start + self.budget.batches):
            batch = games.draw(self.budget.games, self.budget.candidates, self.generator)
            loss, receiver_calls = self.players.play(batch, step, self.generator)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            calls.append(receiver_calls)
        seconds = time.perf_counter() - began
        receiver_calls = torch.cat(calls).float()
        low, high = receiver_calls.quantile(torch.tensor([0.1, 0.9])).tolist()
        end = start + self.budget.batches
        found = self.measure(valid, self.budget.valid, data.VALID_SEED, end)
        usage = {
            "calls": float(receiver_calls.mean()),
            "low": low,
            "high": high,
            "seconds": seconds,
        }
        self.curve.append({name: round(x, 4) for name, x in {**found, **usage}.items()})

    def measure(self, games: Games, count: int, seed: int, step: int) -> dict[str, float]:
        """Return the success in per cent on a fixed set of games."""
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
        """Save the training state."""
        record = {"curve": self.curve}
        checkpoint.save(path, self.players, self.optimizer, self.generator, record)

    def load(self, path: Path) -> None:
        """Restore a saved state."""
        record = checkpoint.load(path, self.players, self.optimizer, self.generator)
        self.curve = record["curve"]


def train(
    name: str, method: Playable, games: tuple[Games, Games], budget: Budget, seed: int, path: Path
) -> Row:
    """Return a row: success on test images after the last epoch, and the learning curve."""
    train_games, test_games = games
    run = Run(method, train_games.features.shape[1], budget, seed)
    if path.exists():
        run.load(path)
    if len(run.curve) > budget.epochs:
        raise ValueError(f"{path} has had {len(run.curve)} epochs, more than {budget.epochs}")
    while len(run.curve) < budget.epochs:
        run.epoch(train_games, train_games)
        last = run.curve[-1]
        message = f"{name}: epoch {len(run.curve)} of {budget.epochs}, {last['success']:.1f} %, "
        message += f"{last['calls']:.2f} calls per game, {last['seconds']:.1f} s"
        _progress.line(message)
        if len(run.curve) % 5 == 0 or len(run.curve) == budget.epochs:
            run.save(path)
            print(message, flush=True)
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
    """Add the missing rows; settings that are not given are those of the method."""
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
    """Return the file name of the state of a run; longer runs continue shorter ones."""
    record = (str(value) for name, value in key.items() if name != "epochs")
    return "-".join(record).replace("/", "").replace(" ", "-") + ".safetensors"


def main() -> None:
    """Parse the command line and run."""
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
