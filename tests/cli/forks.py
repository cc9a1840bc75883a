"""Runs the command in forks of one process that has loaded everything, and kills them.

A line of JSON in, {"arguments": [...], "folder": F, "seconds": S or null, "change": N or null}; a
line out, {"code": ..., "seconds": ..., "changes": ...}. The child runs in the folder, and is
killed, as by kill -9, after so many seconds, or right before its Nth change to a file there.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import fewfold as ff
from fewfold import cli

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")


def _watch(report: int, last: int | None) -> None:
    """Count the changes, and die before the last of them."""
    seen, here = 0, os.getcwd()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        opens = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax")
        if not (opens or event in _CHANGES):
            return
        try:
            path = os.path.abspath(os.fsdecode(arguments[0]))
        except TypeError:  # of a file that is open already
            return
        if path.startswith(here):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)
            os.pwrite(report, str(seen).encode(), 0)

    sys.addaudithook(hook)


def _child(order: dict[str, Any], report: int) -> None:
    code = 99
    try:
        os.chdir(order["folder"])
        with open(os.devnull, "w") as nowhere:
            for stream in (1, 2):
                os.dup2(nowhere.fileno(), stream)
        _watch(report, order["change"])
        code = cli.main(order["arguments"])
    finally:
        os._exit(code)


def run(order: dict[str, Any], report: int) -> dict[str, Any]:
    """Fork, wait or kill, and tell what came of it."""
    os.ftruncate(report, 0)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(order, report)
    timer = threading.Timer(order["seconds"] or 600, os.kill, (child, signal.SIGKILL))
    timer.start()
    # Not collected before the timer has ended: another process could have its number by then.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    seconds = time.monotonic() - began
    timer.cancel()
    timer.join()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "seconds": seconds, "changes": int(os.pread(report, 20, 0) or 0)}


if __name__ == "__main__":
    import polars
    import pyarrow.compute
    import pyarrow.parquet
    import safetensors.torch
    import torch
    import torch._dynamo  # which the first optimiser would load

    torch.set_num_threads(1)
    loaded = (
        ff.Recommender,
        ff.read_log,
        polars,
        pyarrow.compute,
        pyarrow.parquet,
        safetensors.torch,
    )
    report = os.memfd_create("changes")
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), report)), flush=True)
