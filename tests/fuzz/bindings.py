"""Calls of every binding, and of the functions above them, with invalid arguments.

The invariant: a call returns, or raises TypeError, ValueError, IndexError or MemoryError. It never
crashes the process, hangs, reads out of bounds, or raises another error.

``python -m tests.fuzz.bindings --minutes 5`` runs alone: batches of calls in a child, so that a
crash is reported with its seed; ``--seed N --batch NAME`` repeats one.
"""

import argparse
import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from fewfold import _native
from tests.fuzz import recipes, recipes_structured, unfit
from tests.fuzz.spoil import Rng, spoiled, tried

__all__ = ["TRIALS", "batch", "main"]

assert recipes_structured  # has registered its own
CALLS = 40  # of a batch
PATIENCE = 10  # seconds of work a call may take; six times as much may pass
MEMORY = 6 * 2**30


def bindings(rng: Rng) -> int:
    """Direct calls: a fitting list of arguments, of which none, one or two are made wrong."""
    if _native.kernels is None:
        return 0
    names = sorted(recipes.RECIPES)
    for _ in range(CALLS):
        name = names[int(rng.integers(len(names)))]
        call, arguments = recipes.RECIPES[name](rng)
        _watched(name, call, spoiled(rng, arguments))
    return CALLS


def functions(rng: Rng) -> int:
    """Public functions, likewise."""
    names = sorted(unfit.CALLS)
    for _ in range(CALLS):
        name = names[int(rng.integers(len(names)))]
        _watched(name, unfit.CALLS[name], [rng])
    return CALLS


def _watched(name: str, call: Callable[..., object], arguments: list[object]) -> None:
    # A call that works on for too long is ended by SIGPROF, one that waits by this.
    faulthandler.dump_traceback_later(6 * PATIENCE, exit=True)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        tried(call, *arguments)
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


TRIALS: dict[str, Callable[[Rng], int]] = {"bindings": bindings, "functions": functions}


def batch(name: str, seed: int) -> int:
    """One batch of calls; the same seed makes the same ones."""
    torch.manual_seed(seed)
    return TRIALS[name](np.random.default_rng([seed, *name.encode()]))


def _in_child(name: str, seed: int) -> int:
    """The status of a child that runs a batch: 0 if all was well."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    status = 1
    try:
        if "asan" not in os.environ.get("LD_PRELOAD", ""):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        batch(name, seed)
        status = 0
    except BaseException as error:
        print(f"  {str(error)[:160]!r}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> int:
    """Run batches until the time is up; report violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bindings", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--batch", choices=sorted(TRIALS), help="only this one, once, at the seed")
    asked = parser.parse_args()
    if asked.batch:
        torch.set_num_threads(1)
        print(f"{batch(asked.batch, asked.seed)} calls")
        return 0
    faulthandler.register(signal.SIGPROF, chain=True)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # imports much, which is not to be timed
    end, seed, calls, found = time.monotonic() + 60 * asked.minutes, asked.seed, 0, 0
    while time.monotonic() < end:
        for name in TRIALS:
            status = _in_child(name, seed)
            calls += CALLS
            if status:
                found += 1
                what = signal.Signals(-status).name if status < 0 else f"exit {status}"
                print(f"{what}: python -m tests.fuzz.bindings --batch {name} --seed {seed}")
        seed += 1
    print(f"{calls} calls, {found} batches with a finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
