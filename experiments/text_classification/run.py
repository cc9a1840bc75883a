"""Text classification by a CNN over word tables of very different sizes.

``python -m experiments.text_classification.run ag_news_partial`` adds what is missing to
results.json: it may be stopped and started again. With ``--epochs 20`` rows go to long.json.
"""

import argparse
import copy
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments.arguments import whole
from experiments.record import Record, origin
from experiments.text_classification import tables
from experiments.text_classification.corpora import Corpus, Texts, load
from experiments.text_classification.group_lasso import GroupLasso
from experiments.text_classification.model import TextCNN
from experiments.text_classification.selection import SelectiveTable
from experiments.text_classification.sparse_code import SparseCode
from experiments.text_classification.sparse_variational_dropout import SparseVariationalDropout
from experiments.text_classification.tables import (
    Anchored,
    Dense,
    LowRank,
    Mixed,
    Near,
    Rows,
    Table,
)
from experiments.text_classification.vocabulary_dropout import VocabularyDropout

RECORD = Record(Path(__file__).parent / "results.json")
LONG = Record(Path(__file__).parent / "long.json")


@dataclass(frozen=True)
class Budget:
    """Training settings."""

    epochs: int
    batch: int = 256
    length: int = 100
    dim: int = 256
    filters: int = 100
    lr: float = 3e-3


DENSE = "dense"
METHODS: dict[str, Table] = {
    DENSE: Dense(),
    "rows of frequent words": Rows(),
    "rows, half of them hashed": Rows(shared=0.5),
    "low rank": LowRank(),
    "ANT, 14 frequent, any non-zeros": Anchored(14, keep=None),
    "ANT, 20 frequent": Anchored(),
    "ANT, 20 random": Anchored(choice=tables.drawn),
    "ANT, 20 cluster": Anchored(choice=tables.spread),
    "ANT, 20 frequent, WordNet": Anchored(knowledge=tables.wordnet),
    "ANT, 20 frequent, co-occurrence": Anchored(knowledge=Near()),
    "ANT, 5, mixture of 2": Mixed(),
}
# The table of the paper, its sizes for each kind of method relative to its vocabulary.
PUBLISHED: dict[str, Table] = {
    DENSE: Dense(),
    "frequency": Rows(times=12),
    "TF-IDF": Rows(times=12, choice=tables.tf_idf),
    "group lasso": GroupLasso(times=15),
    "variational vocabulary dropout": VocabularyDropout(times=20),
    "sparse variational dropout": SparseVariationalDropout(),
    "sparse variational dropout of entries and words": SparseVariationalDropout(words=True),
    "sparse code, 100 frequent": SparseCode(),
    "ANT, 50 frequent, any non-zeros": Anchored(50, keep=None),
    "ANT, 10 frequent, any non-zeros": Anchored(10, keep=None),
    "ANT, 10 random, any non-zeros": Anchored(10, choice=tables.drawn, keep=None),
}
BUDGETS = {
    "ag_news_partial": Budget(epochs=2),
    "searchsnippets": Budget(epochs=5),
    "stackoverflow_titles": Budget(epochs=5),
    "mr": Budget(epochs=5),
}


@torch.no_grad()
def accuracy(model: TextCNN, texts: Texts) -> float:
    """Return the accuracy in per cent."""
    model.eval()
    hits = sum(int((model(words).argmax(1) == label).sum()) for words, label in texts.batches(512))
    model.train()
    return 100 * hits / len(texts)


