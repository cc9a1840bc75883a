"""Proposals: cells of an inverted multi-index, their exact probabilities, nearest centres."""

import numpy as np
import torch

from fewfold.sampling.codebooks import assign
from fewfold.sampling.inverted_index import Cells, GivenCells
from tests.fuzz.compare import close, native, plain
from tests.fuzz.values import length, normal, pick, threads


def cells(rng: np.random.Generator) -> int:
    """Draws exist, and log q is that of the softmax over all items written out."""
    threads(rng)
    items, words, rows = length(rng, 3_000), int(rng.integers(1, 70)), int(rng.integers(1, 20))
    code = torch.from_numpy(rng.integers(0, words, (items, 2))) + torch.tensor([0, words])
    if rng.random() < 0.3:
        code = code[:1].expand(items, 2).clone()  # a single cell
    mass = pick(rng, (None, rng.random(items) + 1e-9, rng.random(items) > 0.7))
    mass = None if mass is None else torch.from_numpy(np.asarray(mass, dtype=float))
    if mass is not None:
        mass[0] = max(float(mass[0]), 1e-3)
    scale = float(pick(rng, (0.0, 1e-6, 1.0, 10.0, 100.0)))
    scores = scale * normal(rng, rows, 2 * words, dtype=torch.float32)
    shared = bool(rng.random() < 0.4)
    given = native(lambda: GivenCells(Cells.build(code, mass), scores, shared=shared))
    ids, log_q = given.sample(int(rng.integers(1, 80)), generator=generator(rng))
    if int(ids.min()) < 0 or int(ids.max()) >= items:
        raise AssertionError("an id that does not exist was drawn")
    logits = scores.double()[:, code].sum(-1)
    if mass is not None:
        logits = logits + mass.log()
    exact = logits.log_softmax(-1)
    if shared:
        exact = exact.logsumexp(0) - np.log(rows)
        want = exact[ids]
    else:
        want = exact.gather(1, ids)
    close(log_q, want, 1e-4 + 4e-6 * scale, "log q of draws", 1e-5)
    close(given.log_prob(ids), want, 1e-4 + 4e-6 * scale, "log_prob", 1e-5)
    return rows


def generator(rng: np.random.Generator) -> torch.Generator:
    """A torch generator with a random seed."""
    return torch.Generator().manual_seed(int(rng.integers(2**31)))


def nearest(rng: np.random.Generator) -> int:
    """The nearest centre is as near as the one plain torch finds."""
    threads(rng)
    n, d, k = length(rng, 5_000), length(rng, 70), length(rng, 300)
    points, centres = (normal(rng, one, d, dtype=torch.float32) for one in (n, k))
    if rng.random() < 0.3:
        centres = centres[torch.from_numpy(rng.integers(0, k, k))]  # ties
    if rng.random() < 0.5:
        points = torch.cat([points, points], 1)[:, :d]  # rows apart
    found, want = native(assign, points, centres), plain(assign, points, centres)
    # Both paths compare |c|^2 / 2 - <x, c> in float32, which rounds relative to the squared norms.
    far = [(points - centres[code]).double().square().sum(1) for code in (found, want)]
    sizes = points.double().square().sum(1) + centres.double().square().sum(1).max()
    close(far[0], far[1], 1e-6 * sizes, "squared distance")
    return n


TRIALS = {"cells": cells, "nearest": nearest}
