"""Anchor embeddings: mixed rows, bags and tied scores, with the gradients of both leaves."""

import numpy as np
import torch
from torch import Tensor

from fewfold.embeddings.table.anchor_sums import mixed, mixed_bags
from fewfold.embeddings.table.tied_logits import tied_scores
from tests.fuzz.compare import native, plain, similar
from tests.fuzz.values import length, normal, pick, threads


def table(rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors (K, d), weights (V, s) and slots (V, s)."""
    threads(rng)
    kind = pick(rng, (torch.uint8, torch.int16, torch.int32))
    k = min(length(rng, 600), 256 if kind == torch.uint8 else 600)
    d, v, s = length(rng, 150), length(rng, 300), int(rng.integers(1, 20))
    dtype = pick(rng, (torch.float32, torch.float64))
    weights = normal(rng, v, s, dtype=dtype)
    if rng.random() < 0.4:
        weights = weights * (torch.from_numpy(rng.random((v, s))) < 0.3)
    slots = torch.from_numpy(rng.integers(0, k, (v, s))).to(kind)
    return normal(rng, k, d, dtype=dtype), weights, slots


def agree(run, leaves: list[Tensor], pulls: Tensor) -> None:
    """Compare values and gradients of `run(*leaves)`."""

    def all_of(*given: Tensor) -> list[Tensor]:
        own = [one.clone().requires_grad_() for one in given]
        out = run(*own)
        grads = torch.autograd.grad(out, own, pulls.to(out), allow_unused=True)
        return [out, *(one.to_dense() for one in grads if one is not None)]

    tight = 1e-9 if leaves[0].dtype == torch.float64 else 2e-4
    ours, theirs = native(all_of, *leaves), plain(all_of, *leaves)
    similar(ours, theirs, tight, ("values", "gradient 0", "gradient 1")[: len(theirs)])


def rows(rng: np.random.Generator) -> int:
    """Rows of ids that repeat."""
    anchors, weights, slots = table(rng)
    ids = torch.from_numpy(rng.integers(0, len(weights), int(rng.integers(0, 200))))
    pulls, sparse = normal(rng, len(ids), anchors.shape[1]), bool(rng.random() < 0.5)
    agree(lambda a, w: mixed(a, w, slots, ids, sparse=sparse), [anchors, weights], pulls)
    return len(ids)


def bags(rng: np.random.Generator) -> int:
    """Sums of rows, some of none."""
    anchors, weights, slots = table(rng)
    lengths = rng.integers(0, pick(rng, (1, 3, 40)), int(rng.integers(1, 50)))
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    ids = torch.from_numpy(rng.integers(0, len(weights), int(offsets[-1])))
    by = normal(rng, len(lengths))
    pulls, sparse = normal(rng, len(lengths), anchors.shape[1]), bool(rng.random() < 0.5)

    def run(a: Tensor, w: Tensor) -> Tensor:
        return mixed_bags(a, w, slots, ids, offsets, by.to(a), sparse=sparse)

    agree(run, [anchors, weights], pulls)
    return len(lengths)


def tied(rng: np.random.Generator) -> int:
    """Scores of all rows; small gradients may be dropped."""
    anchors, weights, slots = table(rng)
    projected = normal(rng, int(rng.integers(1, 40)), len(anchors), dtype=anchors.dtype)
    pulls = normal(rng, len(projected), len(weights))
    threshold = float(pick(rng, (0.0, 0.0, 0.5, 2.0)))
    near = (pulls.abs() - threshold).abs() < 1e-5  # rounding decides about those
    pulls = pulls.masked_fill(near, 0.0).to(anchors.dtype)
    sparse = bool(rng.random() < 0.5)

    def run(p: Tensor, w: Tensor) -> Tensor:
        return tied_scores(p, w, slots, threshold=threshold, sparse=sparse)

    agree(run, [projected, weights], pulls)
    return len(projected)


TRIALS = {"rows": rows, "bags": bags, "tied": tied}
