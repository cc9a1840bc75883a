"""The ``fewfold`` command: arguments in, one function call out.

Nothing heavy is imported before a command runs, so that ``fewfold --help`` answers at once.
"""

import sys
from collections.abc import Sequence

from fewfold._progress import silence
from fewfold.cli import console
from fewfold.cli.arguments import parser
from fewfold.cli.settings import resolved

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done, 1 a defect of fewfold, 2 wrong arguments, 3 data that cannot be read or fetched, 4 a
    model folder or checkpoint that cannot be read, 5 something that cannot be written or does not
    fit into memory, 130 interrupted.

    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    given = parser().parse_args(argv)
    with console.errors() as outcome, console.warnings_as_notes():
        arguments = resolved(given)
        with silence(arguments.quiet):
            outcome.code = given.run(arguments) or 0
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
