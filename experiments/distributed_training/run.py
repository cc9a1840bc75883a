"""Train a FastVAE on MovieLens-10M by one, two and three processes, and compare the results.

``python -m experiments.distributed_training.run`` adds what is missing to results.json: it may be
stopped and started again. It starts the processes of each training itself.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fewfold as ff
from experiments import datasets, readme
from experiments.fastvae.run import DATA, quality
from experiments.record import Record, origin

RECORD = Record(Path(__file__).parent / "results.json")


def train(seed: int) -> None:
    """Train as one process of a group; the first one stores the row."""
    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    settings, split = DATA["ml10m"], datasets.ml10m(seed)
    tables = ff.recommender.ShardedTables(split.train.items)
    model = ff.recommender.FastVAE(tables, seed=seed)
    proposal = ff.MultiIndex(16, within="popularity")
    objective = ff.recommender.SampledSoftmax(proposal, settings.samples)
    epochs = ff.recommender.train(
        model, split.train, objective=objective, epochs=settings.epochs, seed=seed,
        progress=tables.group.leads,
    )  # fmt: skip
    found = quality(model.recommend(split.fold_in, 50), split)
    if tables.group.leads:
        losses = [round(epoch.loss, 4) for epoch in epochs]
        RECORD.add([{"processes": world, "seed": seed, **found, "losses": losses, **origin()}])
    if world > 1:
        dist.destroy_process_group()


def start(world: int, seed: int) -> None:
    """Start the processes of a training, and wait for them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    command = [sys.executable, "-m", "experiments.distributed_training.run", "--process", str(seed)]
    started = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)})
        for rank in range(world)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"the training by {world} processes with seed {seed} failed")


def table() -> str:
    """Return NDCG@50, Recall@50 and the last loss by the number of processes, as Markdown."""
    lines = ["| processes | seeds | NDCG@50 | Recall@50 | last loss |", "|--:|--:|--:|--:|--:|"]
    for world in sorted({row["processes"] for row in RECORD.rows()}):
        rows = RECORD.rows(processes=world)
        cells = [_mean([row[name] for row in rows], 4) for name in ("NDCG@50", "Recall@50")]
        last = _mean([row["losses"][-1] for row in rows], 3)
        lines.append(f"| {world} | {len(rows)} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def _mean(values: list[float], digits: int) -> str:
    found = torch.tensor(values, dtype=torch.float64)
    spread = f" ± {found.std().item():.{digits}f}" if len(values) > 1 else ""
    return f"{found.mean().item():.{digits}f}{spread}"


def main() -> None:
    """Train what is missing, and print the table."""
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        train(options.process)
        return
    for seed in range(options.seeds):
        for world in options.worlds:
            if not RECORD.rows(processes=world, seed=seed):
                start(world, seed)
    readme.update(Path(__file__).parent / "README.md", table())
    print(table())


if __name__ == "__main__":
    main()
