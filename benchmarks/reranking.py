"""Conditions on attributes, diversity, and recommendations to a million users.

The model is not trained: random item vectors of 64 numbers, as `ALS` has, and histories of twenty
items. Diversity is raced with the same requests without it, in processor time. `fewfold recommend
--all-users --out` is a process of its own; its peak memory is next to that of the same command for
one user, which loads the same model.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from benchmarks.resources import Stopwatch
from fewfold._timing import race

FOLDER = Path("build/benchmarks/reranking")
USERS, ITEMS, FACTORS, LENGTH = 1_000_000, 50_000, 64, 20
KINDS = {"parquet": ("--out", "recs.parquet"), "csv": ("--out", "recs.csv")}
DIVERSE = ("--where", "group!=g1", "--diversity", "0.3", "--at-most", "group=3")
_A_SECOND = 2000.0  # users, as in the suite `serving`


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_conditions(), *_diversity(), *_all_users()]


def _conditions() -> Iterator[Case]:
    for what, where in (
        ("where, a value", {"group": "g1"}),
        ("where, one of two values, and a range", {"group": ["g1", "g2"], "price": {"max": 0.5}}),
    ):
        for items, limit in ((ITEMS, 1e-3), (1_000_000, 5e-3)):
            build = partial(_condition, items, where, limit)
            yield Case(what, f"{items} items", f"{limit * 1e3:g} ms", 1.0, build)


def _condition(items: int, where: dict[str, Any], limit: float) -> Peak:
    from fewfold.recommender import Attributes
    from fewfold.recommender.item_conditions import matching_items

    draws = np.random.default_rng(0)
    prices = draws.random(items).round(4).tolist()
    attributes = Attributes.of({"group": _groups(items), "price": prices})
    taken = race({"ours": lambda: matching_items(attributes, where)}, rounds=(30, 1000))["ours"]
    return Peak(taken.median, limit, unit="seconds")


def _diversity() -> Iterator[Case]:
    diversity = ff.recommender.Diversity
    for what, wanted in (
        ("diversity by vectors", diversity(0.3)),
        ("diversity by an attribute", diversity(0.3, by="group")),
        ("at most one of a group", diversity(at_most={"group": 1})),
    ):
        for users, bar in ((1, 2.5), (256, 2.0)):
            size = f"{'one user' if users == 1 else f'{users} users'}, {ITEMS} items"
            yield Case(what, size, "no diversity", bar, partial(_diversified, users, wanted))


def _diversified(users: int, diversity: Any) -> Pair:
    rec = ff.Recommender.load(model_folder(USERS // 100))
    ids = list(range(USERS // 100))

    def call(**options: Any) -> Any:
        ids.extend(ids[:users])
        del ids[:users]
        return rec.recommend(ids[:users], 10, **options)

    return Pair(partial(call, diversity=diversity), call, clock=time.process_time)


def _all_users() -> Iterator[Case]:
    size, few = (f"{users} users, {ITEMS} items" for users in (USERS, USERS // 10))
    speed = f"{_A_SECOND:.0f} users a second"
    yield Case("--all-users, peak memory", size, "--users one", 1.3, partial(_memory, USERS), 2)
    yield Case("--all-users, time", size, speed, 1.0, partial(_time, USERS), 2)
    yield Case("the same to CSV", few, speed, 1.0, partial(_time, USERS // 10, "csv"), 2)
    diverse = partial(_time, USERS // 10, "parquet", *DIVERSE)
    yield Case("the same with where, diversity and a cap", few, speed, 1.0, diverse, 2)


def _memory(users: int) -> Peak:
    alone = _measured(users, "--users", "7")
    return Peak(_all(users, "parquet")["peak"], alone["peak"])


def _time(users: int, kind: str = "parquet", *flags: str) -> Peak:
    found = _all(users, kind, *flags)
    seconds = found["seconds"]
    details = {name: found[name] for name in ("cpu", "peak", "bytes")}
    return Peak(
        seconds, users / _A_SECOND, "seconds", {**details, "users a second": users / seconds}
    )


@cache
def _all(users: int, kind: str, *flags: str) -> dict[str, Any]:
    name, file = KINDS[kind]
    out = FOLDER / file
    found = _measured(users, "--all-users", name, str(out), "--overwrite", *flags)
    return {**found, "bytes": out.stat().st_size}


def _measured(users: int, *flags: str) -> dict[str, Any]:
    threads = str(torch.get_num_threads())
    env = {**os.environ, "OMP_NUM_THREADS": threads, "FEWFOLD_PROGRESS": "0"}
    model = str(model_folder(users))
    command = [sys.executable, "-m", "benchmarks.reranking", model, *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def model_folder(users: int) -> Path:
    """Write a model for so many users; keep it if it is there."""
    from fewfold.recommender import ALS, Attributes, Ids, Interactions, MostPopular
    from fewfold.recommender.models.als import FittedALS
    from fewfold.recommender.saved_model import write_state

    folder = FOLDER / f"model-{users}"
    if folder.exists():
        return folder
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(ITEMS, FACTORS, generator=generator) / FACTORS**0.5
    user = torch.arange(users).repeat_interleave(LENGTH)
    item = torch.randint(ITEMS, user.shape, generator=generator)
    log = Interactions.from_pairs(user, item, shape=(users, ITEMS))
    recipe, gram = ALS(FACTORS).resolved(ITEMS), vectors.square().sum(0)
    state = replace(
        ff.Recommender(MostPopular()).fit(log, progress=False)._state,
        model=recipe,
        fitted=FittedALS(recipe, vectors, gram, log.counts().float(), torch.tensor(1.0)),
        items=Ids.of(f"item-{number}" for number in range(ITEMS)),
        attributes=Attributes.of({"group": _groups(ITEMS)}),
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    return write_state(state, folder, users=True, overwrite=False)


def _groups(items: int) -> list[str]:
    return [f"g{number % 20}" for number in range(items)]


def main(model: str, *flags: str) -> None:
    """Run the command, and print what it took."""
    watch = Stopwatch()
    from fewfold.cli import main as command

    with contextlib.redirect_stdout(io.StringIO()):
        code = command(["recommend", model, *flags])
    if code:
        raise SystemExit(code)
    print(json.dumps(watch.stop()))


if __name__ == "__main__":
    main(*sys.argv[1:])
