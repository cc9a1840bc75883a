"""Random rows for every map: ties, huge scales, masks, every dtype, both paths."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from .cases import Case, every_map

ROWS = 60
EXAMPLES = 8  # 8 x 60 = 480 rows per map and path; `make fuzz` looks for more


def row_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """One row of scores of a given character."""
    normal = rng.standard_normal(n)
    rows = {
        "normal": normal,
        "equal": np.full(n, rng.choice([0.0, -1.5, 7.0, 1e6, -1e6, 1e-20])),
        "ties": rng.integers(-2, 3, n) * rng.choice([0.125, 0.25, 0.5, 1.0]),
        "nearly tied": 1.0 + 1e-7 * rng.integers(-3, 4, n),
        "huge": normal * 10.0 ** rng.integers(3, 7),
        "tiny": normal * 10.0 ** -rng.integers(3, 8),
        "offset": normal + rng.choice([1e4, -1e4, 1e6, -1e6]),
        "sorted": np.sort(normal),
        "heavy": np.sign(normal) * np.exp(4 * np.abs(normal)),
        "one far above": np.where(np.arange(n) == rng.integers(n), 1e5, normal),
        "one far below": np.where(np.arange(n) == rng.integers(n), -1e5, normal),
        "on the simplex": rng.dirichlet(np.full(n, 0.5)),
        "margin": np.where(np.arange(n) == 0, rng.choice([0.25, 0.5, 1.0, 2.0, 4.0]), 0.0),
        "negative": -np.abs(normal) * 3 - 1,
    }
    return rows[kind]


KINDS = [
    *("normal", "equal", "ties", "nearly tied", "huge", "tiny", "offset", "sorted", "heavy"),
    *("one far above", "one far below", "on the simplex", "margin", "negative"),
]


@dataclass(frozen=True)
class Batch:
    """Rows of one length and dtype, with entries that are dropped by mask or by -inf."""

    n: int
    kinds: list[str]
    holes: float
    dtype: torch.dtype
    seed: int

    def tensors(self, case: Case) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, mask and upper bounds."""
        rng = np.random.default_rng(self.seed)
        kinds = [self.kinds[i % len(self.kinds)] for i in range(ROWS)]
        rows = np.stack([row_of(kind, self.n, rng) for kind in kinds])
        top = torch.finfo(self.dtype).max / 4
        scores = torch.from_numpy(np.clip(rows, -top, top)).to(self.dtype)
        mask = torch.from_numpy(rng.random((ROWS, self.n)) >= self.holes)
        if case.smallest > 1:  # with fewer unmasked entries than k the result differs
            mask[:, : case.smallest] = True
        mask[torch.from_numpy(rng.random(ROWS) < 0.03)] = False
        upper = torch.from_numpy(rng.uniform(0.02, 1.0, (ROWS, self.n)))
        left = (upper * mask).sum(-1, keepdim=True).clamp(min=1e-3)  # of nothing kept
        upper = upper * (rng.choice([1.02, 1.5]) / left).clamp(min=1)
        return scores, mask, upper.to(self.dtype)


def batches(case: Case) -> st.SearchStrategy[Batch]:
    return st.builds(
        Batch,
        n=st.integers(case.smallest, min(case.longest, 24)) | st.sampled_from(edges(case)),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=ROWS),
        holes=st.sampled_from([0.0, 0.3, 0.7]),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
        seed=st.integers(0, 2**32 - 1),
    )


def edges(case: Case) -> list[int]:
    """Lengths around the widths of vector registers and blocks."""
    wanted = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 129)
    return [n for n in wanted if case.smallest <= n <= case.longest] or [case.smallest]


@every_map
def test_random_rows_against_the_twin(case, path):
    @settings(max_examples=EXAMPLES)
    @given(batches(case))
    def check(batch):
        scores, mask, upper = batch.tensors(case)
        dropped = scores.masked_fill(~mask, -torch.inf)
        expected = case.expected(dropped, upper)
        allowed = allowance(case, dropped, upper, expected)
        extra = (upper,) if case.bounded else ()
        agrees(case, case(dropped, *extra), dropped, expected, allowed)
        agrees(case, case(scores, *extra, mask=mask), dropped, expected, allowed)
        finite_gradient(case, dropped, upper)
        if path == "torch":  # inside a transform nothing may depend on the data
            traced = torch.vmap(lambda s: case(s, *extra))(dropped[None])[0]
            agrees(case, traced, dropped, expected, allowed)

    check()


def agrees(case: Case, probs, scores, expected, allowed) -> None:
    assert probs.dtype == scores.dtype
    assert (probs >= 0).all()
    assert (probs[scores == -torch.inf] == 0).all()
    got = probs.double()
    want = expected
    if case.capped:  # which of several equal entries are kept is not said
        order = scores.double().argsort(dim=-1, stable=True)
        got, want = got.gather(-1, order), expected.gather(-1, order)
        got, want = got.sort(-1).values, want.sort(-1).values
        allowed = allowed.sort(-1).values
    wrong = (got - want).abs() > allowed
    if wrong.any():
        row = int(wrong.any(-1).nonzero()[0, 0])
        raise AssertionError(
            f"{case.name} of {scores[row].tolist()}\n"
            f"gave     {got[row].tolist()}\nexpected {want[row].tolist()}"
        )


def allowance(case: Case, scores, upper, expected) -> torch.Tensor:
    """What each entry may be off by: the dtype's rounding of the answer, and a millionth.

    A blunt map has an unbounded slope where an entry enters the support: there we ask that the
    answer be that of scores which differ by a few roundings.
    """
    rounding = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(scores.dtype, 0.0)
    exact = 1e-9 if scores.dtype == torch.float64 else 1e-6
    if case.ordered:
        exact = max(exact, 1e-7)  # of the twin
    allowed = exact + 1.01 * rounding * expected
    if case.blunt:
        working = 2.0**-52 if scores.dtype == torch.float64 else 2.0**-23
        sign = torch.where(torch.arange(scores.shape[-1]) % 2 == 0, 1.0, -1.0)
        for nudge in (sign, -sign):
            shift = (
                4
                * working
                * nudge
                * (scores.double() - scores.double().amax(-1, True)).clamp(-8, -1)
            )
            moved = case.expected(scores.double() + torch.nan_to_num(shift), upper)
            allowed = allowed + 2 * (moved - expected).abs()
    return allowed


def finite_gradient(case: Case, scores, upper) -> None:
    leaf = scores.clone().requires_grad_()
    extra = (upper,) if case.bounded else ()
    weights = torch.linspace(-1, 1, scores.numel()).reshape(scores.shape).to(scores.dtype)
    (slope,) = torch.autograd.grad((case(leaf, *extra) * weights).sum(), leaf)
    assert slope.isfinite().all()
    assert (slope[scores == -torch.inf] == 0).all()
    if not case.at_most and scores.dtype == torch.float64:
        # A constant added to the scores of a row changes nothing.
        largest = slope.abs().amax(-1).clamp(min=1)
        wrong = slope.sum(-1).abs() > 1e-8 * largest
        assert not wrong.any(), (slope[wrong][0], scores[wrong][0])
