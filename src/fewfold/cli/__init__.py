"""The ``fewfold`` command line.

Heavy modules are imported only when a command runs, so that ``fewfold --help`` starts fast.
"""

import os
import sys
from collections.abc import Sequence

from fewfold._progress import silence
from fewfold.cli import console
from fewfold.cli.arguments import parse
from fewfold.cli.torchrun import check_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 success, 1 a bug in fewfold, 2 invalid arguments, 3 data that cannot be read or downloaded, 4
    a model folder or checkpoint that cannot be read, 5 a write error or too little memory, 130
    interrupted.

    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    # Read by OpenMP when torch is imported. Threads that wait for work sleep instead of spinning:
    # on a busy machine a training takes a third of the processor time and half the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with console.errors() as outcome, console.warnings_as_notes():
        arguments = parse(argv)
        check_command(arguments.command)
        with silence(arguments.quiet):
            outcome.code = arguments.run(arguments) or 0
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
