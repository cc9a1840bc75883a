"""The ``fewfold`` command: arguments in, one function call out.

Nothing heavy is imported before a command is chosen, so that ``fewfold --help`` answers at once.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import fewfold


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    arguments = _parser().parse_args(argv)
    command: int = arguments.run(arguments)
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fewfold",
        description="Learn over very large discrete sets while touching only a few at a time.",
    )
    parser.add_argument("--version", action="version", version=f"fewfold {fewfold.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="see the maps: bars, a regularisation path, a speed table",
        description="One vector through five maps, a regularisation path as a PNG, and the time "
        "each map takes next to torch.softmax, measured there and then (a few seconds).",
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        metavar="DIR",
        help="where the picture goes (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)

    config = commands.add_parser(
        "config",
        help="say which kernels, instruction set and threads are in use",
        description="Say whether the native kernels are active, for which instruction set, and "
        "with how many threads. FEWFOLD_NATIVE=0 switches them off.",
    )
    config.set_defaults(run=_config)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from fewfold import demo  # imports torch

    demo.run(arguments.out)
    return 0


def _config(arguments: argparse.Namespace) -> int:
    fewfold.show_config()
    return 0
