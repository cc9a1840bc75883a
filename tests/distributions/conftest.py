"""Arguments are checked in every test: torch stops to, in a process that compiled something."""

from collections.abc import Iterator

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)
