"""A fixed, quick selection of the fuzzing trials, and inputs that once failed."""

import pytest
import torch

from tests import fuzz
from tests.paths import on_path

pytestmark = pytest.mark.native
SEEDS = range(6)
every_trial = pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in fuzz.MODULES for name in fuzz.trials(module)]
)
# What `python -m tests.fuzz` has found: module, trial, seed.
FOUND = [
    # A sampled entry of a wide row counted twice, so that others were cut off.
    *(("maps", "spikes", seed) for seed in (6, 7, 10, 11)),
]


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@every_trial
def test_kernels_agree_with_plain_torch(module, name):
    with on_path("native"):
        checked = sum(fuzz.run(module, name, seed) for seed in SEEDS)
    assert checked > 0


@pytest.mark.parametrize(("module", "name", "seed"), FOUND)
def test_what_was_found_stays_right(module, name, seed):
    with on_path("native"):
        fuzz.run(module, name, seed)


def test_the_same_seed_draws_the_same_inputs(monkeypatch):
    drawn = []
    monkeypatch.setitem(
        fuzz.trials("maps"), "probabilities", lambda rng: drawn.append(rng.random())
    )
    for seed in (3, 3, 4):
        fuzz.run("maps", "probabilities", seed)
    assert drawn[0] == drawn[1] != drawn[2]
