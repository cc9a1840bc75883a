"""Attempts of torchrun: what a command did before torchrun started its processes again."""

import enum
import os
from pathlib import Path

import torch

from fewfold.distributed.group import Group

__all__ = ["Attempt", "earlier_attempt", "note_attempt"]

_NOTE = "fewfold-attempt"


class Attempt(enum.IntEnum):
    """How far an earlier attempt came.

    Attributes:
        NONE: there was none, or it was refused.
        UNKNOWN: there was one.
        STARTED: nothing was in its way, so that files that are there are its own.
        DONE: all its results are written.
    """

    NONE = 0
    UNKNOWN = 1
    STARTED = 2
    DONE = 3


def earlier_attempt() -> Attempt:
    """Return how far an earlier attempt of these processes came, the same in all of them.

    torchrun counts the restarts of one machine, and restarts a command that refused to run as well;
    so each machine has a note in the folder of torchrun's logs, which belongs to one run of it.
    """
    note, found = _note(), Attempt.NONE
    if note is None:
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            found = Attempt.UNKNOWN
    elif note.exists():
        found = Attempt[note.read_text()]
    group = Group.current()
    every = group.gather(torch.tensor([int(found)]), [1] * group.world, "decisions")
    return Attempt(int(every.max()))


def note_attempt(reached: Attempt) -> None:
    """Note how far this attempt came, once all processes came as far."""
    Group.current().every(True)
    note = _note()
    if note is not None:
        partial = note.with_name(f"{_NOTE}.{os.getpid()}")
        partial.write_text(reached.name)
        partial.replace(note)


def _note() -> Path | None:
    """Return the file of this run of torchrun, RUN/fewfold-attempt; RUN/attempt_0/0 has logs."""
    log = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(log).parents[2] / _NOTE if log else None
