"""Random rows for every loss: ties, huge scales, masks, every dtype, both paths."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.maps.test_fuzz import KINDS, row_of

from .cases import Case, every_loss, slope

ROWS = 60
EXAMPLES = 8  # 8 x 60 = 480 rows per loss and path; `make fuzz` looks for more


@st.composite
def batches(draw, case: Case):
    """Scores with holes, and targets that are possible, as probabilities."""
    n = draw(st.integers(max(case.mass, 1), 24) | st.sampled_from([case.mass, 63, 130]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=4, max_size=ROWS))
    share = draw(st.sampled_from([0.0, 0.0, 0.3, 0.7]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    soft = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = np.stack([row_of(kinds[i % len(kinds)], n, rng) for i in range(ROWS)])
    top = torch.finfo(dtype).max / 4
    scores = torch.from_numpy(np.clip(rows, -top, top)).to(dtype)
    target = (case.soft if soft else case.target)(scores, int(rng.integers(2**31)))
    holes = torch.from_numpy(rng.random((ROWS, n)) < share) & (target == 0)
    return scores.masked_fill(holes, -math.inf), target


@every_loss
def test_random_rows(case, path):
    @settings(max_examples=EXAMPLES)
    @given(batches(case))
    def check(batch):
        scores, target = batch
        losses = case(scores, target, reduction="none").double()
        want = case.expected(scores, target)
        allowed = room(case, scores, want)
        assert ((losses - want).abs() <= allowed).all(), (scores, target, losses, want)
        assert (losses >= -allowed).all()
        if case.indexed and bool((target.amax(-1) == 1).all()):
            by_index = case(scores, target.argmax(-1), reduction="none").double()
            assert ((by_index - losses).abs() <= allowed).all()
        gradient = slope(lambda s: case(s, target, reduction="sum"), scores).double()
        moved = case.probs(scores) - target.double()
        eps = torch.finfo(scores.dtype).eps
        bound = (2e-5 if scores.dtype != torch.float64 else 1e-7) + 2 * eps
        assert ((gradient - moved).abs() <= bound).all()
        assert (gradient[scores == -math.inf] == 0).all()

    check()


def room(case: Case, scores: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """What rounding may do: in the computation, in the answer, and in large scores."""
    eps = torch.finfo(scores.dtype).eps
    inside = 1e-12 if scores.dtype == torch.float64 else 4e-6
    allowed = inside + 4 * eps * (want.abs() + (scores.element_size() < 4))
    finite = scores.double().masked_fill(scores == -math.inf, 0.0)
    if case.at_most:  # no offset is taken out, so nothing protects large scores
        allowed = allowed + 8 * eps * finite.abs().sum(-1)
    if case.mass > 1 and scores.dtype == torch.float64:  # the twin rounds as well
        allowed = allowed + 64 * eps * finite.abs().amax(-1)
    return allowed
