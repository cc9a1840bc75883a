"""Mixed distributions: samples next to torch's relaxed categorical, densities next to a limit."""

import torch
from torch.distributions import RelaxedOneHotCategorical

from benchmarks.harness import Case, Pair, Peak
from fewfold._timing import race
from fewfold.distributions import GaussianSparsemax

SIZE = 64
DRAWS = 1_000_000
POINTS = 4096
LIMIT = 0.05


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [
        Case(
            "Gaussian-sparsemax, draws",
            f"{DRAWS:,} x {SIZE}",
            "torch RelaxedOneHotCategorical",
            1.0,
            _draws,
        ),
        Case(
            "Gaussian-sparsemax, log_prob, one distribution",
            f"{POINTS:,} x {SIZE}",
            "50 ms",
            1.0,
            lambda: _densities(torch.Size()),
            threads=2,
        ),
        Case(
            "Gaussian-sparsemax, log_prob, a distribution each",
            f"{POINTS:,} x {SIZE}",
            "50 ms",
            1.0,
            lambda: _densities(torch.Size([POINTS])),
            threads=2,
        ),
    ]


def _draws() -> Pair:
    torch.manual_seed(0)
    scores = torch.randn(SIZE)
    ours = GaussianSparsemax(scores, torch.ones(SIZE))
    peer = RelaxedOneHotCategorical(torch.tensor(0.5), logits=scores)
    shape = torch.Size([DRAWS])
    return Pair(lambda: ours.sample(shape), lambda: peer.sample(shape))


def _densities(batch: torch.Size) -> Peak:
    """Measure log_prob of the same number of points under one distribution or under a batch."""
    torch.manual_seed(0)
    dist = GaussianSparsemax(torch.randn(*batch, SIZE), torch.ones(SIZE))
    y = dist.sample(torch.Size() if batch else torch.Size([POINTS]))
    with torch.no_grad():
        taken = race({"ours": lambda: dist.log_prob(y)}, seconds=3.0)["ours"]
    return Peak(taken.median, LIMIT, unit="seconds")
