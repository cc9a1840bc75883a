"""The command `fewfold prepare`: its options, and the log it writes."""

import argparse
import re
from pathlib import Path

import fewfold as ff
from fewfold._options import Option, positive_integer
from fewfold.cli.commands import data_show, print_note, reading
from fewfold.cli.console import emit
from fewfold.cli.options import READING, in_group, named

__all__ = ["PREPARE", "prepare"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 4G or 800M, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


PREPARE = (
    *(option for option in READING if option.name not in ("weight-scale", "journal")),
    *in_group(
        "the folder",
        Option("out", "to write to (default: prepared)", "prepared", named, "DIR", short="o"),
        Option("overwrite", "replace an existing prepared log", False, switch=True),
        Option("parts", "parts of the users (default: by memory)", None, positive_integer, "N"),
        Option("memory", "memory to use, about (default: 4G)", 4 * 10**9, _bytes, "SIZE"),
    ),
    *in_group(
        "the run", Option("dry-run", "show how the log would be read, and stop", False, switch=True)
    ),
)


def prepare(arguments: argparse.Namespace) -> int:
    """Write a log of any size as a folder that `fit` reads."""
    if arguments.dry_run:
        return data_show(arguments)
    from fewfold.recommender.prepared.prepare_log import check_prepared_target

    out, options = Path(arguments.out), reading(arguments)
    check_prepared_target(out, arguments.overwrite)
    print_note(arguments, str(ff.recommender.plan_log(arguments.log, **options)))
    try:
        found = ff.recommender.prepare(
            arguments.log, out, parts=arguments.parts, memory=arguments.memory,
            overwrite=arguments.overwrite, progress=not arguments.quiet, **options,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted; run the same command again to go on after the last finished step"
        ) from None
    summary = found.summary
    written = {"folder": str(out), "parts": found.manifest.parts, "data": summary.as_dict()}
    emit(summary, written if arguments.json else None)
    print_note(arguments, f"\nprepared log written to {out}; try: fewfold fit {out}")
    return 0
