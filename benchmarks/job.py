"""The whole of `fewfold fit` for growing catalogues, next to a job with the ALS of implicit.

A job reads a Parquet file, holds out a fifth of each user's items, trains, evaluates and writes the
model. The log is synthetic: items by Zipf's law in clusters, of which every user likes a few. Both
jobs are processes of their own, on the same file, with the same held-out items, ranked among all
items. implicit has 64 factors and 15 iterations. `fewfold fit` chooses a model itself within
--time-budget, one and a half times as long as implicit took and at least a minute. From a million
items on the model is named, since the trials of a choice would take several times as long as it.

``python -m benchmarks.job ITEMS``: both jobs for so many items, phase by phase, as JSON; what was
measured before is in build/benchmarks/job. Arguments behind it replace --time-budget.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Case, Peak

FOLDER = Path("build/benchmarks/job")
ROWS = {10_000: 500_000, 100_000: 2_000_000, 1_000_000: 10_000_000, 3_000_000: 10_000_000}
LIMITS = {1_000_000: 4e9, 3_000_000: 8e9}  # bytes
NAMED = ("--model", "sparse-ease", "--l2", "20", "--predictors", "50")
IMPLICIT = "implicit, ALS"
TIMES = 1.5  # as long as implicit may a job take, or a minute
_MINUTE = 60.0
_RANKED = 10_000  # users that implicit ranks
_ITEMS_A_CLUSTER, _ROWS_A_USER, _TASTES = 100, 20, 3
_AT_RANDOM = 0.2  # share of the rows outside of the clusters of the user
_PIECE = 1_000_000  # rows drawn at a time


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [case for items in ROWS for case in _of_size(items)] if find_spec("implicit") else []


def _of_size(items: int) -> Iterator[Case]:
    size = f"{items} items, {ROWS[items]} rows"
    if items in LIMITS:
        limit = f"{LIMITS[items] / 1e9:g} GB"
        yield Case("fewfold fit, peak memory", size, limit, 1.0, partial(_peak, items), threads=2)
    if items == max(ROWS):  # implicit would take a quarter of an hour
        return
    peer = IMPLICIT if items in LIMITS else "1 minute"
    bar = TIMES if items in LIMITS else 1.0
    yield Case("fewfold fit, time", size, peer, bar, partial(_time, items), threads=2)
    yield Case("fewfold fit, 1 - NDCG@10", size, IMPLICIT, 1.0, partial(_miss, items), threads=2)


def _time(items: int) -> Peak:
    ours, peer = both(items)
    limit = peer["seconds"] if items in LIMITS else _MINUTE
    return Peak(ours["seconds"], limit, "seconds", _details(ours, peer))


def _miss(items: int) -> Peak:
    ours, peer = both(items)
    return Peak(1 - ours["ndcg@10"], 1 - peer["ndcg@10"], "")


def _peak(items: int) -> Peak:
    ours = fewfold_job(items, *NAMED)
    return Peak(
        ours["peak"], LIMITS[items], details={"seconds": ours["seconds"], "cpu": ours["cpu"]}
    )


def _details(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    found = {"ours_cpu_seconds": ours["cpu"], "peer_cpu_seconds": peer["cpu"]}
    found |= {"ours_peak": ours["peak"], "peer_peak": peer["peak"]}
    for name, job in (("ours", ours), ("peer", peer)):
        for phase, seconds, peak in job["phases"]:
            found[f"{name}: {phase}, seconds"] = seconds
            found[f"{name}: {phase}, peak"] = peak
    return found


@cache
def both(items: int, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both jobs one after the other; return what each took and reached.

    A job is not run again where its record is newer than the log: that of implicit may have taken
    long, and the two can be measured apart.
    """
    log = write_log(items, ROWS.get(items, 10_000_000))
    peer = _once("job_implicit", log, str(FOLDER / f"model-{items}"), str(_RANKED))
    budget = max(TIMES * peer["seconds"], _MINUTE)
    usual = NAMED if items in LIMITS else ("--time-budget", f"{budget:.0f}")
    return fewfold_job(items, *(arguments or usual)), peer


def fewfold_job(items: int, *arguments: str) -> dict[str, Any]:
    """Run `fewfold fit` with these arguments; return what it took and reached."""
    log = write_log(items, ROWS.get(items, 10_000_000))
    return _once("job_traced", log, str(FOLDER / f"model-{items}"), *arguments)


def _once(module: str, log: Path, *arguments: str) -> dict[str, Any]:
    name = "_".join([module, log.stem, *arguments[1:]]).replace(" ", "")
    kept = log.with_name(f"{name}.json")
    if not kept.exists():
        kept.write_text(json.dumps(_child(module, str(log), *arguments), indent=1))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def _child(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module with as many threads as torch has here; return what it prints, and its time."""
    threads = str(torch.get_num_threads())
    env = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_log(items: int, rows: int, seed: int = 0) -> Path:
    """Write a log of about so many rows, the same for the same seed; keep it if it is there."""
    import polars as pl

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{items}-{rows}-{seed}.parquet"
    if not path.exists():
        pieces = list(_pieces(items, rows, seed))
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        pl.DataFrame(columns).write_parquet(path)
    return path


def _pieces(items: int, rows: int, seed: int) -> Iterator[dict[str, Any]]:
    draws = np.random.default_rng(seed)
    clusters, users = items // _ITEMS_A_CLUSTER, rows // _ROWS_A_USER
    # Popular items are spread over the clusters, and have random numbers.
    number = draws.permutation(items)
    tastes = _zipf(draws, clusters, (users, _TASTES), exponent=0.3)
    for start in range(0, rows, _PIECE):
        size = min(_PIECE, rows - start)
        user = draws.integers(users, size=size)
        cluster = tastes[user, draws.integers(_TASTES, size=size)]
        item = cluster + clusters * _zipf(draws, _ITEMS_A_CLUSTER, size)
        anything = draws.random(size) < _AT_RANDOM
        item[anything] = _zipf(draws, items, int(anything.sum()))
        yield {"user": user.astype(np.int32), "item": number[item].astype(np.int32)}


def _zipf(draws: np.random.Generator, count: int, size: Any, *, exponent: float = 0.7) -> Any:
    """Places below `count`; place r, from 1, is drawn about in proportion to r^-exponent."""
    return (count * draws.random(size) ** (1 / (1 - exponent))).astype(np.int64)


def main(arguments: Sequence[str]) -> None:
    """Run the jobs for one size and print both."""
    items, *others = arguments
    ours, peer = both(int(items), *others)
    print(json.dumps({"ours": ours, "implicit": peer}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
