"""Row optimisers: weights after a few steps with sparse gradients."""

import numpy as np
import torch
from torch import Tensor

from tests.fuzz.compare import close, native, plain
from tests.fuzz.values import length, normal, number, pick, threads
from tests.optim.cases import CASES, sparse


def steps(rng: np.random.Generator) -> int:
    """Steps with repeated, missing and many ids, for every optimiser and width."""
    threads(rng)
    case, dtype = pick(rng, CASES), pick(rng, (torch.float32, torch.float64))
    rows, width = length(rng, 400), length(rng, 130)
    start = normal(rng, rows, width, dtype=dtype)
    batches = []
    for _ in range(int(rng.integers(1, 4))):
        ids = rng.integers(0, rows, int(rng.integers(0, 300)))
        values = normal(rng, len(ids), width, dtype=dtype)
        batches.append((ids, values * min(abs(number(rng)), 10.0)))

    def walk(weight: Tensor) -> Tensor:
        leaf = weight.clone().requires_grad_()
        optimizer = case.make(leaf)
        for ids, values in batches:
            leaf.grad = sparse(ids, values.to(weight.dtype), tuple(weight.shape))
            optimizer.step()
        return leaf

    tight = 1e-9 if dtype == torch.float64 else 2e-3  # a sum of gradients near 0 may change sign
    close(native(walk, start), plain(walk, start), tight, case.name, tight)
    return rows


TRIALS = {"steps": steps}
