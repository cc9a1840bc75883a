"""Classification of bags by Hopfield pooling with eight maps.

``python -m experiments.multiple_instance_learning.run`` adds the rows that are missing to
results.json: ``--task 3 --task fox`` those of some tasks (a number is how many nines make a bag of
digits positive), ``--map softmax --seed 1`` some of them, ``--long`` those of the published
number of epochs in batches, ``--full`` those of bag by bag, ``--tune`` the search for settings,
which goes to tuning.json. It may be stopped and started again.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

import fewfold as ff
from experiments.multiple_instance_learning import bags
from experiments.multiple_instance_learning.bags import Bags
from experiments.multiple_instance_learning.model import MAPS, Pooled, see_digits, see_regions
from experiments.multiple_instance_learning.training import Fitted, Settings, fit
from experiments.record import Record, Row
from fewfold import _progress

HERE = Path(__file__).parent
RECORD, TUNING = Record(HERE / "results.json"), Record(HERE / "tuning.json")
NINES = ("1", "2", "3", "5")
TASKS = (*NINES, *bags.ANIMALS)
TUNED_ON = {"digits": ("3",), "animals": ("fox",)}
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Budget:
    """Training settings.

    Attributes:
        digits: how to train on bags of digits.
        animals: and on photographs.
        bags: of digits to learn from.
        folds: of the photographs.
    """

    digits: Settings
    animals: Settings
    bags: int = 2000
    folds: int = 10

    def of(self, task: str) -> Settings:
        """Return the settings of a task."""
        return self.digits if task in NINES else self.animals


SHORT = Budget(
    Settings(1e-3, gamma=0.6, size=16, epochs=5, patience=2),
    Settings(1e-3, size=8, patience=10),
)
# The published number of epochs, decay of the rate and patience, in batches and at a higher rate.
LONG = replace(SHORT, digits=Settings(1e-3, size=16))
FULL = Budget(Settings(1e-5), Settings(1e-3))


@dataclass(frozen=True)
class Pooling:
    """Hyperparameters of a map: inverse temperature and dropout."""

    beta: float
    dropout: float = 0.0


GRID = {
    "digits": [Pooling(beta) for beta in (0.25, 1.0, 4.0)],
    "animals": [Pooling(beta) for beta in (0.1, 1.0, 10.0)],
}


def kind(task: str) -> str:
    """Return whether a task uses digits or animals."""
    return "digits" if task in NINES else "animals"


def network(task: str, name: str, pooling: Pooling) -> Pooled:
    """Return an untrained network for a task and a map."""
    if task in NINES:
        see, dim, heads = see_digits(), 500, ff.hopfield.Heads(8, 16, pooling.dropout)
    else:
        see, dim, heads = see_regions(32), 32, ff.hopfield.Heads(12, 32, pooling.dropout)
    pool = ff.HopfieldPooling(dim, MAPS[name], pooling.beta, heads)
    return Pooled(see, pool, relu=task not in NINES)


def parts(task: str, budget: Budget, seed: int) -> Iterator[tuple[Bags, Bags, Bags]]:
    """Yield training, validation and test bags: once for digits, once per fold for animals.

    Seed 0 is that of the search for settings.
    """
    if task in NINES:
        learn = bags.digits("train", int(task), budget.bags, 10000 * seed)
        rest = bags.digits("test", int(task), 1000, bags.TEST_SEED)
        half = torch.arange(500)
        yield learn, rest.select(half + 500), rest.select(half)
        return
    every = bags.animals(task)
    outer = bags.folds(every.labels, budget.folds, seed)
    for fold in range(budget.folds):
        others = (outer != fold).nonzero().squeeze(1)
        inner = bags.folds(every.labels[others], budget.folds - 1, seed)
        test = (outer == fold).nonzero().squeeze(1)
        yield (
            every.select(others[inner != 0]),
            every.select(others[inner == 0]),
            every.select(test),
        )


def measure(task: str, name: str, pooling: Pooling, budget: Budget, seed: int) -> Row:
    """Return a row: the mean over folds at the epoch that is best on validation."""
    start, found = time.process_time(), list[Fitted]()
    generator = torch.Generator().manual_seed(seed)
    for fold, split in enumerate(parts(task, budget, seed)):
        torch.manual_seed(1000 * seed + fold)
        label = f"{task}, {name}, beta {pooling.beta:g}, seed {seed}, part {fold + 1}"

        def report(epoch: int, valid: dict[str, float], label: str = label) -> None:
            _progress.line(f"{label}: epoch {epoch}, area {valid['area']:.1f} of validation")

        model = network(task, name, pooling)
        found.append(fit(model, split, budget.of(task), generator, report))
    _progress.line("")
    return {
        "test": {what: round(_mean(f.test[what] for f in found), 2) for what in found[0].test},
        "valid": {what: round(_mean(f.valid[what] for f in found), 3) for what in found[0].valid},
        "best epoch": round(_mean(f.epoch for f in found), 1),
        "epochs": round(_mean(f.epochs for f in found), 1),
        "processor seconds": round(time.process_time() - start, 1),
    }


def _mean(values: Iterator[float]) -> float:
    return statistics.fmean(values)


def length(settings: Settings) -> Row:
    """Return the fields of a row that describe the length of training."""
    return {"most epochs": settings.epochs, "bags per step": settings.size}


def tune(tasks: list[str], names: list[str], budget: Budget) -> None:
    """Evaluate every setting of the grid with seed 0 on the tuning tasks."""
    chosen = [task for task in tasks if task in TUNED_ON[kind(task)]]
    for task, name in product(chosen, names):
        for pooling in GRID[kind(task)]:
            make = partial(measure, task, name, pooling, budget, 0)
            own = {**length(budget.of(task)), "bags": budget.bags, **asdict(pooling)}
            TUNING.once(make, task=task, map=name, **own)


def best(task: str, name: str) -> Pooling:
    """Return the setting with the largest validation AUC; ties go to the smaller loss."""
    tuned = TUNED_ON[kind(task)]
    own = TUNING.rows(task=task if task in tuned else tuned[0], map=name)
    if not own:
        raise ValueError(f"settings of {name} for {task} were not searched for; run with --tune")
    row = max(own, key=lambda row: (row["valid"]["area"], -row["valid"]["loss"]))
    return Pooling(row["beta"], row["dropout"])


def run(tasks: list[str], names: list[str], seeds: list[int], budget: Budget) -> None:
    """Add the missing rows."""
    for seed, task, name in product(seeds, tasks, names):
        pooling = best(task, name)
        make = partial(measure, task, name, pooling, budget, seed)
        row = RECORD.once(
            make, task=task, map=name, seed=seed, **length(budget.of(task)), **asdict(pooling)
        )
        print(task, name, row["test"], flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, action="append", help="by default all")
    parser.add_argument("--map", choices=MAPS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 1, 2 and 3")
    budgets = parser.add_mutually_exclusive_group()
    budgets.add_argument("--long", action="store_true", help="the published epochs, in batches")
    budgets.add_argument("--full", action="store_true", help="the published epochs, bag by bag")
    parser.add_argument("--tune", action="store_true", help="search for settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    tasks, names = options.task or [*TASKS], options.map or [*MAPS]
    budget = FULL if options.full else LONG if options.long else SHORT
    if options.tune:
        tune(tasks, names, budget if options.full else replace(budget, bags=1000))
    else:
        run(tasks, names, options.seed or [*SEEDS], budget)


if __name__ == "__main__":
    main()
