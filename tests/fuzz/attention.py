"""Sparse attention in chunks against the scores written out."""

import numpy as np
import torch
from torch import Tensor

import fewfold as ff
from tests.fuzz.compare import native, plain, similar
from tests.fuzz.values import length, normal, pick, threads


def chunked(rng: np.random.Generator) -> int:
    """Values and gradients, with causal and random masks, shared keys, and long rows of keys."""
    threads(rng)
    keys = length(rng, 20_000)
    queries = max(1, min(int(rng.integers(1, 80)), 300_000 // keys))
    heads, d = int(rng.integers(1, 4)), int(rng.integers(1, 20))
    dtype = pick(rng, (torch.float32, torch.float64))
    scale = float(pick(rng, (0.05, 1.0, 4.0)))
    shape = (heads, queries, d), (heads, keys, d), (heads, keys, int(rng.integers(1, 9)))
    given = [normal(rng, *one, dtype=dtype) for one in shape]
    omega = pick(rng, (ff.Gini(), ff.Tsallis(1.5), ff.Tsallis(1.25), ff.Norm(2.0)))
    causal = bool(rng.random() < 0.3)
    mask = torch.from_numpy(rng.random((queries, keys)) < 0.6) if rng.random() < 0.3 else None

    def all_of(*tensors: Tensor) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in tensors]
        out = ff.sparse_attention(*leaves, omega, mask=mask, is_causal=causal, scale=scale)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    def written_out(*tensors: Tensor) -> list[Tensor]:
        query, key, value = leaves = [one.clone().requires_grad_() for one in tensors]
        scores = scale * query @ key.mT
        seen = torch.ones(queries, keys, dtype=torch.bool)
        seen = seen.tril() if causal else seen
        seen = seen if mask is None else seen & mask
        out = omega.argmax(scores.masked_fill(~seen, -torch.inf)) @ value
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    # In single precision the slopes of queries and keys jump where a key enters the support.
    shown = slice(None) if dtype == torch.float64 else slice(0, 4, 3)
    ours, theirs = native(all_of, *given)[shown], plain(written_out, *given)[shown]
    tight = 1e-8 if dtype == torch.float64 else 5e-4
    similar(ours, theirs, tight, ("out", "query", "key", "value")[shown])
    return heads * queries


TRIALS = {"chunked": chunked}
