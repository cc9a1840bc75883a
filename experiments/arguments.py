"""Command-line arguments shared by several experiments."""

import argparse


def whole(text: str) -> int:
    """Parse a positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def add_epochs(parser: argparse.ArgumentParser, default: int, full: int) -> None:
    """Add `--epochs`, and `--full` for the published number; both set `options.epochs`."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=whole, default=default, help=f"by default {default}")
    length.add_argument(
        "--full",
        action="store_const",
        const=full,
        dest="epochs",
        help=f"{full} epochs, as published",
    )
