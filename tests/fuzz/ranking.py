"""Ranking: the best k items of every user, with ties and exclusions; sums of item vectors, and
regressions on them.
"""

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender import Catalogue, DotProduct, Jagged, top_k
from fewfold.recommender.models.fastvae.tables import bags
from fewfold.recommender.models.least_squares import Rotated, diagonalise, regress
from tests.fuzz.compare import native, plain, similar
from tests.fuzz.values import length, normal, pick, threads


def lists(rng: np.random.Generator, users: int, items: int) -> Jagged:
    """A list of items for every user, in any order and with repeats."""
    lengths = rng.integers(0, min(items, pick(rng, (1, 5, 100))) + 1, users)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    return Jagged(torch.from_numpy(rng.integers(0, items, int(offsets[-1]))), offsets)


def best(rng: np.random.Generator) -> int:
    """Against a stable sort of all scores; whole numbers, so that every sum is exact."""
    threads(rng)
    users, items, d = int(rng.integers(1, 20)), length(rng, 40_000), int(rng.integers(1, 40))
    queries, vectors = (
        torch.from_numpy(rng.integers(-3, 4, (n, d))).float() for n in (users, items)
    )
    k, seen = min(length(rng, 300), items + 2), lists(rng, users, items)
    allowed = torch.from_numpy(rng.random(items) < 0.5) if rng.random() < 0.4 else None
    table = Catalogue(vectors) if rng.random() < 0.5 else vectors
    at_once = int(pick(rng, (1, 7, 1024, 16384))) if items < 3000 else 16384
    options = {"exclude": seen, "allowed": allowed, "items_at_once": at_once}
    found = native(lambda: top_k(DotProduct(queries, table), k, **options))
    scores = queries @ vectors.T
    if allowed is not None:
        scores[:, ~allowed] = -torch.inf
    scores[seen.row, seen.values] = -torch.inf
    order = scores.sort(dim=1, descending=True, stable=True)
    pad = (0, max(k - items, 0))
    best = torch.nn.functional.pad(order.values[:, :k], pad, value=-torch.inf)
    ids = torch.nn.functional.pad(order.indices[:, :k], pad, value=-1)
    ids = ids.masked_fill(best == -torch.inf, -1)
    if not torch.equal(found.ids, ids) or not torch.equal(found.scores, best):
        raise AssertionError(f"the ranking differs: {users} users, {items} items, d={d}, k={k}")
    return users


def sums(rng: np.random.Generator) -> int:
    """Sums of table rows, one list per user."""
    threads(rng)
    users, items, d = int(rng.integers(1, 60)), length(rng, 2_000), length(rng, 150)
    dtype = pick(rng, (torch.float32, torch.float64))
    table, by = normal(rng, items, d, dtype=dtype), normal(rng, users, dtype=dtype)
    ids, pulls = lists(rng, users, items), normal(rng, users, d)

    def all_of(rows: Tensor, factor: Tensor) -> list[Tensor]:
        leaf = rows.clone().requires_grad_()
        out = bags(leaf, ids, factor)
        return [out, torch.autograd.grad(out, leaf, pulls.to(out))[0].to_dense()]

    tight = 1e-10 if dtype == torch.float64 else 1e-4
    similar(native(all_of, table, by), plain(all_of, table, by), tight, ("sums", "gradient"))
    return users


def regressions(rng: np.random.Generator) -> int:
    """Users from item vectors with a diagonal Gram matrix, whatever the numbers of both."""
    threads(rng)
    users, items, d = int(rng.integers(1, 30)), length(rng, 400), length(rng, 150)
    rotated = plain(diagonalise, normal(rng, items, d))
    rows = lists(rng, users, items)
    ridge = torch.from_numpy(rng.random(users) * items + 0.1).float()
    pairs = len(rows.values)
    weights = torch.from_numpy(rng.random(pairs) * 3 + 0.1).float() if rng.random() < 0.5 else None

    def solved(table: Tensor) -> list[Tensor]:
        others = Rotated(table, rotated.gram.to(table), rotated.rotation)
        return [regress(rows, others, ridge.to(table), weights)]

    table = rotated.table.float()
    similar(native(solved, table), plain(solved, table), 1e-4, ("vectors",))
    return users


TRIALS = {"best": best, "sums": sums, "regressions": regressions}
