"""NDCG@50 against bytes of FastVAE with anchor tables, and with dense, rounded and low-rank ones.

``python -m experiments.recommender_compression.run ml10m`` adds what is missing to results.json: it
may be stopped and started again.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from experiments import datasets
from experiments.record import Record, origin
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender import AnchoredTables, Anchors, AnchorVAE

RECORD = Record(Path(__file__).parent / "results.json")
DENSE, ROUNDED, ANCHORS, LOW_RANK = "dense", "dense, int8", "anchors", "low rank"
CUT = "dense, cut {}x"  # to anchors, after training
METRICS = (ff.recommender.NDCG(50), ff.recommender.Recall(50))


@dataclass(frozen=True)
class Data:
    """A dataset, its training settings, and the anchors of each compression ratio."""

    split: Callable[[int], ff.recommender.Split]
    epochs: int
    samples: int
    anchors: dict[int, Anchors]
    """trained from the start"""
    cuts: dict[int, Anchors]
    """cut from the dense tables after training"""


DATA = {
    "ml10m": Data(
        datasets.ml10m, 16, 200,
        {10: Anchors(63, 48), 30: Anchors(63, 15), 100: Anchors(30, 4)},
        {10: Anchors(95, 90), 30: Anchors(63, 28), 100: Anchors(40, 11, bits=5)},
    ),
    "gowalla": Data(
        datasets.gowalla, 20, 1000,
        {10: Anchors(127, 48), 30: Anchors(127, 16), 100: Anchors(63, 4)},
        {10: Anchors(95, 90), 30: Anchors(63, 42, bits=6), 100: Anchors(63, 23, bits=3)},
    ),
    "epinions": Data(
        datasets.epinions, 12, 1000,
        {10: Anchors(63, 48), 30: Anchors(63, 16), 100: Anchors(63, 4)},
        {10: Anchors(95, 90), 30: Anchors(63, 42, bits=6), 100: Anchors(63, 23, bits=3)},
    ),
}  # fmt: skip


class LowRank(AnchoredTables):
    """Anchored tables with a dense transform: their size follows from the rank."""

    def row_optimizer(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """Return an optimiser that drops no entry."""
        return optimizer


def methods(data: Data) -> list[str]:
    """Return all methods, the dense tables first."""
    return [DENSE] + [f"{kind}, {ratio}x" for kind in (ANCHORS, LOW_RANK) for ratio in data.anchors]


def given_by(method: str, data: Data) -> list[str]:
    """Return the rows that one training produces: all cuts are made of the same dense tables."""
    return [DENSE, *map(CUT.format, data.cuts), ROUNDED] if method == DENSE else [method]


def rows_of(
    method: str, data: Data, split: ff.recommender.Split, seed: int
) -> list[dict[str, Any]]:
    """Train a method and return the rows that `given_by` names."""
    items = split.train.items
    kind, _, setting = method.partition(", ")
    if kind == DENSE:
        model = ff.recommender.FastVAE(items, seed=seed)
        whole = 4 * (model.inputs.numel() + model.items.numel())
        seconds = _trained(model, data, split, seed)
        parameters = whole // 4
        rows = [_row(DENSE, model, split, whole, parameters)]
        rows += cut_rows(model, data, split)
        rows.append(_row(ROUNDED, model, split, _round(model), parameters))
    else:
        anchors = data.anchors[int(setting.removesuffix("x"))]
        tables: type[AnchoredTables] = AnchoredTables if kind == ANCHORS else LowRank
        if kind == LOW_RANK:
            anchors = Anchors(rank := _rank(items, int(setting.removesuffix("x"))), rank)
        model = ff.recommender.FastVAE(tables(items, anchors), seed=seed)
        seconds = _trained(model, data, split, seed)
        model.finalize()
        small = small_size(model) if kind == ANCHORS else (rank + 1) * (items + WIDTH + 8)
        parameters = model.table.size()
        row = _row(method, model, split, small, parameters)
        empty = int(torch.bincount(_item(model.tables.packed), minlength=items).eq(0).sum())
        rows = [{**row, "anchors": anchors.count, "per item": anchors.width, "empty items": empty}]
    return [{**row, "train seconds": seconds} for row in rows]


WIDTH = 264  # of both dense tables


def cut_rows(
    model: ff.recommender.FastVAE, data: Data, split: ff.recommender.Split
) -> list[dict[str, Any]]:
    """Return one row per ratio: the trained model cut to so many anchors, without fine-tuning."""
    rows = []
    for ratio, anchors in data.cuts.items():
        start = time.process_time()
        small = AnchorVAE.from_dense(model, anchors, split.train)
        small.finalize()
        seconds = round(time.process_time() - start, 1)
        row = _row(CUT.format(ratio), small, split, small_size(small), small.table.size())
        made = {"anchors": anchors.count, "per item": anchors.width, "bits": anchors.bits}
        rows.append({**row, **made, "cut seconds": seconds})
    return rows


def small_size(model: ff.recommender.FastVAE) -> int:
    """Return the bytes of the tensors that replace the two tables."""
    return sum(part.numel() * part.element_size() for part in model.tables.packed.values())


def _rank(items: int, ratio: int) -> int:
    """Return the largest rank of the required size, with one byte per number and a bias column."""
    return max(1, 4 * items * WIDTH // ratio // (items + WIDTH + 8) - 1)


def _item(packed: dict[str, Tensor]) -> Tensor:
    """Return the item of each stored number."""
    if "lengths" in packed:
        lengths = packed["lengths"].long()
        return torch.arange(len(lengths)).repeat_interleave(lengths)
    return packed["values"].nonzero()[:, 0]


@torch.no_grad()
def _round(model: ff.recommender.FastVAE) -> int:
    """Quantise the tables to one byte per number and a scale per row, in place; return bytes."""
    for table in model.tables.row_parameters:
        scale = table.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        table.copy_((table / scale).round() * scale)
    return sum(table.numel() + 4 * len(table) for table in model.tables.row_parameters)


def _trained(
    model: ff.recommender.FastVAE, data: Data, split: ff.recommender.Split, seed: int
) -> float:
    proposal = ff.MultiIndex(min(16, split.train.items), within="popularity")
    start = time.process_time()
    ff.recommender.train(
        model, split.train, seed=seed,
        objective=ff.recommender.SampledSoftmax(proposal, data.samples),
        epochs=data.epochs, progress=False,
    )  # fmt: skip
    return round(time.process_time() - start, 1)


def _row(
    method: str,
    model: ff.recommender.FastVAE,
    split: ff.recommender.Split,
    size: int,
    parameters: int,
) -> dict[str, Any]:
    report = ff.recommender.evaluate(
        model.recommend(split.fold_in, 50), split.test, METRICS, resamples=1
    )
    dense = 4 * split.train.items * WIDTH
    return {
        "method": method, "bytes": size, "parameters": parameters, "ratio": round(dense / size, 1),
        **{str(metric): round(report[metric].mean, 4) for metric in METRICS},
    }  # fmt: skip


def run(dataset: str, names: list[str], seeds: list[int]) -> None:
    """Add the missing rows."""
    data = DATA[dataset]
    for seed in seeds:
        split = data.split(seed)
        for name in names:
            lacking = [m for m in given_by(name, data)
                       if not RECORD.rows(data=dataset, method=m, seed=seed)]  # fmt: skip
            if not lacking:
                continue
            rows = [row for row in rows_of(name, data, split, seed) if row["method"] in lacking]
            print(*rows, sep="\n", flush=True)
            RECORD.add([{"data": dataset, "seed": seed, **row, **origin()} for row in rows])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=DATA)
    parser.add_argument("--methods", help="separated by semicolons; by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    every = methods(DATA[options.dataset])
    names = options.methods.split(";") if options.methods else every
    unknown = set(names) - set(every)
    if unknown:
        parser.error(f"unknown methods {sorted(unknown)}; there are {'; '.join(every)}")
    run(options.dataset, names, options.seeds)


if __name__ == "__main__":
    main()
