"""Language models on Penn Treebank, trained until the validation perplexity stops falling.

``python -m experiments.ptb_language_model.until_converged`` adds the rows that are missing to
converged.json. It may be stopped and started again: the state of a training is kept after every
epoch in build/ptb_language_model. ``--methods "dense;low rank 49"`` makes some of the rows.
``--agreement`` instead trains two models for a few epochs on the same batches, one with the full
softmax and one with the sampled one, and adds their perplexities to softmax.json.
"""

import argparse
import hashlib
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.language_model.run import batches
from experiments.ptb_language_model.models import KSvd, Nearest, State, perplexity, size
from experiments.ptb_language_model.regularised_lstm import RegularisedLanguageModel, Settings
from experiments.ptb_language_model.table_kinds import (
    AnchorTable,
    Code,
    Cut,
    DenseTable,
    HashedTable,
    Kind,
    Largest,
    LowRankTable,
    Trained,
)
from experiments.ptb_language_model.texts import Text, ptb
from experiments.record import Record, Row
from fewfold._files import new_file

HERE = Path(__file__).parent
RESULTS, AGREEMENT = HERE / "converged.json", HERE / "softmax.json"
MODELS = HERE.parents[1] / "build" / "ptb_language_model"

METHODS: dict[str, Kind] = {
    "dense": DenseTable(),
    "cut of the dense table, 256 axes, 42 each": Cut(DenseTable(), 256, 42),
    "cut of the dense table, 256 axes, 24 each": Cut(DenseTable(), 256, 24),
    "cut of the dense table, 256 axes, 19 each": Cut(DenseTable(), 256, 19),
    "cut of the dense table, 100 axes, 2 each": Cut(DenseTable(), 100, 2),
    "post-sparse hash 500, 10 each": Code(DenseTable(), Nearest(500, 10)),
    "post-sparse hash 1000, 20 each": Code(DenseTable(), Nearest(1000, 20)),
    "k-SVD 500, 10 each": Code(DenseTable(), KSvd(500, 10)),
    "k-SVD 1000, 20 each": Code(DenseTable(), KSvd(1000, 20)),
    "low rank 49": LowRankTable(49),
    "low rank 24": LowRankTable(24),
    "hash 1000 + 1000": HashedTable(1000),
    "hash 4000 + 1000": HashedTable(4000),
}
_EACH = {500: 18, 1000: 23, 2000: 26, 100: 2}  # published: non-zeros per word
for _anchors, _keep in _EACH.items():
    for _initial in ("frequency", "random", "clustering"):
        _table = AnchorTable(_anchors, _initial, l1=1e-5 if _anchors == 100 else 1e-6)
        METHODS[f"ANT {_anchors} {_initial}"] = _table
        METHODS[f"ANT {_anchors} {_initial}, largest {_keep} each"] = Largest(_table, _keep)
        if _initial == "frequency":
            METHODS[f"ANT {_anchors} {_initial}, WordNet"] = replace(_table, wordnet=True)
            METHODS[f"ANT {_anchors} {_initial}, 1e-5"] = replace(_table, l1=1e-5)


