"""A language model with tied embeddings, trained with full and sampled softmax.

``python -m experiments.language_model.run`` adds what is missing to results.json: it may be stopped
and started again. ``--race 12`` writes timings.json instead: steps of all methods in turn.
"""

import argparse
import json
import lzma
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments import datasets
from experiments.record import Record, origin

RESULTS = Path(__file__).parent / "results.json"
TIMINGS = RESULTS.with_name("timings.json")
_BLOCK = 128  # queries whose scores of all words are held at once when measuring


@dataclass(frozen=True)
class Text:
    """A corpus as word ids below `words`; every word occurs in the training part."""

    train: Tensor  # (tokens,) int64
    valid: Tensor
    words: int

    @property
    def counts(self) -> Tensor:
        """Word counts of the training part."""
        return torch.bincount(self.train, minlength=self.words)


@dataclass(frozen=True)
class Budget:
    """Training settings."""

    steps: int = 500
    batch: int = 20
    length: int = 35
    width: int = 128
    refresh: int = 100  # steps between two looks of the proposal at the table
    valid: int = 30_000  # tokens
    lr: float = 5e-3
    dropout: float = 0.1


@dataclass(frozen=True)
class Sampled:
    """A sampled loss and its proposal."""

    proposal: Callable[[], ff.sampling.Proposal]
    samples: int
    shared: bool
    loss: Callable[..., Tensor] = ff.sampled_softmax_loss


def _multi_index() -> ff.sampling.Proposal:
    return ff.MultiIndex(16)


def _popular_multi_index() -> ff.sampling.Proposal:
    return ff.MultiIndex(16, within="popularity")


METHODS: dict[str, Sampled | None] = {
    "full softmax": None,
    "uniform, shared": Sampled(ff.Uniform, 1000, shared=True),
    "popularity, shared": Sampled(ff.Popularity, 1000, shared=True),
    "multi-index, shared": Sampled(_multi_index, 1000, shared=True),
    "multi-index by popularity, shared": Sampled(_popular_multi_index, 1000, shared=True),
    "noise-contrastive, popularity, shared": Sampled(
        ff.Popularity, 1000, shared=True, loss=ff.noise_contrastive_loss
    ),
    "popularity": Sampled(ff.Popularity, 200, shared=False),
    "multi-index": Sampled(_multi_index, 200, shared=False),
    "multi-index by popularity": Sampled(_popular_multi_index, 200, shared=False),
}


