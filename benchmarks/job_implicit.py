"""``python -m benchmarks.job_implicit LOG OUT USERS``: a job with the ALS of implicit.

Reads the log with pandas, trains, ranks so many users and writes the model; prints a JSON object.
The held-out items and the users are those of `fewfold fit`, found without counting the time.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from benchmarks.resources import Stopwatch
from fewfold.recommender import NDCG, Split, read_log
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.metrics import evaluate

FACTORS, ITERATIONS = 64, 15


class Phases:
    """Time and peak memory of one phase after the other."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self.found: list[tuple[str, float, int, float]] = []
        self.at = self.cpu = 0.0

    def start(self) -> None:
        """Begin a phase."""
        self.watch.peak_since()
        self.at, self.cpu = time.perf_counter(), time.process_time()

    def stop(self, name: str) -> None:
        """End it."""
        seconds, cpu = time.perf_counter() - self.at, time.process_time() - self.cpu
        self.found.append((name, round(seconds, 3), self.watch.peak_since(), cpu))


def read(path: str) -> Any:
    """The user-item matrix, as its users read it."""
    import pandas as pd

    table = pd.read_parquet(path).drop_duplicates()
    users, user_ids = pd.factorize(table["user"], sort=True)
    items, item_ids = pd.factorize(table["item"], sort=True)
    ones = np.ones(len(users), dtype=np.float32)
    return csr_matrix((ones, (users, items)), shape=(len(user_ids), len(item_ids)))


def held_out(path: str, count: int) -> tuple[Split, np.ndarray]:
    """The split of `fewfold fit`, and the users it ranks."""
    split, _ = hold_out(read_log(path).interactions, test=0.2, split="auto", seed=0)
    tested = (split.test.jagged.lengths > 0).nonzero().squeeze(1)
    if count >= len(tested):
        return split, tested.numpy()
    order = tested[torch.randperm(len(tested), generator=torch.Generator().manual_seed(0))]
    return split, order[:count].sort().values.numpy()


def main(path: str, out: str, count: str) -> None:
    """Run the job, and print what it took."""
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import ThreadpoolController

    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    phases = Phases()
    phases.start()
    read(path)
    phases.stop("reading")
    split, users = held_out(path, int(count))
    train = csr_matrix(split.train.to_csr())
    phases.start()
    model = AlternatingLeastSquares(
        FACTORS, iterations=ITERATIONS, num_threads=torch.get_num_threads(), random_state=0
    )
    model.fit(train, show_progress=False)
    phases.stop("fitting")
    phases.start()
    ids = model.recommend(users, train[users], N=50)[0]
    wanted = split.test.rows(torch.from_numpy(users))
    found = evaluate(torch.from_numpy(ids).long(), wanted, (NDCG(10),), resamples=0)
    phases.stop("evaluating")
    phases.start()
    model.save(str(Path(out).with_suffix(".npz")))
    phases.stop("writing")
    print(
        json.dumps(
            {
                "seconds": sum(seconds for _, seconds, _, _ in phases.found),
                "cpu": sum(cpu for _, _, _, cpu in phases.found),
                "peak": max(peak for _, _, peak, _ in phases.found),
                "ndcg@10": found[NDCG(10)].mean,
                "users": len(users),
                "phases": [phase[:3] for phase in phases.found],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