class Training:
    """State of a training, advanced one epoch at a time."""

    def __init__(self, method: Trained, text: Text, settings: Settings, seed: int) -> None:
        torch.manual_seed(seed)
        self.text, self.settings = text, settings
        made = method.make(text, settings, seed)
        self.model = RegularisedLanguageModel(made.table, text.counts, settings)
        self.rest = [self.model.bias, *self.model.lstm.parameters()]
        groups: list[dict[str, Any]] = [{"params": self.rest, "weight_decay": settings.decay}]
        if made.shared:
            groups.append({"params": made.shared, "lr": settings.lr / 10})
        others = torch.optim.Adam(groups, settings.lr, (0.9, 0.99), fused=True)
        self.optimizers = [made.rows, others]
        self.generator = torch.Generator().manual_seed(seed)
        self.proposal = ff.Popularity()
        self.proposal.fit(self.model.bias.detach().unsqueeze(1), text.counts + 0.5)
        self.curve: list[float] = []  # validation perplexity after each epoch
        self.sizes: list[int] = []
        self.seconds = 0.0
        self.best: dict[str, Tensor] = {}

    @property
    def since_best(self) -> int:
        """Epochs since the best one, an epoch being better if it is so by `enough`."""
        last, best = 0, float("inf")
        for epoch, value in enumerate(self.curve, 1):
            if value < best * (1 - self.settings.enough):
                last, best = epoch, value
        return len(self.curve) - last

    @property
    def done(self) -> bool:
        """Whether validation has stopped falling, after the least number of epochs."""
        settings, epochs = self.settings, len(self.curve)
        stopped = epochs >= settings.least and self.since_best >= settings.patience
        return stopped or epochs >= settings.most

    def epoch(self) -> None:
        """Train on all batches, measure validation perplexity, and lower the rate if need be."""
        state, begin = None, time.process_time()
        for words, after in batches(self.text.train, self.settings.batch, self.settings.length):
            state = self._learn(words, after, state)
        self.seconds += time.process_time() - begin
        self.curve.append(round(perplexity(self.model, self.text.valid, self.settings), 2))
        self.sizes.append(size(self.model.table))
        if self.curve[-1] == min(self.curve):
            self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        if self.since_best:
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] *= self.settings.factor

    def _learn(self, words: Tensor, after: Tensor, state: State | None) -> State:
        queries, state, penalty = self.model.regularised(words, state)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (self._loss(queries, after) + penalty).backward()
        nn.utils.clip_grad_norm_(self.rest, self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return state

    def _loss(self, queries: Tensor, after: Tensor) -> Tensor:
        if self.settings.samples is None:
            rows = self.model.rows(torch.arange(self.text.words))
            return F.cross_entropy(queries @ rows.T, after)
        return ff.sampled_softmax_loss(
            queries, self.model.rows, after, self.proposal, samples=self.settings.samples,
            shared=True, generator=self.generator,
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the state."""
        parts = [each.state_dict() for each in (self.model, *self.optimizers)]
        draws = (torch.get_rng_state(), self.generator.get_state())
        record = (self.curve, self.sizes, self.seconds, self.best)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as unfinished:
            torch.save((parts, draws, record), unfinished)

    def load(self, path: Path) -> None:
        """Restore the state, if there is one."""
        if not path.exists():
            return
        parts, (everywhere, own), record = torch.load(path)
        for each, state in zip((self.model, *self.optimizers), parts, strict=True):
            each.load_state_dict(state)
        self.curve, self.sizes, self.seconds, self.best = record
        torch.set_rng_state(everywhere)
        self.generator.set_state(own)


def trained(method: Trained, text: Text, settings: Settings, seed: int, models: Path) -> Training:
    """Return a finished training, with the model of its best epoch."""
    about = f"until converged {text.name} {seed} {method} {settings}"
    path = models / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.pt"
    training = Training(method, text, settings, seed)
    training.load(path)
    while not training.done:
        training.epoch()
        training.save(path)
        print(
            f"  epoch {len(training.curve)}: validation perplexity {training.curve[-1]:.2f}, "
            f"{training.sizes[-1]:,} numbers, {training.seconds:.0f} s, "
            f"rate {training.optimizers[1].param_groups[0]['lr']:.1e}",
            flush=True,
        )
    training.model.load_state_dict(training.best)
    return training


def measure(method: Kind, text: Text, settings: Settings, seed: int, models: Path) -> Row:
    """Return a row: the size of the table, and perplexities at the best epoch on validation."""
    training = trained(method.begins, text, settings, seed, models)
    model = training.model
    parameters = method.finish(model, text, seed)
    row: dict[str, Any] = {"parameters": parameters}
    for part, tokens in (("valid", text.valid), ("test", text.test)):
        row[part] = round(perplexity(model, tokens, settings), 2)
    best = training.curve.index(min(training.curve)) + 1
    row |= {"epoch": best, "epochs": len(training.curve), "curve": training.curve}
    if len(set(training.sizes)) > 1:
        row["sizes"] = training.sizes
    return {**row, "processor seconds of training": round(training.seconds, 1)}


def run(
    text: Text, names: list[str], settings: Settings, seed: int, results: Path, models: Path
) -> None:
    """Add the missing rows."""
    for name in names:
        print(f"{text.name}: {name}", flush=True)
        method = METHODS[name]
        key = {"settings": asdict(method), "seed": seed, "budget": asdict(settings)}
        make = partial(measure, method, text, settings, seed, models)
        Record(results).once(make, text=text.name, method=name, **key)


def agreement(
    text: Text, names: list[str], settings: Settings, epochs: int, seed: int, results: Path,
    models: Path,
) -> None:  # fmt: skip
    """Add rows of the same few epochs with the full softmax and with the sampled one."""
    short = replace(settings, least=epochs, most=epochs)
    run(text, names, short, seed, results, models)
    run(text, names, replace(short, samples=None), seed, results, models)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", help="separated by semicolons; by default all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="train with the full softmax")
    parser.add_argument("--agreement", type=int, metavar="EPOCHS", help="compare both softmaxes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = options.methods.split(";") if options.methods else list(METHODS)
    settings = Settings(samples=None) if options.full else Settings()
    if options.agreement:
        agreement(ptb(), names, settings, options.agreement, options.seed, AGREEMENT, MODELS)
    else:
        run(ptb(), names, settings, options.seed, RESULTS, MODELS)


if __name__ == "__main__":
    main()
