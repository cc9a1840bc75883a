"""Translation of Multi30k with softmax, 1.5-entmax and sparsemax, in attention and output layer.

``python -m experiments.translation.run`` adds the rows that are missing to results.json. It may be
stopped and started again: the model on its way is kept after every epoch in build/translation.
``--output 1.5 --attention 1`` makes one row.
"""

import argparse
import hashlib
import statistics
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fewfold as ff
from experiments.record import Record, Row
from experiments.translation.bleu import bleu
from experiments.translation.corpus import BEGIN, END, PAD, Corpus, Part, Vocabulary, multi30k
from experiments.translation.model import Method, Translator, shifted
from experiments.translation.search import beam, greedy, mode
from experiments.translation.training import Settings, Training

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "translation"
# The same map in both places, then a sparse map in one of them, then the others.
METHODS = [
    Method(*alphas)
    for alphas in [
        (1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (1.5, 1.0), (1.0, 1.5), (2.0, 1.0), (1.0, 2.0),
        (1.5, 2.0), (2.0, 1.5),
    ]
]  # fmt: skip


@torch.no_grad()
def sparsity(model: Translator, part: Part) -> Row:
    """Return how many words and source positions have weight, given the words before."""
    sizes, certain, attended, lengths, right = [], [], [], [], []
    for source, target in part.in_order(64):
        memory, state = model.encode(source)
        hidden, _, queries = model.decode(shifted(target), state, memory)
        taken = target != PAD
        probs = model.probs(hidden[taken])
        sizes.append((probs > 0).sum(-1))
        certain.append(probs.amax(-1) >= 1)
        right.append(probs.gather(-1, target[taken].unsqueeze(-1)).squeeze(-1) > 0)
        found = ff.attention.attention_support(queries, memory.keys, model.omega, mask=memory.mask)
        attended.append(torch.bincount(found.row, minlength=found.rows).view(taken.shape)[taken])
        lengths.append(memory.mask.sum(-1).expand_as(taken)[taken])
    words = torch.cat(sizes).double()
    return {
        "words": round(float(words.mean()), 2),
        "words, median": float(words.median()),
        "one word": round(float(torch.cat(certain).double().mean()), 4),
        "reference has probability": round(float(torch.cat(right).double().mean()), 4),
        "positions attended": round(float(torch.cat(attended).double().mean()), 2),
        "positions": round(float(torch.cat(lengths).double().mean()), 2),
    }


@torch.no_grad()
def searches(model: Translator, part: Part, words: Vocabulary, width: int, steps: int) -> Row:
    """Return what beam and exact search find, sentence by sentence."""
    beams, modes, empty = [], [], []
    for source, _ in part.in_order(1):
        memory, state = model.encode(source)
        beams.append(beam(model, memory, state, width))
        modes.append(mode(model, memory, state, beams[-1], steps))
        log_probs, _ = model.step(torch.tensor([BEGIN]), state, memory)
        empty.append(bool(log_probs[0, END] > -torch.inf))
    lines = {"beam": beams, "mode": modes}
    row: dict[str, Any] = {
        f"BLEU, {name}": round(bleu([words.line(one.words) for one in found], part.references), 2)
        for name, found in lines.items()
    }
    exact = [i for i, one in enumerate(modes) if one.exact]
    pairs = [(beams[i], modes[i]) for i in exact]
    row |= {
        f"length, {name}": round(statistics.fmean(len(one.words) for one in found), 2)
        for name, found in lines.items()
    }
    return row | {
        "mode found": round(len(exact) / len(modes), 4),
        "beam is the mode": _share([a.words == b.words for a, b in pairs]),
        "mode is empty": _share([not b.words for _, b in pairs]),
        "empty has probability": _share(empty),
        "length of found modes": _mean([len(b.words) for _, b in pairs]),
        "length of their references": _mean([len(part.references[i]) for i in exact]),
        "prefixes, median": statistics.median(one.steps for one in modes),
        "prefixes of beam": round(statistics.fmean(one.steps for one in beams), 1),
    }


def _mean(values: list[int]) -> float | None:
    return round(statistics.fmean(values), 2) if values else None


def _share(values: list[bool]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def measure(
    method: Method, corpus: Corpus, settings: Settings, seed: int, search: dict[str, int],
    models: Path,
) -> Row:  # fmt: skip
    """Train a model, and evaluate its best epoch on the test part."""
    about = f"{method} {settings} {seed} {len(corpus.train)} {len(corpus.target)}"
    folder = models / hashlib.sha256(about.encode()).hexdigest()[:16]
    training = Training(method, corpus, settings, seed, folder)
    model, part, words = training.finish(), corpus.test, corpus.target
    lines = [words.line(line) for some, _ in part.in_order(128) for line in greedy(model, some)]
    record = training.record
    return {
        "valid BLEU": max(record["bleu"]),
        "best epoch": record["best"],
        "epochs": len(record["bleu"]),
        "BLEU, greedy": round(bleu(lines, part.references), 2),
        **searches(model, part, words, **search),
        **sparsity(model, part),
        "processor seconds of training": round(record["seconds"], 1),
    }


def run(
    corpus: Corpus, methods: list[Method], settings: Settings, seed: int,
    search: dict[str, int], results: Path = RESULTS, models: Path = MODELS,
) -> None:  # fmt: skip
    """Add the missing rows."""
    record = Record(results)
    for method in methods:
        print(method, flush=True)
        make = partial(measure, method, corpus, settings, seed, search, models)
        record.once(make, **asdict(method), seed=seed, settings=asdict(settings), search=search)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=float, help="alpha of the output layer; by default all")
    parser.add_argument("--attention", type=float, help="alpha of attention; by default all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    settings = Settings()
    methods = [
        method for method in METHODS
        if options.output in (None, method.output)
        and options.attention in (None, method.attention)
    ]  # fmt: skip
    corpus = multi30k(least=settings.least)
    run(corpus, methods, settings, options.seed, {"width": 5, "steps": 1000})


if __name__ == "__main__":
    main()
