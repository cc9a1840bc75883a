"""From a history to the exact top k items: one user at a time, and batches.

The first rows are the recommender as it is used: ids in, ids out, from a model that was loaded. The
others are its ranking alone.

Ours is all of it: the user vectors of a `FastVAE` with a shortcut (256 numbers), ranked over every
item, without the user's own. Item vectors are made once. The peers get the same vectors: torch
makes all scores and takes its `topk`; implicit, which is spared the user vectors, its `recommend`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec

import torch

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold._timing import Call, race

RANK, LATENT, HIDDEN, LENGTH = 192, 63, 200, 20
TORCH, IMPLICIT = "torch matmul, topk", "implicit, recommend"


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_served(), *_limits(), *_against_peers()]


def _served() -> Iterator[Case]:
    for what, peer, limit, build in (
        ("load a model, after torch", "0.5 s", 0.5, _load),
        ("recommend_from_history, one user", "5 ms", 5e-3, partial(_answer, 1)),
        ("recommend_from_history, 2000 users", "2000 users a second", 1.0, partial(_answer, 2000)),
    ):
        yield Case(what, "50000 items", peer, 1.0, partial(build, limit), threads=2)


_LOADING = """
import sys, time, torch
began = time.perf_counter()
import fewfold
fewfold.Recommender.load(sys.argv[1])
print(time.perf_counter() - began)
"""


def _load(limit: float) -> Peak:
    with tempfile.TemporaryDirectory() as folder:
        _recommender().save(f"{folder}/model")
        command = [sys.executable, "-c", _LOADING, f"{folder}/model"]
        # Compiled once, as an installed package is.
        settings = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        run = partial(subprocess.run, check=True, capture_output=True, text=True, env=settings)
        taken = [float(run(command).stdout) for _ in range(8)][1:]
    return Peak(statistics.median(taken), limit, unit="seconds")


def _answer(users: int, limit: float) -> Peak:
    rec = _recommender()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(50_000, (2000, LENGTH), generator=generator)
    histories = [rec.items.take(row) for row in ids]

    def call() -> ff.recommender.Recommendations:
        histories.append(histories.pop(0))
        return rec.recommend_from_history(histories[0] if users == 1 else histories[:users], 10)

    taken = race({"ours": call}, rounds=(5 if users > 1 else 30, 1000))["ours"]
    return Peak(taken.median, limit, unit="seconds")


@cache
def _recommender() -> ff.Recommender:
    """Build a briefly trained model of 50,000 items with string ids; only time is measured."""
    generator = torch.Generator().manual_seed(0)
    users = torch.arange(10_000).repeat_interleave(30)
    items = torch.cat(
        [torch.arange(50_000), torch.randint(50_000, (250_000,), generator=generator)]
    )[torch.randperm(300_000, generator=generator)]
    log = {"user": users.numpy(), "item": [f"item-{i}" for i in items.tolist()]}
    rec = ff.Recommender(training=ff.recommender.Training(epochs=1))
    return rec.fit(log, progress=False)


def _limits() -> Iterator[Case]:
    for users, k, limit in ((1, 10, 5e-3), (256, 10, 0.128), (256, 50, 0.128), (256, 100, 0.128)):
        yield Case(
            what=_named(users, k),
            size="50000 items",
            peer="5 ms" if users == 1 else "2000 users a second",
            bar=1.0,
            build=partial(_limit, users, k, limit),
            threads=2,
        )


def _against_peers() -> Iterator[Case]:
    known = (TORCH, IMPLICIT) if find_spec("implicit") else (TORCH,)
    bars = {
        (1, 50_000): (0.8, 0.8),
        (256, 50_000): (0.8, 0.8),
        (1, 1_000_000): (0.4, 0.5),
        (64, 1_000_000): (0.8, 0.8),
    }
    for (users, items), each in bars.items():
        for peer, bar in zip(known, each, strict=False):
            yield Case(
                what=_named(users, 10),
                size=f"{items} items",
                peer=peer,
                bar=bar,
                build=partial(_pair, users, items, peer),
                threads=2,
            )


def _named(users: int, k: int) -> str:
    return f"{'one user' if users == 1 else f'{users} users'}, best {k}"


def _limit(users: int, k: int, limit: float) -> Peak:
    taken = race({"ours": _shop(50_000).ours(users, k)}, rounds=(30, 1000))["ours"]
    return Peak(taken.median, limit, unit="seconds")


def _pair(users: int, items: int, peer: str) -> Pair:
    shop = _shop(items)
    other = shop.by_implicit if peer == IMPLICIT else shop.by_torch
    return Pair(shop.ours(users, 10), other(users, 10))


@dataclass(frozen=True, eq=False)
class Shop:
    """A model with random weights, its item vectors, and the users to serve."""

    model: ff.recommender.FastVAE
    catalogue: ff.recommender.Catalogue
    log: ff.recommender.Interactions

    def _blocks(self, users: int) -> list[ff.recommender.Jagged]:
        count = max(self.log.users // users, 1)
        return [self.log.rows(slice(b * users, (b + 1) * users)) for b in range(min(count, 64))]

    def ours(self, users: int, k: int) -> Call:
        """Recommend to the next users by fewfold."""
        blocks = self._blocks(users)

        def call() -> ff.recommender.Ranking:
            blocks.append(blocks.pop(0))
            queries = self.model.queries(blocks[0])
            return ff.recommender.top_k(
                ff.recommender.DotProduct(queries, self.catalogue), k, exclude=blocks[0]
            )

        return call

    def by_torch(self, users: int, k: int) -> Call:
        """Recommend to them in plain torch, from all scores at once."""
        blocks, vectors = self._blocks(users), self.catalogue.vectors

        def call() -> object:
            blocks.append(blocks.pop(0))
            scores = self.model.queries(blocks[0]) @ vectors.t()
            scores[blocks[0].row, blocks[0].values] = -torch.inf
            return scores.topk(k)

        return call

    def by_implicit(self, users: int, k: int) -> Call:
        """Rank by implicit alone: its user vectors are given."""
        import scipy.sparse
        from implicit.cpu.als import AlternatingLeastSquares
        from threadpoolctl import ThreadpoolController

        # It has threads of its own, and asks for this.
        ThreadpoolController().select(internal_api="openblas").limit(limits=1)
        model = AlternatingLeastSquares(factors=RANK + LATENT + 1, num_threads=2)
        model.user_factors = self.model.queries(self.log.jagged).numpy()
        model.item_factors = self.catalogue.vectors.numpy()
        shape = users, self.log.items
        blocks = []
        for block, rows in enumerate(self._blocks(users)):
            ones = torch.ones(len(rows.values)).numpy()
            seen = ones, rows.values.int().numpy(), rows.offsets.int().numpy()
            ids = torch.arange(block * users, (block + 1) * users).numpy()
            blocks.append((ids, scipy.sparse.csr_matrix(seen, shape=shape)))

        def call() -> object:
            blocks.append(blocks.pop(0))
            return model.recommend(*blocks[0], N=k)

        return call


@cache
def _shop(items: int) -> Shop:
    generator = torch.Generator().manual_seed(0)
    model = ff.recommender.FastVAE(items, hidden=HIDDEN, latent=LATENT, layers=1)
    table = torch.randn(items, RANK, generator=generator) * items**-0.5
    model.shortcut = ff.recommender.Shortcut(
        table, torch.rand(items, generator=generator) + 0.5, 130.0
    )
    users = torch.arange(512).repeat_interleave(LENGTH)
    ids = torch.randint(items, users.shape, generator=generator)
    log = ff.recommender.Interactions.from_pairs(users, ids, shape=(512, items))
    return Shop(model, ff.recommender.Catalogue(model.vectors), log)
