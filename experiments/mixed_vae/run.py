"""Autoencoders of MNIST with six distributions of the latent.

``python -m experiments.mixed_vae.run`` adds the rows that are missing to results.json:
``--method "mixed Dirichlet" --seed 1 --epochs 20`` some of them, ``--full`` those of the published
length. It may be stopped and started again: a run on its way is path in build/mixed_vae.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from experiments import checkpoint
from experiments.arguments import add_epochs
from experiments.mixed_vae.latents import LATENTS
from experiments.mixed_vae.model import Split, Training, load
from experiments.record import Record, Row
from fewfold import _progress

HERE = Path(__file__).parent
RECORD = Record(HERE / "results.json")
RUNS = HERE.parents[1] / "build" / "mixed_vae"
EPOCHS, FULL = 10, 500
SAMPLES = 100


def train(name: str, split: Split, epochs: int, seed: int, width: int = 500) -> Row:
    """Return a row: distortion, rate and likelihood on the test set after the last epoch."""
    path = RUNS / f"{name.replace(' ', '-')}-{seed}.safetensors"
    state = Training(LATENTS[name], split, seed, width)
    if path.exists():
        record = checkpoint.load(path, state.model, state.optimizer, state.generator)
        state.curve = record["curve"]
        if len(state.curve) > epochs:
            raise ValueError(
                f"{path} has had {len(state.curve)} epochs, more than {epochs}; move it away"
            )
    while len(state.curve) < epochs:
        point = state.epoch()
        metrics = ", ".join(f"{what} {value:g}" for what, value in point.items())
        _progress.line(f"{name}, seed {seed}, epoch {len(state.curve)} of {epochs}: {metrics}")
        record = {"curve": state.curve}
        checkpoint.save(path, state.model, state.optimizer, state.generator, record)
    _progress.line("")
    found = state.measure(split.test, SAMPLES, seed=1)
    curve = {what: [point[what] for point in state.curve] for what in state.curve[-1]}
    return {**{what: round(value, 2) for what, value in found.items()}, "curve": curve}


def run(names: list[str], seeds: list[int], epochs: int) -> None:
    """Add the missing rows."""
    split: Split | None = None
    for seed in seeds:
        for name in names:
            key = {"method": name, "seed": seed, "epochs": epochs}
            if RECORD.rows(**key):
                continue
            split = split or load()
            row = RECORD.once(partial(train, name, split, epochs, seed), **key)
            print(name, {what: row[what] for what in ("distortion", "rate", "nll")}, flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=LATENTS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 1")
    add_epochs(parser, EPOCHS, FULL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    run(options.method or [*LATENTS], options.seed or [1], options.epochs)


if __name__ == "__main__":
    main()
