"""Worker process that runs trials until its time is up, isolated from crashes.

Before each trial its name and seed go to a file, so that whoever started this process can say
what it died of. Findings are printed as lines of JSON.
"""

import faulthandler
import json
import os
import sys
import time

import torch

from tests import fuzz

HANGS_AFTER = 120  # seconds; the slowest honest trial takes a few


def main(module: str, name: str, seed: int, seconds: float, note: str) -> None:
    """Run the trials of a module in turn, or the one called `name`, from `seed` on."""
    torch.set_num_threads(1)
    names = [name] if name else list(fuzz.trials(module))
    end, inputs, ran = time.monotonic() + seconds, 0, 0
    file = os.open(note, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    while ran == 0 or time.monotonic() < end:
        one = names[ran % len(names)]
        os.pwrite(file, f"{one} {seed:>12}".ljust(80).encode(), 0)
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            inputs += fuzz.run(module, one, seed)
        except Exception as error:
            # Whatever it is, it is a finding: the trials draw valid inputs.
            print(json.dumps({"trial": one, "seed": seed, "error": _short(error)}), flush=True)
        faulthandler.cancel_dump_traceback_later()
        ran, seed = ran + 1, seed + (ran % len(names) == len(names) - 1)
    print(json.dumps({"trials": ran, "inputs": inputs, "next": seed}), flush=True)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:600]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
