"""What the command lines of several experiments have in common."""

import argparse


def whole(text: str) -> int:
    """A whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def add_epochs(parser: argparse.ArgumentParser, default: int, full: int) -> None:
    """`--epochs`, and `--full` for the published number of them; `options.epochs` has either."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=whole, default=default, help=f"by default {default}")
    length.add_argument(
        "--full",
        action="store_const",
        const=full,
        dest="epochs",
        help=f"{full} epochs, as published",
    )