def optimizer(
    model: TextCNN, method: Table, corpus: Corpus, lr: float, steps: int
) -> torch.optim.Optimizer:
    """Return Adam; for anchor tables with the proximal step and its schedule."""
    inner = torch.optim.Adam(model.parameters(), lr, fused=True)
    if isinstance(method, Mixed) and isinstance(model.table, ff.embeddings.AnchorMixture):
        return ff.proximal(inner, model.table.tables, l1=method.l1)
    if not isinstance(model.table, ff.AnchorEmbedding) or not isinstance(method, Anchored):
        return inner
    keep = None
    if method.keep is not None:
        keep = ff.embeddings.Narrowing(
            method.anchors, method.keep, over=max(1, steps // 3), after=steps // 2
        )
    return ff.proximal(
        inner, model.table, l1=method.l1, keep=keep, relations=method.relations(corpus)
    )


def train(method: Table, corpus: Corpus, budget: Budget, seed: int) -> dict[str, Any]:
    """Return a row: test accuracy and size at the epoch that is best on validation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    table = method.make(corpus, budget.dim, generator)
    model = TextCNN(table, budget.dim, corpus.classes, budget.filters)
    steps, done = budget.epochs * math.ceil(len(corpus.train) / budget.batch), 0
    chosen = optimizer(model, method, corpus, budget.lr, steps)
    decay = torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: 1 - step / steps)
    selective = table if isinstance(table, SelectiveTable) else None
    valid, best, held, clock = [], model, 0, time.process_time()
    for _ in range(budget.epochs):
        for words, label in corpus.train.batches(budget.batch, generator):
            chosen.zero_grad()
            loss = F.cross_entropy(model(words), label)
            if selective is not None:
                loss = loss + selective.penalty(done / steps)
            loss.backward()
            chosen.step()
            if selective is not None:
                selective.after_step(chosen.param_groups[0]["lr"])
            decay.step()
            done += 1
        model_now, numbers = stored(model)
        valid.append(round(accuracy(model_now, corpus.valid), 2))
        if valid[-1] == max(valid):  # of equals the last
            best, held = model_now, numbers
    seconds = round(time.process_time() - clock, 1)
    return {
        "test": round(accuracy(best, corpus.test), 2),
        "valid": valid,
        "epoch": len(valid) - valid[::-1].index(max(valid)),
        "numbers": held,
        "times fewer": round(len(corpus.vocabulary) * budget.dim / held, 1),
        "processor seconds": seconds,
        **shape(best.table),
    }


def stored(model: TextCNN) -> tuple[TextCNN, int]:
    """Return a copy of the model with the table as it would be stored, and the table's size."""
    kept = copy.deepcopy(model)
    if isinstance(kept.table, SelectiveTable):
        kept.table, numbers = kept.table.selected()
        return kept, numbers
    return kept, tables.size(kept.table)


def shape(table: torch.nn.Module) -> dict[str, int]:
    """Return the non-zeros of an anchor table, and the number of zero rows."""
    if not isinstance(table, ff.AnchorEmbedding):
        return {}
    per_word: Tensor = table.rows().offsets.diff()
    return {"non-zeros": int(per_word.sum()), "words without": int((per_word[1:] == 0).sum())}


def run(name: str, chosen: list[str], seeds: int, epochs: int | None = None) -> None:
    """Add the missing rows; those of another number of epochs go to `LONG`."""
    budget, record = BUDGETS[name], RECORD
    if epochs is not None and epochs != budget.epochs:
        budget, record = replace(budget, epochs=epochs), LONG
    own = {"epochs": budget.epochs} if record is LONG else {}
    corpus: Corpus | None = None
    for seed in range(seeds):
        for method in chosen:
            key = {"data": name, "method": method, "seed": seed, **own}
            if record.rows(**key):
                continue
            corpus = corpus or load(name, length=budget.length)
            row = train((METHODS | PUBLISHED)[method], corpus, budget, seed)
            print(key, row, flush=True)
            record.add([{**key, **row, "words": len(corpus.vocabulary) - 1, **origin()}])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=BUDGETS, nargs="+")
    parser.add_argument("--methods", help="separated by semicolons; by default all")
    parser.add_argument("--published", action="store_true", help="the methods of the paper's table")
    parser.add_argument("--epochs", type=whole, help="by default those of results.json")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    chosen = [*PUBLISHED] if options.published else [*METHODS]
    torch.set_num_threads(1)
    for name in options.data:
        run(
            name, options.methods.split(";") if options.methods else chosen, options.seeds,
            options.epochs,
        )  # fmt: skip


if __name__ == "__main__":
    main()
