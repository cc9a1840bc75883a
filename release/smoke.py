"""Smoke test of an installed wheel, run by its Python: ``python -I smoke.py [pure]``.

It knows nothing of the repository. Without torch, which may be missing for a new Python, it tests
the command and the compiled module alone; `pure` is for a wheel without one.
"""

import ctypes
import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

DTYPES = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def command(*words: str) -> str:
    """Run `fewfold` and return its output."""
    program = Path(sys.executable).with_name("fewfold")
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == 0, f"fewfold {' '.join(words)}: {done.stderr}"
    return done.stdout


def check_command(pure: bool) -> str:
    """Check the version and that the kernels load, if there are any; return the line about them."""
    lines = command("--version").splitlines()
    assert lines[0] == f"fewfold {version('fewfold')}", lines
    assert ("not built" if pure else "compiled by") in lines[2], lines
    assert "fit" in command("--help")
    return lines[2]


class Array:
    """The methods of a tensor by which a kernel reads it."""

    def __init__(self, *values: float) -> None:
        self.values = (ctypes.c_float * len(values))(*values)
        self.shape, self.dtype, self.is_cpu = (len(values),), "float32", True

    def data_ptr(self) -> int:
        """Return the address."""
        return ctypes.addressof(self.values)

    def numel(self) -> int:
        """Return the number of elements."""
        return len(self.values)

    def stride(self) -> tuple[int, ...]:
        """Return the strides."""
        return (1,)

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return 4


def check_kernels_alone() -> None:
    """Compute a sparsemax by the compiled module, and have it refuse sizes that do not fit."""
    from fewfold.cli.version import _load

    kernels: Any = _load()
    kernels.accept_tensors(Array, tuple(sys.intern(name) for name in DTYPES), False)
    scores, probs = Array(2.0, 1.6, 1.35, 0.9, -1.0), Array(*[9.0] * 5)
    kernels.forward_f32(scores, probs, 1, 5, 2.0, None, False, None, 0, 1)
    expected = [0.68333, 0.28333, 0.03333, 0.0, 0.0]
    assert all(abs(p - q) < 1e-4 for p, q in zip(probs.values, expected, strict=True))
    refused = ""
    try:
        kernels.forward_f32(scores, probs, 2, 5, 2.0, None, False, None, 0, 1)
    except ValueError as error:
        refused = str(error)
    assert "at least 10 elements, got 5" in refused, refused


def check_maps() -> None:
    """Compare a map and its gradient with the kernels and without."""
    import torch

    import fewfold as ff
    from fewfold import _native

    scores = torch.randn(64, 500, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert _native.ready(scores) == _native.available()
    results = []
    for context in (_native.disabled, torch.enable_grad):
        with context():
            probs = ff.entmax(scores, alpha=1.5)
            (grad,) = torch.autograd.grad(probs.square().sum(), scores)
        results.append((probs, grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert (probs == 0).any()


def check_recommender() -> None:
    """Fit a model to the bundled data by the command, and ask it."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        command("fit", "--model", "fastvae", "--epochs", "1", "--core", "10", "--out", model, "-q")
        asked = command(
            "recommend", model, "--history", "libssl-dev,zlib1g-dev", "-k", "3", "--json"
        )
        assert len(json.dumps(json.loads(asked))) > 20, asked


def main() -> None:
    """Run what can run here, and print a line of what did."""
    site = Path(sysconfig.get_path("purelib"))
    spec = importlib.util.find_spec("fewfold")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(site), spec.origin
    compilers = [name for name in ("c++", "g++", "clang++", "cc", "gcc") if shutil.which(name)]
    assert not compilers, f"there is a compiler in PATH: {compilers}"
    pure = sys.argv[1:] == ["pure"]
    kernels = check_command(pure)
    found = [name for name in ("torch", "polars") if importlib.util.find_spec(name) is not None]
    if not pure:
        check_kernels_alone()
    if "torch" in found:
        # In a new process: here the kernels read another type of tensor now.
        run = f"import runpy; runpy.run_path({__file__!r})['check_maps']()"
        subprocess.run([sys.executable, "-I", "-c", run], check=True)
    if found == ["torch", "polars"]:
        check_recommender()
    parts = {
        "command": True,
        "kernels": not pure,
        "maps": "torch" in found,
        "fit": found == ["torch", "polars"],
    }
    print(f"{', '.join(name for name, done in parts.items() if done)}; {kernels}")


if __name__ == "__main__":
    main()
