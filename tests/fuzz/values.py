"""Inputs for the branches of the kernels: lengths around thresholds, rows of every kind."""

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "count",
    "filled",
    "length",
    "normal",
    "number",
    "pick",
    "rows_of",
    "score_rows",
    "threads",
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# Where the C++ changes its way of working: vector widths and their fours (4 to 64), SHORT of
# short.h (64), MIDDLE of team.h and PIECE of stream.h (2048), candidates kept for a backward pass
# (4096), 8 PIECEs and CAPACITY of stream.h (16384).
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 16384, 16384, 18432, 32768)
WIDEST = 70_000


def pick(rng: np.random.Generator, options):
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def length(rng: np.random.Generator, most: int = WIDEST) -> int:
    """A row length: small, near a threshold, or anything up to `most` (log-uniform)."""
    how = rng.random()
    if how < 0.25:
        n = int(rng.integers(1, 70))
    elif how < 0.8:
        n = pick(rng, EDGES) + int(rng.integers(-2, 3))
    else:
        n = int(np.exp(rng.uniform(0, np.log(most))))
    return int(np.clip(n, 1, most))


def count(rng: np.random.Generator, n: int, budget: int = 400_000) -> int:
    """A number of rows: around the widths of vectors, as long as all entries fit the budget."""
    most = max(1, budget // max(n, 1))
    return int(min(most, pick(rng, (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 200))))


def threads(rng: np.random.Generator) -> int:
    """Set the number of torch's threads to 1, 2, 3 or 5."""
    number = pick(rng, (1, 1, 2, 3, 5))
    torch.set_num_threads(number)
    return number


def number(rng: np.random.Generator) -> float:
    """A number of any size, often a special one."""
    return float(
        pick(
            rng,
            (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, rng.standard_normal(), 1e4 * rng.standard_normal()),
        )
    )


def normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def filled(rng: np.random.Generator, n: int) -> np.ndarray:
    """One row of scores of a random character."""
    return CHARACTERS[pick(rng, tuple(CHARACTERS))](rng, n)


def score_rows(
    rng: np.random.Generator, n: int, rows: int, dtype: torch.dtype, *, infinite: bool = True
) -> Tensor:
    """(rows, n) scores, each row of its own character; blocks of -inf in some."""
    table = np.stack([filled(rng, n) for _ in range(rows)])
    top = 0.2 * float(torch.finfo(dtype).max)
    scores = torch.from_numpy(np.clip(table, -top, top)).to(dtype)
    if infinite and rng.random() < 0.3:
        first = int(rng.integers(n))
        scores[int(rng.integers(rows)), first : first + int(rng.integers(1, n + 1))] = -torch.inf
    if infinite and rng.random() < 0.2:
        holes = torch.from_numpy(rng.random((rows, n)) < rng.random())
        scores = scores.masked_fill(holes, -torch.inf)
    return scores


def rows_of(rng: np.random.Generator, scores: Tensor) -> Tensor:
    """The same scores in another layout of memory."""
    how = int(rng.integers(4))
    if how == 0:
        return scores.t().contiguous().t()
    if how == 1:
        return torch.stack([scores, -scores], -1)[..., 0]
    if how == 2:
        return torch.cat([scores[:, :1], scores], -1)[:, 1:]
    return scores


def _outlier(rng: np.random.Generator, n: int) -> np.ndarray:
    """One entry above the others at any index, low ones more often, and one or two close to it."""
    row = np.full(n, pick(rng, (-50.0, -3.0, -1.0))) + 1e-3 * rng.standard_normal(n)
    spots = rng.integers(0, min(n, 130), 1) if rng.random() < 0.7 else rng.integers(0, n, 1)
    row[spots] = 0.0
    others = rng.integers(0, n, int(rng.integers(1, 4)))
    row[others] = np.maximum(
        row[others], -rng.random(len(others)) * pick(rng, (0.5, 1.0, 2.0, 4.0))
    )
    return row


def _zipf(rng: np.random.Generator, n: int) -> np.ndarray:
    return -np.log(np.arange(1, n + 1)) + pick(rng, (0.1, 1.0, 2.0)) * rng.standard_normal(n)


def _plateaus(rng: np.random.Generator, n: int) -> np.ndarray:
    values = rng.standard_normal(int(rng.integers(1, 6)))
    return np.sort(values[rng.integers(0, len(values), n)])[:: pick(rng, (1, -1))].copy()


def _periodic(rng: np.random.Generator, n: int) -> np.ndarray:
    """High entries at one place of every so many, so that some lanes hold them all."""
    period, row = pick(rng, (4, 8, 16, 32, 64, 2048)), rng.standard_normal(n) - 8
    row[int(rng.integers(period)) % n :: period] += pick(rng, (6.0, 8.0, 8.5))
    return row


CHARACTERS = {
    "normal": lambda rng, n: rng.standard_normal(n) * pick(rng, (0.3, 1.0, 3.0)),
    "outlier": _outlier,
    "zipf": _zipf,
    "plateaus": _plateaus,
    "periodic": _periodic,
    "equal": lambda rng, n: np.full(n, pick(rng, (0.0, -1.5, 7.0, 1e6, -1e6, 1e-20))),
    "ties": lambda rng, n: rng.integers(-2, 3, n) * pick(rng, (0.125, 0.25, 0.5, 1.0)),
    "nearly tied": lambda rng, n: 1.0 + 1e-7 * rng.integers(-3, 4, n),
    "narrow": lambda rng, n: rng.standard_normal(n) * 10.0 ** -rng.integers(2, 9),
    "huge": lambda rng, n: rng.standard_normal(n) * 10.0 ** rng.integers(2, 8),
    "offset": lambda rng, n: rng.standard_normal(n) + pick(rng, (1e3, -1e3, 1e5, -1e5)),
    "denormal": lambda rng, n: rng.standard_normal(n) * 1e-40,
    "rising": lambda rng, n: np.sort(rng.standard_normal(n)) * pick(rng, (0.1, 1.0, 10.0)),
    "falling": lambda rng, n: -np.sort(rng.standard_normal(n)) * pick(rng, (0.1, 1.0, 10.0)),
    "heavy": lambda rng, n: np.sign(rng.standard_normal(n)) * np.exp(3 * rng.standard_normal(n)),
    "half": lambda rng, n: np.where(rng.random(n) < 0.5, 1e-4 * rng.standard_normal(n), -50.0),
}
