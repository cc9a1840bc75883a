"""Accuracy of every dtype against the float64 reference, at every scale, offset and length."""

import functools
import itertools

import numpy as np
import pytest
import torch

import fewfold as ff

from . import reference
from .cases import CASES, Case, every_map, random_scores

pytestmark = pytest.mark.usefixtures("path")

SCALES = [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6]
OFFSETS = [0.0, 1e3, -1e6]
# How far rounding to the dtype moves a number, relatively, and what sums may be off by.
HALF = {torch.float16: (2**-11, 2e-3), torch.bfloat16: (2**-8, 1e-2)}


def lengths(case: Case, *wanted: int) -> list[int]:
    return sorted({min(max(n, case.smallest), case.longest) for n in wanted})


def check_sums(case: Case, probs: torch.Tensor, tolerance: float) -> None:
    sums = probs.double().sum(-1)
    if case.at_most:
        assert (sums <= case.total + tolerance).all()
    else:
        goal = torch.full_like(sums, case.total)
        torch.testing.assert_close(sums, goal, atol=tolerance * max(1.0, case.total), rtol=0)


@every_map
def test_float32_is_within_a_millionth(case):
    scales = zip(SCALES, itertools.cycle(OFFSETS))
    for n, (scale, offset) in itertools.product(lengths(case, 1, 5, 33, 512), scales):
        scores = (scale * random_scores(4, n, seed=n) + offset).float()
        probs = case(scores)
        torch.testing.assert_close(
            probs.double(), case.expected(scores), atol=1e-6, rtol=0, msg=message(n, scale, offset)
        )
        check_sums(case, probs, 1e-6)


@every_map
def test_float64_is_exact_to_rounding(case):
    # An entry a hair above the threshold: the fourth root of a rounding error remains.
    tolerance = 1e-7 if case.blunt or case.ordered else 1e-10
    for n, scale in itertools.product(lengths(case, 2, 33, 300), SCALES):
        scores = scale * random_scores(4, n, seed=n + 7)
        probs = case(scores)
        torch.testing.assert_close(
            probs, case.expected(scores), atol=tolerance, rtol=0, msg=message(n, scale)
        )
        check_sums(case, probs, 1e-12)


@every_map
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_float32_rounded_once(case, dtype):
    rounding, sums = HALF[dtype]
    for n in lengths(case, 1, 5, 500):
        for scale in (1e-3, 1.0, 30.0):
            scores = (scale * random_scores(4, n, seed=n)).to(dtype)
            probs = case(scores)
            assert probs.dtype == dtype
            torch.testing.assert_close(
                probs.double(), case.expected(scores), atol=2e-6, rtol=rounding * 1.01
            )
            check_sums(case, probs, sums)


@every_map
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_gradients_come_back_in_half(case, dtype):
    scores = random_scores(6, 9, dtype=dtype).requires_grad_()
    weights = random_scores(6, 9, seed=1, dtype=dtype)
    (got,) = torch.autograd.grad((case(scores) * weights).sum(), scores)
    assert got.dtype == dtype
    exact = scores.detach().float().requires_grad_()
    upper = [case.upper(9).to(dtype).float()] if case.bounded else []
    (want,) = torch.autograd.grad((case(exact, *upper) * weights.float()).sum(), exact)
    torch.testing.assert_close(got.float(), want, atol=4 * HALF[dtype][0], rtol=4 * HALF[dtype][0])


def message(n: int, scale: float, offset: float = 0.0):
    return lambda text: f"n={n}, scale={scale:g}, offset={offset:g}: {text}"


@every_map
@pytest.mark.parametrize("path", ["torch"], indirect=True)  # a transform never runs natively
def test_inside_a_transform_the_digits_are_the_same(case):
    """There the number of steps is fixed beforehand: it must be enough for any row."""
    for n, scale in itertools.product(lengths(case, 1, 5, 64, 4000), (1e-6, 1e-2, 1.0, 1e3)):
        scores = (scale * random_scores(2, n, seed=n) + 100 * scale).float()
        probs = torch.vmap(case)(scores[None])[0]
        torch.testing.assert_close(
            probs.double(), case.expected(scores), atol=1e-6, rtol=0, msg=message(n, scale)
        )
        check_sums(case, probs, 1e-6)


