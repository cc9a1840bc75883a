"""Run tests in a fork of this process, which has imported everything but fewfold."""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.mutate.mutant import BUILD, ROOT

_HEAVY = (
    *("torch", "torch.testing", "torch._dynamo", "numpy", "hypothesis", "hypothesis.extra.numpy"),
    *("scipy.optimize", "scipy.special", "scipy.stats", "mpmath", "polars", "pyarrow.parquet"),
    *("safetensors.torch", "faiss", "pandas"),
)

QUIET = (
    *("-c", str(ROOT / "pyproject.toml"), "-q", "--tb=short"),
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is imported already
)


def warm_up() -> None:
    """Import what tests need and does not depend on fewfold, once for all forks."""
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(BUILD / "hypothesis")
    for name in _HEAVY:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def in_fork(
    work: Callable[[], Any], *, cpu: float, wall: float, log: str | None = None
) -> tuple[str, Any, float]:
    """Call `work` in a fork, whose answer must be JSON.

    Args:
        work: what to call.
        cpu: seconds of processor time after which the fork is killed.
        wall: seconds after which it is killed in any case.
        log: a file for what it prints.

    Returns:
        `(how it ended, the answer or None, seconds)`; the first is "done", "timeout" or "crash".
    """
    reading, writing = os.pipe()
    folder = tempfile.mkdtemp(prefix="fork", dir=BUILD)
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(work, writing, folder, cpu, log or os.devnull)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(child, child)  # as the child does: whoever comes first
    os.close(writing)
    answer = _read(reading, began + wall)
    os.close(reading)
    if answer is None:
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    if answer:
        return "done", json.loads(answer), seconds
    late = answer is None or status in (-signal.SIGXCPU, -signal.SIGKILL)
    return ("timeout" if late else "crash"), None, seconds


def _read(source: int, until: float) -> bytes | None:
    """Everything written to a pipe until it is closed, or None if that takes too long."""
    parts = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            return None
        part = os.read(source, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _child(work: Callable[[], Any], writing: int, folder: str, cpu: float, log: str) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + cpu) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 2))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.chdir(ROOT)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        sys.dont_write_bytecode = True
        answer = json.dumps(work()).encode()
        while answer:
            answer = answer[os.write(writing, answer) :]
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Take long and kill little that others miss, or run in a process that does not see the mutant.
_SLOW = ("compile", "export", "onnx", "test_fuzz.py", "other_instruction_sets")


def left_out(item: Any) -> bool:
    """Whether a test takes too long to run on every mutant."""
    name = item.nodeid.split("/")[-1]
    return bool(item.get_closest_marker("slow")) or any(word in name for word in _SLOW)


class FirstFailure:
    """A pytest plugin that keeps the wanted tests, in the wanted order, and notes what fails.

    Without any wish it keeps all but slow ones.
    """

    def __init__(self, wanted: list[str] | None) -> None:
        self.place = {name: i for i, name in enumerate(wanted)} if wanted is not None else None
        self.failed: str | None = None
        self.ran = 0

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Only those asked for, quickest first."""
        if self.place is None:
            items[:] = [item for item in items if not left_out(item)]
            return
        out = [item for item in items if item.nodeid not in self.place]
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place),
            key=lambda item: self.place[item.nodeid],
        )
        config.hook.pytest_deselected(items=out)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember the first test that failed."""
        self.ran += report.when == "call"
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported counts as a failure."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid or "collection"


def run_tests(files: dict[str, list[str] | None]) -> dict[str, Any]:
    """Run the given tests of each file, file after file, up to the first failure."""
    ran = 0
    for file, wanted in files.items():
        plugin = FirstFailure(wanted)
        arguments = [file, "-x", *QUIET]
        try:
            code = int(pytest.main(arguments, plugins=[plugin]))
        except BaseException as error:
            return {"failed": f"{file}: {type(error).__name__}", "ran": ran + plugin.ran}
        ran += plugin.ran
        if plugin.failed or code not in (0, 5):
            return {"failed": plugin.failed or f"{file}: exit code {code}", "ran": ran}
    return {"failed": None, "ran": ran}
