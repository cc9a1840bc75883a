"""Random indexes: crowded and empty cells, masses and scores of any size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewfold.sampling.inverted_index import Cells, GivenCells
from tests.conftest import on_path

WORDS = 4
odd_indexes = given(
    codes=st.lists(
        st.tuples(st.integers(0, WORDS - 1), st.integers(0, WORDS - 1)), min_size=1, max_size=40
    ),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 30.0, 1e3, 1e6]),
    mass=st.sampled_from(["alike", "random", "rare", "extreme"]),
    draws=st.integers(1, 40),
    shared=st.booleans(),
    seed=st.integers(0, 2**31),
)


@pytest.mark.native
@settings(max_examples=300, deadline=None)
@odd_indexes
def test_kernels_draw_what_exists_and_say_its_probability(**case):
    with on_path("native"):
        check(**case)


@settings(max_examples=100, deadline=None)
@odd_indexes
def test_torch_draws_what_exists_and_says_its_probability(**case):
    with on_path("torch"):
        check(**case)


def check(codes, scale, mass, draws, shared, seed):
    generator = torch.Generator().manual_seed(seed)
    code = torch.tensor(codes) + torch.tensor([0, WORDS])
    masses = {
        "alike": None,
        "random": torch.rand(len(codes), generator=generator).double() + 1e-9,
        "rare": (torch.rand(len(codes), generator=generator) > 0.7).double(),
        "extreme": (40 * torch.randn(len(codes), generator=generator).double()).exp(),
    }[mass]
    if masses is not None:
        masses[0] = max(masses[0], 1e-3)
    scores = torch.randn(2, 2 * WORDS, generator=generator) * scale
    cells = GivenCells(Cells.build(code, masses), scores, shared=shared)
    ids, log_q = cells.sample(draws, generator=generator)
    assert ids.min() >= 0
    assert ids.max() < len(codes)
    if masses is not None:
        assert masses[ids].min() > 0
    assert log_q.isfinite().all()
    assert log_q.max() < 1e-3 + 4e-7 * scale  # what single precision holds of such scores
    again = cells.log_prob(ids)
    assert torch.allclose(log_q, again, atol=1e-4 + 1e-6 * scale, rtol=1e-5)
