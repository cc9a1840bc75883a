"""Shared fixtures and settings: one torch thread, deterministic hypothesis, both paths."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests.paths import on_path

torch.set_num_threads(1)
# A shell lets what it starts in the background ignore Ctrl-C; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases on every machine: a red run can be repeated, a green one means the same everywhere.
hypothesis.settings.register_profile(
    "fewfold",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
# `pytest --hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile(
    "explore", parent=hypothesis.settings.get_profile("fewfold"), derandomize=False
)
hypothesis.settings.load_profile("fewfold")


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.native), "torch"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with the native kernels and once in pure torch."""
    with on_path(request.param):
        yield request.param
