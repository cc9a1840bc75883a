"""Train autoencoders with a latent bit vector on Fashion-MNIST, by every method.

``python -m experiments.bit_vector_vae.run --bits 32 --epochs 10`` adds what is missing to
results.json. It may be stopped at any time: an epoch that was begun is begun again.
"""

import argparse
import math
from pathlib import Path

import torch

from experiments.arguments import add_epochs
from experiments.bit_vector_vae.model import LARGE, METHODS, PIXELS, SMALL
from experiments.bit_vector_vae.training import Data, Row, Run
from experiments.images import images
from experiments.record import Record, origin

RECORD = Record(Path(__file__).parent / "results.json")
STATES = Path(__file__).parents[2] / "build" / "bit_vector_vae"
FULL, SEED = 100, 42  # epochs and seed as published
HELD_OUT = 5000
TEST = {"samples": 1024, "likely": 200}
VALID = {"samples": 16, "likely": 200}


def fashion() -> Data:
    """Return 55,000 training, 5,000 validation and 10,000 test images."""
    (train, _), (test, _) = images("fashion-mnist", "train"), images("fashion-mnist", "test")
    train, test = train.flatten(1), test.flatten(1)
    return Data(train[:-HELD_OUT], train[-HELD_OUT:], test)


def train(name: str, bits: int, seed: int, epochs: int, data: Data) -> Row:
    """Return a row: the test metrics after the last epoch, and the learning curve."""
    run = Run(METHODS[name], bits, seed)
    path = STATES / f"{name}, {bits} bits, seed {seed}.safetensors"
    if path.exists():
        run.load(path)
    if len(run.curve) > epochs:
        raise ValueError(
            f"{path} has had {len(run.curve)} epochs, more than {epochs}; move it away"
        )
    while len(run.curve) < epochs:
        run.epoch(data, **VALID)
        run.save(path)
        line = run.curve[-1]
        print(
            f"{name}, {bits} bits, seed {seed}, epoch {len(run.curve)}:",
            f"{per_pixel(line['valid']['nll']):.3f} bits/dim,",
            f"{line['calls']['mean']:.2f} calls, {line['processor seconds']} s",
            flush=True,
        )
    test = run.measure(data.test, **TEST)
    return {
        "bits/dim": round(per_pixel(test["nll"]), 4),
        "error": round(per_pixel(test["nll error"]), 4),
        "bound": round(per_pixel(test["distortion"] + test["rate"]), 4),
        "distortion": round(test["distortion"], 2),
        "rate": round(test["rate"], 2),
        "test calls": test["calls"],
        "images": min(TEST["likely"], len(data.test)),
        "samples": TEST["samples"],
        "processor seconds": round(sum(line["processor seconds"] for line in run.curve), 1),
        "seconds": round(sum(line["seconds"] for line in run.curve), 1),
        "curve": run.curve,
    }


def per_pixel(nats: float) -> float:
    """Convert nats per image to bits per dimension."""
    return nats / PIXELS / math.log(2)


def run(names: list[str], bits: int, seed: int, epochs: int, data: Data | None = None) -> None:
    """Add the missing rows."""
    for name in names:
        key = {"method": name, "bits": bits, "seed": seed, "epochs": epochs}
        if RECORD.rows(**key):
            continue
        data = data or fashion()
        RECORD.add([{**key, **train(name, bits, seed, epochs, data), **origin()}])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--bits", type=int, choices=[SMALL, LARGE], default=SMALL)
    parser.add_argument("--seed", type=int, default=SEED)
    add_epochs(parser, 10, FULL)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    run(options.method or [*METHODS], options.bits, options.seed, options.epochs)


if __name__ == "__main__":
    main()
