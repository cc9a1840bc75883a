"""NBANT under the penalty: a designed sweep of when its number of anchors settles near the best.

``python -m experiments.movielens_ratings.growth_sweep`` adds what is missing to results.json: the
published algorithm, one departure from it at a time, and a grid of fixed numbers of anchors.
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from experiments.movielens_ratings.dense_yogi import Trainer
from experiments.movielens_ratings.published_run import AsPublished, trainer
from experiments.movielens_ratings.ratings import Ratings, Split, ml1m
from experiments.movielens_ratings.row_tables import anchored_rows
from experiments.movielens_ratings.run import RESULTS, SPLITS
from experiments.record import Record, Row
from fewfold.embeddings.sparsify.growth import trend

MOST = 40  # anchors of each table that there is room for


@dataclass(frozen=True)
class Regime:
    """Settings of NBANT; the published ones of MovieLens-1M by default."""

    l1: float = 1e-4
    """the penalty"""
    nonzero: float = 1e-4
    """cost of a non-zero in the objective; the same as the penalty in the paper"""
    per_anchor: float = 1e-2
    """cost of an anchor in the objective"""
    start: int = 10
    delay: int = 0
    """epochs before the number of anchors changes, without a penalty"""
    wait: int = 0
    """epochs without a change after a change"""
    pause: bool = False
    """whether the epoch after a change has no penalty"""
    fresh: bool = False
    """whether anchors that join have their first values, not those the penalty has left"""
    prune: bool = False
    """whether anchors without an entry leave before each decision"""
    adapt: bool = True
    """whether the number of anchors changes at all"""
    epochs: int = 50


CHEAP = Regime(nonzero=1e-6, per_anchor=1e-3)
LIGHT = replace(CHEAP, l1=1e-5)
GRID = (1, 2, 4, 7, 10, 15, 20, 30)
REGIMES = {
    "published": Regime(),
    "published, l1 2e-4": Regime(l1=2e-4, nonzero=2e-4),
    **{
        f"{name}{', ' if departure else ''}{departure}": replace(base, **changes)
        for name, base in (("low costs", CHEAP), ("low costs, l1 1e-5", LIGHT))
        for departure, changes in {
            "": {},
            "start 2": {"start": 2},
            "fresh": {"fresh": True},
            "prune": {"prune": True},
            "fresh, prune": {"fresh": True, "prune": True},
            "fresh, prune, pause, wait 2": {
                "fresh": True, "prune": True, "pause": True, "wait": 2,
            },
            "start 2, fresh, wait 2": {"start": 2, "fresh": True, "wait": 2},
            "delay 5": {"delay": 5},
            "delay 5, start 2, fresh, prune, wait 2": {
                "delay": 5, "start": 2, "fresh": True, "prune": True, "wait": 2,
            },
        }.items()
    },
}  # fmt: skip
FIXED = {
    f"{name}, fixed at {anchors}": replace(base, start=anchors, adapt=False)
    for name, base in (
        ("published", Regime()),
        ("low costs", CHEAP),
        ("low costs, l1 1e-5", LIGHT),
    )
    for anchors in GRID
}
PREFIX = "NBANT under the penalty: "


def measure(regime: Regime, split: Split, seed: int) -> Row:
    """Train with a changing number of anchors; return the metrics of the best objective."""
    begun = time.process_time()
    table = anchored_rows(max(MOST, regime.start), active=regime.start)
    method = AsPublished(table, table, regime.l1, regime.epochs, bias=False)
    model, generator = trainer(method, split, seed)
    objectives: list[float] = []
    epochs: list[Row] = []
    changed = -regime.wait - 1
    for epoch in range(regime.epochs):
        order = torch.randperm(len(split.train), generator=generator)
        off = epoch < regime.delay or (regime.pause and changed == epoch - 1 >= 0)
        model.epoch(split.train, order, l1=0.0 if off else regime.l1)
        valid = model.mse(split.valid)
        nonzeros = sum(table.nonzeros() for table in model.tables)
        anchors = sum(table.active for table in model.tables)
        objective = valid + regime.nonzero * nonzeros
        objective += (regime.per_anchor - regime.nonzero) * anchors
        epochs.append({
            "objective": objective, "anchors": anchors // 2, "in use": _in_use(model),
            "nonzeros": nonzeros, "valid": valid, "test": model.mse(split.test),
            "size": model.size(), "settled": epoch >= regime.delay,
        })  # fmt: skip
        if epoch < regime.delay or not regime.adapt:
            continue
        objectives.append(objective)
        if _decide(model, regime, objectives, epoch - changed > regime.wait, generator):
            changed = epoch
    return _row(epochs, time.process_time() - begun)


def _in_use(model: Trainer) -> list[int]:
    return [int((table.transform().count_nonzero(0) > 0).sum()) for table in model.tables]


def _decide(
    model: Trainer, regime: Regime, objectives: list[float], due: bool, generator: torch.Generator
) -> bool:
    """Change the number of anchors by the published rule; return whether it changed."""
    before = model.tables[0].active
    after = model.prune() if regime.prune else before
    decision = trend(objectives) if due else "keep"
    after += {"grow": 1, "shrink": -1, "keep": 0}[decision]
    after = min(max(after, 1), int(model.tables[0].widths[0]))
    for table in model.tables:
        table.active = after
    grown = after - before if not regime.prune else int(decision == "grow")
    if regime.fresh and grown > 0:
        model.renew(after - 1, after, generator)
    return after != before


def _row(epochs: list[Row], seconds: float) -> Row:
    allowed = [epoch for epoch in epochs if epoch["settled"]]
    best = min(allowed, key=lambda epoch: float(epoch["objective"]))
    return {
        "mse": round(best["test"], 4),
        "validation mse": round(best["valid"], 4),
        "objective": round(best["objective"], 4),
        "epoch": epochs.index(best) + 1,
        "anchors": [best["anchors"]] * 2,
        "anchors in use": best["in use"],
        "nonzeros": best["nonzeros"],
        "parameters": best["size"],
        "last": {name: epochs[-1][name] for name in ("anchors", "in use", "nonzeros")},
        "history": [[e["anchors"], *e["in use"], round(e["objective"], 4)] for e in epochs],
        "processor seconds": round(seconds, 1),
    }


def run(
    ratings: Ratings, regimes: dict[str, Regime], splits: list[str], seeds: int, results: Path
) -> None:
    """Add the missing rows."""
    record = Record(results)
    for seed in range(seeds):
        for split in splits:
            for name, regime in regimes.items():
                make = partial(measure, regime, SPLITS[split](ratings), seed)
                key = {"method": PREFIX + name, "split": split, "seed": seed}
                record.once(make, **key, recipe=asdict(regime))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regimes", help="separated by semicolons; by default all of them")
    parser.add_argument("--splits", nargs="+", default=["third"], choices=SPLITS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = REGIMES | FIXED
    names = options.regimes.split(";") if options.regimes else list(every)
    chosen = {name: every[name] for name in names}
    run(ml1m(), chosen, options.splits, options.seeds, options.results)


if __name__ == "__main__":
    main()