LONG_ROWS = {
    "normal": lambda z: z,
    "constant": lambda z: np.zeros_like(z),
    "narrow": lambda z: 1e-7 * z,
    "sorted up": lambda z: np.sort(z),
    "sorted down": lambda z: -np.sort(-z),
    "heavy tail": lambda z: np.sign(z) * np.exp(3 * np.abs(z)),
    "plateau": lambda z: np.where(np.arange(z.shape[-1]) % 2, -50.0, 0.0) + 0 * z,
    "last one wins": lambda z: np.where(np.arange(z.shape[-1]) == z.shape[-1] - 1, 9.0, z / 10),
}


# Its twin is quadratic or worse: the first has its optimality conditions checked below.
TOO_SLOW = ("fusedmax(0.1)", "oscarmax(0.1)")
LONG = [
    pytest.param(case, kind, id=f"{case.name}-{kind}")
    for case in CASES
    if case.name not in TOO_SLOW
    for kind in (LONG_ROWS if case.wide else ["normal"])
]


@functools.cache
def long_row(case: Case, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and the twin's answer, for both paths."""
    rng = np.random.default_rng(3)
    scores = torch.from_numpy(LONG_ROWS[kind](rng.standard_normal((1, 100_000)))).float()
    return scores, case.expected(scores)


@pytest.mark.parametrize(("case", "kind"), LONG)
def test_rows_of_a_hundred_thousand(case, kind, path):
    scores, expected = long_row(case, kind)
    ways = [case] if path == "native" else [case, lambda z: torch.vmap(case)(z[None])[0]]
    for way in ways:
        probs = way(scores)
        torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
        check_sums(case, probs, 1e-6)


@pytest.mark.parametrize("n", [50, 1000, 100_000])
def test_long_fusedmax_meets_its_optimality_conditions(n):
    rng = np.random.default_rng(n)
    for scale, strength in ((1.0, 0.1), (1.0, 1.0), (0.01, 0.05), (10.0, 2.0)):
        scores = scale * rng.standard_normal(n)
        probs = ff.fusedmax(torch.from_numpy(scores), strength).numpy()
        assert abs(probs.sum() - 1) < 1e-12
        # Values of one run may differ by rounding; the conditions need them equal.
        assert reference.fusedmax_gap(scores, np.round(probs, 13), strength) < 1e-9 * max(n, 100)


def test_long_oscarmax_satisfies_its_constraints():
    scores = random_scores(2, 20_000)
    for strength in (1e-6, 1e-3, 0.1):
        probs = ff.oscarmax(scores, strength)
        torch.testing.assert_close(probs.sum(-1), torch.ones(2).double(), atol=1e-12, rtol=0)
        inside = probs.gather(-1, scores.argsort(dim=-1, descending=True))
        assert (inside.diff(dim=-1) <= 1e-12).all()
    single = ff.oscarmax(scores[:1], 1e-3)
    torch.testing.assert_close(ff.oscarmax(scores, 1e-3)[:1], single, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("path", "alpha"),
    [
        *(pytest.param("native", alpha, marks=pytest.mark.native) for alpha in (1.25, 1.5, 2.0)),
        ("torch", 1.5),
    ],
    indirect=["path"],
)
def test_rows_of_three_million(alpha):
    scores = random_scores(1, 3_000_000, dtype=torch.float32)
    probs = ff.entmax(scores, alpha)
    # The twin sees the largest entries only; the last of them gets nothing, so none below does.
    largest, place = scores.topk(50_000)
    few = torch.from_numpy(reference.entmax(largest.double().numpy(), alpha))
    assert few[0, -1] == 0
    expected = torch.zeros(scores.shape, dtype=torch.float64).scatter(1, place, few)
    torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
    assert abs(probs.double().sum() - 1) < 1e-6
    flat = ff.entmax(torch.zeros(1, 3_000_000), alpha)
    torch.testing.assert_close(flat, torch.full_like(flat, 1 / 3e6), atol=0, rtol=1e-4)
    assert abs(flat.double().sum() - 1) < 1e-6
