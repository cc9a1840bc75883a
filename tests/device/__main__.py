"""Write the table of devices from what passes: `python -m tests.device FILE`."""

import sys
from pathlib import Path

import torch

from .rows import CASES
from .table import CHECKS, Case, written


def passed(case: Case, column: str) -> bool:
    """Whether the check passes now."""
    try:
        CHECKS[column](case)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        print(f"{case.name}, {column}: {type(error).__name__} {first}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = written(CASES, passed)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text, end="")