class LanguageModel(nn.Module):
    """GRU language model with tied input and output embeddings.

    A row of the table is a word's vector, and behind it the word's bias: the score of a word is
    row . (state of the GRU, 1). The bias begins as the log of the word's frequency, so that before
    any training the model is the unigram one.
    """

    def __init__(self, text: Text, width: int, dropout: float, *, sparse: bool) -> None:
        super().__init__()
        self.prior = torch.zeros(text.words, width)
        self.prior[:, -1] = (text.counts / len(text.train)).log()
        self.table = nn.Parameter(self.prior + 0)
        nn.init.normal_(self.table.data[:, :-1], std=0.1)
        self.gru = nn.GRU(width - 1, width - 1)
        self.dropout = nn.Dropout(dropout)
        self.sparse = sparse

    def forward(self, words: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return queries (length * batch, width) after each of the words (length, batch)."""
        vectors = F.embedding(words, self.table, sparse=self.sparse)[..., :-1]
        hidden, state = self.gru(self.dropout(vectors), state)
        queries = F.pad(self.dropout(hidden), (0, 1), value=1.0)
        return queries.flatten(0, 1), state.detach()

    def vectors(self, proposal: ff.sampling.Proposal) -> Tensor:
        """Return the item vectors for a proposal: rows, without the bias it knows from counts."""
        counted = isinstance(proposal, ff.MultiIndex) and proposal.within == "popularity"
        return self.table.detach() - self.prior if counted else self.table.detach()


def batches(tokens: Tensor, batch: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield words (length, batch) and next words (length * batch,) of contiguous columns."""
    columns = tokens[: len(tokens) // batch * batch].view(batch, -1).T
    for start in range(0, len(columns) - 1, length):
        words = columns[start : start + length + 1]
        yield words[:-1], words[1:].flatten()


@torch.no_grad()
def perplexity(model: LanguageModel, tokens: Tensor, budget: Budget) -> float:
    """Return the perplexity under the full softmax."""
    model.eval()
    state, total, count = None, 0.0, 0
    for words, after in batches(tokens, budget.batch, budget.length):
        queries, state = model(words, state)
        for some, their in zip(queries.split(_BLOCK), after.split(_BLOCK), strict=True):
            total += F.cross_entropy(some @ model.table.T, their, reduction="sum").item()
        count += len(after)
    model.train()
    return float(torch.tensor(total / count).exp())


def loss_of(
    model: LanguageModel, method: Sampled | None, counts: Tensor, seed: int
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[], object]]:
    """Return the loss of queries and next words, and the function that refreshes its proposal."""
    if method is None:
        return lambda queries, after: F.cross_entropy(queries @ model.table.T, after), lambda: None
    proposal = method.proposal()
    proposal.fit(model.vectors(proposal), counts)
    generator = torch.Generator().manual_seed(seed)

    def loss(queries: Tensor, after: Tensor) -> Tensor:
        return method.loss(
            queries, model.table, after, proposal, samples=method.samples, shared=method.shared,
            generator=generator,
        )  # fmt: skip

    return loss, lambda: proposal.refresh(model.vectors(proposal))


def optimizers_of(model: LanguageModel, lr: float) -> list[torch.optim.Optimizer]:
    """Return an optimiser for looked-up rows and one for the rest, or one for all if dense."""
    if not model.sparse:
        return [torch.optim.Adam(model.parameters(), lr=lr, fused=True)]
    rest = torch.optim.Adam(model.gru.parameters(), lr=lr, fused=True)
    return [ff.optim.Adam([model.table], lr=lr), rest]


class Training:
    """State of a training run."""

    def __init__(self, method: Sampled | None, text: Text, budget: Budget, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = LanguageModel(text, budget.width, budget.dropout, sparse=method is not None)
        self.loss, self.refresh = loss_of(self.model, method, text.counts, seed)
        self.optimizers = optimizers_of(self.model, budget.lr)
        self.state: Tensor | None = None

    def step(self, words: Tensor, after: Tensor, first: bool) -> None:
        """Train on one batch; the GRU state carries over unless the batch is the first."""
        queries, self.state = self.model(words, None if first else self.state)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.loss(queries, after).backward()
        for optimizer in self.optimizers:
            optimizer.step()


def train(method: Sampled | None, text: Text, budget: Budget, seed: int) -> dict[str, Any]:
    """Train a model; return its perplexity and the time of a step."""
    training = Training(method, text, budget, seed)
    refreshing, seconds = 0.0, []
    data = endless(text.train, budget.batch, budget.length)
    for step, batch in enumerate(islice(data, budget.steps)):
        begin = time.perf_counter()
        if step and step % budget.refresh == 0:
            training.refresh()
            refreshing += time.perf_counter() - begin
            begin = time.perf_counter()
        training.step(*batch)
        seconds.append(time.perf_counter() - begin)
    # The median, because the machine is shared; the proposal's upkeep is spread over the steps.
    each = statistics.median(seconds) + refreshing / budget.steps
    return {
        "perplexity": round(perplexity(training.model, text.valid[: budget.valid], budget), 1),
        "seconds per step": round(each, 4),
        "tokens per second": round(budget.batch * budget.length / each),
        "of which refresh": round(refreshing / budget.steps, 4),
        "train seconds": round(sum(seconds) + refreshing, 1),
    }


def race(text: Text, budget: Budget, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of a step of each method, measured in interleaved rounds.

    The median over the rounds, but for the first two; with the proposal's upkeep spread over steps.
    """
    runners = {name: Training(method, text, budget, 0) for name, method in METHODS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for batch in islice(endless(text.train, budget.batch, budget.length), rounds + 2):
        for name, training in runners.items():
            begin = time.process_time()
            training.step(*batch)
            seconds[name].append(time.process_time() - begin)
    found = {}
    for name, training in runners.items():
        begin = time.process_time()
        training.refresh()
        upkeep = (time.process_time() - begin) / budget.refresh
        found[name] = round(statistics.median(seconds[name][2:]) + upkeep, 4)
    return found


def endless(tokens: Tensor, batch: int, length: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield batches without end, and whether each is the first of its epoch."""
    while True:
        for place, (words, after) in enumerate(batches(tokens, batch, length)):
            yield words, after, place == 0


def wikitext2() -> Text:
    """Load WikiText-2: 33,278 words, by descending frequency."""

    def read(part: str) -> list[str]:
        path = datasets.DATA / "wikitext-2" / f"wiki.{part}.tokens.xz"
        return lzma.open(path, "rt", encoding="utf8").read().replace("\n", " <eos> ").split()

    train, valid = read("train"), read("valid")
    number = {word: i for i, (word, _) in enumerate(Counter(train).most_common())}
    first, second = (torch.tensor([number[word] for word in part]) for part in (train, valid))
    return Text(first, second, len(number))


def run(text: Text, names: list[str], budget: Budget, seeds: int, results: Path) -> None:
    """Add the missing rows."""
    record = Record(results)
    for seed in range(seeds):
        for name in names:
            make = partial(train, METHODS[name], text, budget, seed)
            record.once(make, method=name, seed=seed, budget=asdict(budget))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", help="separated by semicolons; by default all of them")
    parser.add_argument("--steps", type=int, default=Budget.steps)
    parser.add_argument("--lr", type=float, default=Budget.lr)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--race", type=int, help="only time this many steps, methods taking turns")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = options.methods.split(";") if options.methods else list(METHODS)
    budget = Budget(steps=options.steps, lr=options.lr)
    if options.race:
        seconds = race(wikitext2(), budget, options.race)
        row = {"seconds per step": seconds, "rounds": options.race, "budget": asdict(budget)}
        TIMINGS.write_text(json.dumps({**row, **origin()}, indent=1) + "\n")
    else:
        run(wikitext2(), names, budget, options.seeds, options.results)


if __name__ == "__main__":
    main()
