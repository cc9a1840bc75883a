"""Semi-supervised learning with latent labels, marginalised or sampled.

``python -m experiments.semisupervised_vae.run`` adds what is missing to results.json: it may be
stopped and started again.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

import fewfold as ff
from experiments.arguments import add_epochs
from experiments.networks import perceptron
from experiments.record import Record, Row, origin
from experiments.semisupervised_vae.digits import Split, load
from experiments.semisupervised_vae.training import (
    Budget,
    ImageAndLabel,
    LabelByLabel,
    Method,
    Training,
    bound,
)
from fewfold import _progress
from fewfold._timing import race

RECORD = Record(Path(__file__).parent / "results.json")
CHECKPOINTS = Path(__file__).parents[2] / "build" / "semisupervised_vae"
FULL = 200


def running_mean(pixels: int, classes: int) -> nn.Module:
    """Return a running-mean baseline."""
    return ff.expectation.RunningMean()


def control(pixels: int, classes: int) -> nn.Module:
    """Return a control variate of relaxed labels and images."""
    return perceptron(classes + pixels, 256, 256, 1, activation=nn.Tanh)


METHODS = {
    "sparse": Method(5e-4, lambda step, _: ff.SparseMarginal(), sparse=True),
    "dense": Method(1e-3, lambda step, _: ff.Dense()),
    "SFE": Method(1e-4, lambda step, own: ff.ScoreFunction(baseline=own), running_mean),
    "SFE+": Method(
        1e-4,
        lambda step, own: ff.ScoreFunction(baseline=own),
        lambda *_: ff.expectation.SelfCritic(),
    ),
    "NVIL": Method(
        1e-3,
        lambda step, own: ff.ScoreFunction(baseline=own),
        lambda pixels, _: ff.expectation.Learned(perceptron(pixels, 512, 512, 512, 1)),
    ),
    "Gumbel": Method(1e-3, lambda step, _: ff.Gumbel(ff.expectation.annealed(step, rate=1e-4))),
    "ST Gumbel": Method(
        1e-3,
        lambda step, _: ff.Gumbel(ff.expectation.annealed(step, rate=1e-4), straight_through=True),
    ),
    "sum and sample": Method(1e-3, lambda step, own: ff.SumAndSample(baseline=own), running_mean),
    # Not in the paper.
    "straight-through": Method(1e-3, lambda step, _: ff.expectation.StraightThrough()),
    "unordered set": Method(1e-3, lambda step, _: ff.expectation.UnorderedSet(2)),
    "MuProp": Method(1e-3, lambda step, _: ff.expectation.MuProp()),
    "RELAX": Method(1e-3, lambda step, own: ff.expectation.RELAX(own), control),
}

LOOPS = {"dense, label by label": LabelByLabel, "dense, as the authors' code": ImageAndLabel}


def training(name: str, split: Split, budget: Budget, seed: int) -> Training:
    """Return the run from its checkpoint if there is one, otherwise from its warm start."""
    if not _checkpoint(name, seed).exists():
        return warm(name, split, budget, seed)
    state = Training(METHODS[name], split, budget, seed)
    state.load(_checkpoint(name, seed))
    if len(state.curve) > budget.epochs:
        raise ValueError(
            f"{_checkpoint(name, seed)} has had {len(state.curve)} epochs, more than "
            f"{budget.epochs}; move it away"
        )
    return state


def warm(name: str, split: Split, budget: Budget, seed: int) -> Training:
    """Return the run after its warm start."""
    state = Training(METHODS[name], split, budget, seed)
    state.warm_start(_checkpoint("warm sparsemax" if state.method.sparse else "warm softmax", seed))
    return state


def train(name: str, split: Split, budget: Budget, seed: int) -> Row:
    """Return a row: the accuracy after the last epoch, and the learning curve."""
    state = training(name, split, budget, seed)
    while len(state.curve) < budget.epochs:
        point = state.epoch()
        done = len(state.curve)
        metrics = ", ".join(f"{what} {value:g}" for what, value in point.items())
        message = f"{name}, seed {seed}, epoch {done} of {budget.epochs}: {metrics}"
        _progress.line(message)
        if done % budget.keep == 0 or done == budget.epochs:
            state.save(_checkpoint(name, seed))
            print(message, flush=True)
    _progress.line("")
    last = bound(state.model, split.test, state.method.exact, seed)
    return {
        "test": state.curve[-1]["test"],
        "warm start": state.start,
        "test negative ELBO": last["negative ELBO"],
        "support": last["calls"],
        "processor seconds": round(state.seconds, 1),
        "seconds": round(state.wall, 1),
        "curve": {what: [point[what] for point in state.curve] for what in state.curve[-1]},
    }


def step_times(
    split: Split, budget: Budget, seed: int, *, names: Sequence[str] = (), seconds: float = 30.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return milliseconds per step of each method, interleaved, from the warm start.

    With the method ``dense`` comes the same sum with one call of the decoder after the other, and
    that of the authors' code, where each of these calls looks at the images again. The second are
    the calls of the decoder per image in these steps.
    """
    states = {name: warm(name, split, budget, seed) for name in names or METHODS}
    if "dense" in states:
        for name, kind in LOOPS.items():
            states[name] = kind(METHODS["dense"], split, budget, seed)
            states[name].model.load_state_dict(states["dense"].model.state_dict())
    calls: dict[str, list[float]] = {name: [] for name in states}
    steps = {name: partial(_step, _endless(state), calls[name]) for name, state in states.items()}
    times = race(steps, seconds=seconds)
    return (
        {name: round(1e3 * time.median, 3) for name, time in times.items()},
        {name: round(sum(each) / len(each), 3) for name, each in calls.items()},
    )


def _step(steps: Iterator[ff.expectation.Expectation], calls: list[float]) -> None:
    out = next(steps)
    calls.append(len(out.support.row) / out.latent.rows)


def run(names: Sequence[str], seeds: Sequence[int], budget: Budget) -> None:
    """Add the missing rows."""
    split: Split | None = None
    for seed in seeds:
        for name in names:
            key = {"method": name, "seed": seed, "epochs": budget.epochs}
            if RECORD.rows(**key):
                continue
            split = split or load()
            row = RECORD.once(partial(train, name, split, budget, seed), **key)
            print(row["test"], row["curve"]["calls"][-1], flush=True)


def _endless(state: Training) -> Iterator[ff.expectation.Expectation]:
    """Yield steps of one epoch after the other."""
    while True:
        yield from state.steps()


def _checkpoint(name: str, seed: int) -> Path:
    return CHECKPOINTS / f"{name.replace(' ', '-')}-{seed}.safetensors"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 43 and 44")
    add_epochs(parser, Budget.epochs, FULL)
    parser.add_argument("--times", action="store_true", help="milliseconds per step, and no more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # weights of pixels that are never white decay for ever
    names, seeds = options.method or [*METHODS], options.seed or [43, 44]
    budget = Budget(epochs=options.epochs)
    if options.times:
        times, calls = step_times(load(), budget, seeds[0], names=names)
        RECORD.add([{"milliseconds": times, "calls": calls, "seed": seeds[0], **origin()}])
        print(times, calls)
    else:
        run(names, seeds, budget)


if __name__ == "__main__":
    main()
