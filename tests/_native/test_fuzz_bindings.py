"""A fixed selection of invalid calls; `python -m tests.fuzz.bindings` generates others."""

import os

import pytest

from fewfold import _native
from tests.fuzz.bindings import TRIALS, batch

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        _native.instruction_set() is None and not os.environ.get("CI"),
        reason="the kernels are not built or switched off",
    ),
]


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.parametrize("seed", range(5))
def test_a_call_answers_or_says_what_is_wrong(name, seed):
    assert batch(name, seed) > 0
