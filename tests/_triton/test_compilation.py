"""The kernels compile for a GPU, which the interpreter does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_kernels_compile_for_gpus(quick: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests._triton.compile_kernels"]
    done = subprocess.run(
        [*command, "--quick"] if quick else command,
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 15
