"""Language models on Penn Treebank and WikiText-2 with dense and compact tables.

``python -m experiments.ptb_language_model.run`` adds the rows that are missing to results.json. It
may be stopped and started again: a model on its way is kept after every epoch in
build/ptb_language_model. ``--methods "dense;low rank 49"`` makes some of the rows, and ``--text
wikitext2`` those of the other text.
"""

import argparse
import hashlib
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import fewfold as ff
from experiments.language_model.run import batches
from experiments.ptb_language_model.axes import anchored, sensitivity, unfilled
from experiments.ptb_language_model.models import (
    Anchored,
    Axes,
    Budget,
    Dense,
    KSvd,
    LanguageModel,
    LowRank,
    Method,
    Nearest,
    State,
    coded,
    optimizers_of,
    perplexity,
    size,
    table_of,
)
from experiments.ptb_language_model.texts import Text, ptb, wikitext2
from experiments.record import Record, Row
from fewfold._files import new_file

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MODELS = HERE.parents[1] / "build" / "ptb_language_model"

METHODS: dict[str, dict[str, Method]] = {
    "ptb": {
        "dense": Dense(),
        "anchors 256, 44 each": Anchored(256, 44),
        "anchors 256, 19 each": Anchored(256, 19),
        "anchors 256, 44 each, post-hoc": Anchored(256, 44, after=1.0),
        "anchors 256, 19 each, post-hoc": Anchored(256, 19, after=1.0),
        "low rank 49": LowRank(49),
        "low rank 24": LowRank(24),
        "principal axes, 44 each": Axes(44),
        "principal axes, 19 each": Axes(19),
        "post-sparse hash 500, 10 each": Nearest(500, 10),
        "post-sparse hash 1000, 20 each": Nearest(1000, 20),
        "k-SVD 500, 10 each": KSvd(500, 10),
        "k-SVD 1000, 20 each": KSvd(1000, 20),
        "anchors 1000, 23 each": Anchored(1000, 23),
        "anchors 500, 18 each": Anchored(500, 18),
        "anchors 100, 2 each": Anchored(100, 2),
        "anchors 2000, 26 each": Anchored(2000, 26),
    },
    "wikitext2": {
        "dense": Dense(),
        "anchors 256, 20 each": Anchored(256, 20),
        "anchors 256, 8 each": Anchored(256, 8),
        "anchors 256, 20 each, post-hoc": Anchored(256, 20, after=1.0),
        "anchors 256, 8 each, post-hoc": Anchored(256, 8, after=1.0),
    },
}


