"""Language models of WikiText-2 trained with softmax and entmax losses.

``python -m experiments.sparse_language_model.run`` adds the rows that are missing to results.json.
It may be stopped and started again: a model on its way is kept in build/sparse_language_model after
every part of an epoch. ``--alpha 1.5`` makes one row, ``--epochs 3`` trains longer, ``--window 70
--functions 64`` adds attention to the last words and a continuous memory of those before.
"""

import argparse
import hashlib
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from experiments.arguments import whole
from experiments.record import Record, Row
from experiments.sparse_language_model.decoders import candidates
from experiments.sparse_language_model.long_context import Context
from experiments.sparse_language_model.measures import report
from experiments.sparse_language_model.text import Text, wikitext2
from experiments.sparse_language_model.training import Settings, Training

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "sparse_language_model"
ALPHAS = (1.0, 1.5, 2.0, 1.2)
TESTED = 60_000  # tokens
PROMPTS = (200, 35, 100)  # prompts, words of each, words drawn behind them


def measure(
    alpha: float, text: Text, settings: Settings, seed: int, tokens: int,
    prompts: tuple[int, int, int], models: Path,
) -> Row:  # fmt: skip
    """Train a model, and evaluate its best state."""
    about = f"{alpha} {settings} {seed} {len(text.train)}"
    folder = models / hashlib.sha256(about.encode()).hexdigest()[:16]
    training = Training(alpha, text, settings, seed, folder)
    model = training.finish()
    record = training.record
    return {
        "valid loss": min(record["valid"]),
        "best part": record["best"],
        "processor seconds of training": round(record["seconds"], 1),
        "decoders": report(
            model, text.valid[:tokens], text.test[:tokens], candidates(alpha), settings,
            prompts, seed,
        ),
    }  # fmt: skip


def run(
    text: Text, alphas: list[float], settings: Settings, seed: int, tokens: int = TESTED,
    prompts: tuple[int, int, int] = PROMPTS, results: Path = RESULTS, models: Path = MODELS,
) -> None:  # fmt: skip
    """Add the missing rows."""
    record = Record(results)
    for alpha in alphas:
        print(f"alpha {alpha:g}", flush=True)
        make = partial(measure, alpha, text, settings, seed, tokens, prompts, models)
        record.once(
            make, alpha=alpha, seed=seed, settings=asdict(settings), tokens=tokens,
            prompts=list(prompts),
        )  # fmt: skip


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alpha", type=float, action="append", help="by default all")
    parser.add_argument("--epochs", type=whole, default=Settings.epochs)
    parser.add_argument("--window", type=int, default=0, help="words; by default none")
    parser.add_argument("--functions", type=int, default=0, help="of the memory; by default none")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if options.functions and not options.window:
        parser.error("--functions needs --window: the memory is of the words before it")
    context = Context(options.window, options.functions)
    settings = Settings(epochs=options.epochs, context=context)
    run(wikitext2(), options.alpha or [*ALPHAS], settings, options.seed)


if __name__ == "__main__":
    main()
