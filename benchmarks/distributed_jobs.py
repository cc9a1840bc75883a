"""Jobs of the suite ``distributed``, each run by all processes of a group, one per processor.

``python -m benchmarks.distributed_jobs JOB NUMBER...`` is started once for each process; the first
one prints what it measured as JSON.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

import fewfold as ff
from benchmarks.scaling_out import Step, training_step
from fewfold._resources import peak_memory
from fewfold.distributed.group import Group
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables

Found = dict[str, float]
JOBS: dict[str, Callable[..., Found]] = {}
ROUNDS = 9  # of blocks by all processes and by the first alone, one after the other


def job(function: Callable[..., Found]) -> Callable[..., Found]:
    """Register a job under its name."""
    JOBS[function.__name__] = function
    return function


@job
def training(items: int, batch: int, anchors: int = 0) -> Found:
    """Seconds per user of training steps, dense without anchors, and the bytes that they send."""
    sizes = replace(Step(), batch=batch, anchors=anchors)

    def step_of(group: Group) -> Callable[[], object]:
        return training_step(sizes, sizes.tables(items, group))

    group = Group.current()
    step = step_of(group)
    alone = step_of(Group()) if group.leads else None
    group.traffic.clear()
    step()
    sent = float(group.traffic.total)
    found = _raced(step, alone, max(4, 4096 // batch), batch)
    return {**found, "bytes": sent * group.world / batch, "formula": sizes.bytes(group.world)}


@job
def ranking(items: int, users: int) -> Found:
    """Seconds per user of the best 100 of all items."""
    group = Group.current()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(items, (users * 40,), generator=generator)
    history = ff.recommender.Jagged(ids, torch.arange(users + 1) * 40)

    def rank_of(own: Group) -> Callable[[], object]:
        model = FastVAE(ShardedTables(items, group=own))
        return lambda: model.recommend(history, 100)

    step = rank_of(group)
    return _raced(step, rank_of(Group()) if group.leads else None, 1, users)


@job
def memory(items: int, steps: int) -> Found:
    """Peak memory of a process, and the seconds of a step, in training as `train` does it."""
    sizes, group = Step(), Group.current()
    step = training_step(sizes, sizes.tables(items, group), fit=True)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = (time.perf_counter() - began) / steps
    peaks = group.gather(torch.tensor([peak_memory()]), [1] * group.world, "peaks")
    return {"largest": float(peaks.max()), "all": float(peaks.sum()), "step": seconds}


def _raced(
    together: Callable[[], object], alone: Callable[[], object] | None, repeats: int, users: int
) -> Found:
    """Return seconds per user of all processes and of the first alone, in alternating blocks."""
    times: dict[str, list[float]] = {"together": [], "alone": []}
    for number in range(ROUNDS + 1):  # the first block is not counted
        for name, call in (("together", together), ("alone", alone)):
            dist.barrier()  # those that do not take part sleep here
            began = time.perf_counter()
            for _ in range(repeats if call is not None else 0):
                assert call is not None
                call()
            if number:
                times[name].append((time.perf_counter() - began) / repeats / users)
    ratio = statistics.median(a / t for a, t in zip(times["alone"], times["together"], strict=True))
    return {name: statistics.median(all_of) for name, all_of in times.items()} | {"ratio": ratio}


def main() -> None:
    """Run one job as one process of a group, on a processor of its own where there are enough."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) >= world:
        os.sched_setaffinity(0, {processors[rank]})
    dist.init_process_group("gloo")
    found = JOBS[sys.argv[1]](*map(int, sys.argv[2:]))
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