class Training:
    """State of a training run, advanced one epoch at a time."""

    def __init__(self, method: Method, text: Text, budget: Budget, seed: int) -> None:
        torch.manual_seed(seed)
        self.method, self.text, self.budget, self.seed = method, text, budget, seed
        table = table_of(method, text.words, budget.width)
        self.model = LanguageModel(table, text.counts, budget)
        self.per_epoch = len(range(0, len(text.train) // budget.batch - 1, budget.length))
        self.steps, self.step, self.seconds = round(budget.epochs * self.per_epoch), 0, 0.0
        self.change = round(method.after * self.steps) if isinstance(method, Anchored) else -1
        self._begin()
        self.generator = torch.Generator().manual_seed(seed)
        self.proposal = ff.Popularity()
        self.proposal.fit(self.model.bias.detach().unsqueeze(1), text.counts + 0.5)

    def _begin(self) -> None:
        """Create new optimisers for the current parameters."""
        self.optimizers = optimizers_of(self.model, self.method, self.budget)
        schedulers = [LambdaLR(each, partial(self._rate, self.step)) for each in self.optimizers]
        self.moved: list[Any] = [*self.optimizers, *schedulers]

    def _use_anchors(self) -> None:
        if isinstance(self.method, Anchored):
            table = self.model.table.get_parameter("weight").detach()
            metric = sensitivity(self.model, self.text.train, self.budget, self.seed)
            self.model.table = anchored(
                table, self.method.anchors, self.method.keep, metric=metric, counts=self.text.counts
            )
        self._begin()

    def _rate(self, before: int, step: int) -> float:
        """Return the learning rate: linear warmup, then linear decay."""
        step, rise = before + step, self.budget.warmup * self.steps
        return min((step + 1) / rise, (self.steps - step) / (self.steps - rise))

    def epoch(self) -> None:
        """Train on all batches, or on those that remain."""
        state, total, begin = None, 0.0, time.process_time()
        data = batches(self.text.train, self.budget.batch, self.budget.length)
        for place, (words, after) in enumerate(data, start=1):
            if self.step == self.change:
                self._use_anchors()
            if self.step == self.steps:
                break
            loss, state = self._learn(words, after, state)
            total += loss
            if place % 100 == 0:
                print(f"  step {self.step} of {self.steps}: loss {total / 100:.3f}", flush=True)
                total = 0.0
        self.seconds += time.process_time() - begin

    def _learn(self, words: Tensor, after: Tensor, state: State | None) -> tuple[float, State]:
        queries, state = self.model(words, state)
        loss = ff.sampled_softmax_loss(
            queries, self.model.rows, after, self.proposal, samples=self.budget.samples,
            shared=True, generator=self.generator,
        )  # fmt: skip
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        rest = [p for group in self.optimizers[1].param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(rest, self.budget.clip)
        for each in self.moved:
            each.step()
        self.step += 1
        return loss.item(), state

    def path(self, models: Path, step: int) -> Path:
        """Return the checkpoint after this many steps; anchor tables start from a dense model."""
        method = Dense() if step <= self.change else self.method
        about = f"{self.text.name} {self.seed} {method} {self.budget} {step}"
        return models / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.pt"

    def save(self, models: Path) -> None:
        """Save the training state."""
        parts = [each.state_dict() for each in (self.model, *self.moved)]
        draws = (torch.get_rng_state(), self.generator.get_state())
        models.mkdir(parents=True, exist_ok=True)
        path = self.path(models, self.step)
        with new_file(path) as unfinished:
            torch.save((parts, draws, self.step, self.seconds), unfinished)

    def load(self, models: Path) -> None:
        """Restore the latest checkpoint, if there is one."""
        ends = range(self.per_epoch, self.steps + self.per_epoch, self.per_epoch)
        paths = [self.path(models, min(end, self.steps)) for end in ends]
        path = next((path for path in reversed(paths) if path.exists()), None)
        if path is None:
            return
        parts, (everywhere, own), step, self.seconds = torch.load(path)
        if isinstance(self.method, Anchored) and self.change < step:
            self.step, anchors = self.change, self.method.anchors
            self.model.table = unfilled(self.text.words, self.budget.width, anchors)
            self._begin()
        self.step = step
        for each, state in zip((self.model, *self.moved), parts, strict=True):
            each.load_state_dict(state)
        torch.set_rng_state(everywhere)
        self.generator.set_state(own)


def trained(method: Method, text: Text, budget: Budget, seed: int, models: Path) -> Training:
    """Return a fully trained model."""
    training = Training(method, text, budget, seed)
    training.load(models)
    while training.step < training.steps:
        training.epoch()
        training.save(models)
        valid = perplexity(training.model, text.valid, budget)
        print(f"  step {training.step}: validation perplexity {valid:.1f}", flush=True)
    if training.step == training.change:
        training.epoch()  # without a step: the table changes, and that is all
    return training


def measure(method: Method, text: Text, budget: Budget, seed: int, models: Path) -> Row:
    """Return the size of the table and the perplexity of the model."""
    if isinstance(method, Nearest | KSvd | Axes):
        training = trained(Dense(), text, budget, seed, models)
        table = training.model.table.get_parameter("weight")
        table.data, parameters = coded(table.detach(), method, seed)
    else:
        training = trained(method, text, budget, seed, models)
        parameters = size(training.model.table)
    row: dict[str, Any] = {"parameters": parameters}
    for part, tokens in (("valid", text.valid), ("test", text.test)):
        row[part] = round(perplexity(training.model, tokens, budget), 2)
    seconds = round(training.seconds, 1)
    return {**row, "steps": training.steps, "processor seconds of training": seconds}


def run(
    text: Text, methods: dict[str, Method], budget: Budget, seed: int, results: Path, models: Path
) -> None:
    """Add the missing rows."""
    record = Record(results)
    for name, method in methods.items():
        print(f"{text.name}: {name}", flush=True)
        make = partial(measure, method, text, budget, seed, models)
        key = {"settings": asdict(method), "seed": seed, "budget": asdict(budget)}
        record.once(make, text=text.name, method=name, **key)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", choices=["ptb", "wikitext2"], default="ptb")
    parser.add_argument("--methods", help="separated by semicolons; by default all of them")
    parser.add_argument("--epochs", type=float, help="by default 2, and half of one for WikiText-2")
    parser.add_argument("--rate", type=float, default=Budget.rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)  # probabilities that small make products ten times slower
    text = {"ptb": ptb, "wikitext2": wikitext2}[options.text]()
    some = METHODS[options.text]
    if options.methods:
        some = {name: some[name] for name in options.methods.split(";")}
    epochs = options.epochs or {"ptb": 2, "wikitext2": 0.5}[options.text]
    budget = Budget(epochs=epochs, rate=options.rate)
    run(text, some, budget, options.seed, options.results, MODELS)


if __name__ == "__main__":
    main()
