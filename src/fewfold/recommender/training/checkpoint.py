"""Checkpoints of a training: when they are written, and how it resumes from one."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from fewfold._check import non_negative_number
from fewfold._files import discard, remove, restore_interrupted
from fewfold._native import dispatch
from fewfold._progress import line, phase
from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.training.checkpoint_file import (
    RESTART,
    Saved,
    check_layout,
    partial_path,
    write,
)
from fewfold.recommender.training.checkpoint_folder import (
    Sharding,
    is_checkpoint,
    load_writer,
    read_part,
    write_folder,
)
from fewfold.recommender.training.checkpoint_schema import Origin, check_settings

__all__ = ["Checkpoint", "CheckpointWriter", "Interrupted", "print_message"]

Layout = Callable[[Found], Iterable[tuple[str, Spec]]]

_REST = 20  # least ratio of the time between two checkpoints to that of writing one


@dataclass(frozen=True)
class Checkpoint:
    """File in which a training is saved, and how often.

    The file is complete at any moment: a new one replaces it when it is safely on the disk. It
    stays when training ends, so that `resume` then gives the result at once; `discard` removes it.

    Several processes that train together write a folder to the same path, on a file system that
    they share. Any number of processes can resume from either.

    Args:
        path: the file; its folder must exist.
        every: least number of seconds between two checkpoints. If writing is slow they are rarer,
            so that writing takes at most a twentieth of the time.
        resume: resume from the file, or start if there is none. Without it an existing file is an
            error; it is not replaced.

    Example:
        >>> import fewfold as ff, tempfile
        >>> from fewfold.recommender.training.checkpoint import Checkpoint
        >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     keep = Checkpoint(f"{folder}/run", resume=True)
        ...     for _ in range(2):  # the second time training is finished already
        ...         model = ff.recommender.FastVAE(items=4, hidden=8, latent=2)
        ...         epochs = ff.recommender.train(
        ...             model, log, epochs=3, checkpoint=keep, progress=False
        ...         )
        >>> len(epochs)
        3
    """

    path: str | os.PathLike[str]
    every: float = 300.0
    resume: bool = False
    _stages: list["Checkpoint"] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        non_negative_number(self.every, "every")

    def stage(self, name: str) -> "Checkpoint":
        """Return the checkpoint of one of several trainings: its name is appended to the path."""
        stage = replace(self, path=f"{os.fspath(self.path)}.{name}", _stages=[])
        self._stages.append(stage)
        return stage

    def discard(self) -> None:
        """Remove the file, and those of its stages; of several processes the first does."""
        for stage in self._stages:
            stage.discard()
        discard(Path(self.path))
        remove(partial_path(Path(self.path)))


class Interrupted(KeyboardInterrupt):
    """Raised for Ctrl-C or SIGTERM during training, after a whole step.

    Attributes:
        path: of the checkpoint, or None if there is none.
        signal: the signal's number.
    """

    def __init__(self, message: str, path: Path | None, number: int) -> None:
        super().__init__(message)
        self.path, self.signal = path, number


class Resumable(Protocol):
    """A training whose state can be saved."""

    def state(self) -> Saved:
        """Return the whole state; its tensors are not copied."""

    def where(self) -> str:
        """Return the current step and epoch, as text."""


class Stoppable(Resumable, Protocol):
    """A training that may be saved and stopped after a step; all processes of a group are."""

    def stops(self) -> bool:
        """Return whether to stop after this step."""

    def saves(self) -> bool:
        """Return whether to save after this step."""


class CheckpointWriter:
    """Writes a checkpoint when one is due, and when a signal stops training."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint, self._signals, self._cost = checkpoint, list[int](), 0.0
        # Absolute, because the working directory may change.
        self.path = None if checkpoint is None else Path(checkpoint.path).resolve()
        self._settings: dict[str, Any] = {}
        self._sharding = Sharding()
        self._last = time.perf_counter()

    @contextlib.contextmanager
    def defer_signals(self) -> Iterator[None]:
        """Defer Ctrl-C and SIGTERM to the end of a step; a second one interrupts at once."""

        def note(number: int, _: Any) -> None:
            if self._signals:
                raise Interrupted("stopped at once", None, number)
            self._signals.append(number)

        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as for background jobs
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._signals:  # since the last step
            raise Interrupted("stopped when all was done", self.path, self._signals[0])

    def signalled(self) -> bool:
        """Return whether a signal has come."""
        return bool(self._signals)

    def load(
        self,
        settings: Mapping[str, Any],
        layout: Layout | None = None,
        sharding: Sharding | None = None,
    ) -> Saved | None:
        """Return the checkpoint to resume from, or None; raise if its settings differ.

        Args:
            settings: of this training.
            layout: tensors that its checkpoint must have, as a function of those it has.
            sharding: of tensors among the processes that train, if there are several.
        """
        self._settings = json.loads(json.dumps(settings))
        self._sharding = sharding or self._sharding
        if self._checkpoint is None or self.path is None or not self._prepare(self.path):
            return None
        if not self._checkpoint.resume:
            raise FileExistsError(
                f"{self.path} is there already; to go on from it write "
                f"Checkpoint(..., resume=True), or {RESTART}"
            )

        def validate(source: Source, found: Found, facts: Any) -> None:
            same = isinstance(facts, dict) and facts.get("made") == self._settings
            if same and layout is not None:  # differences of settings are reported below
                check_layout(source, found, layout(found))

        saved = read_part(self.path, self._sharding, validate)
        facts = check(Origin, saved.facts, saved.source, exact=False)
        check_settings(self.path, facts.made, self._settings)
        there, here = ({"processes": 1, **each} for each in (facts.machine, self._machine()))
        for name in (name for name in here if there.get(name) != here[name]):
            self._report(
                f"warning: the checkpoint was made with {name} {there.get(name)}, this is "
                f"{here[name]}: numbers may differ in their last digits"
            )
        return saved

    def _prepare(self, path: Path) -> bool:
        """Return whether there is a checkpoint; raise unless one can be written."""
        group = self._sharding.group

        def prepare() -> None:
            restore_interrupted(path)
            _check_writable(path)

        group.lead(prepare)
        if group.world > 1:
            load_writer()  # or else the first checkpoint seems slow, and the next are rare
        return bool(group.agree(float(path.exists()))[0])

    def due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        if self._checkpoint is None:
            return False
        rest = max(self._checkpoint.every, _REST * self._cost)
        return time.perf_counter() - self._last >= rest

    def after_step(self, run: Stoppable) -> None:
        """Write a checkpoint if one is due; raise `Interrupted` if a signal has come."""
        stops = run.stops()
        if stops and not self._signals:  # another process of the group had one
            self._signals.append(signal.SIGTERM)
        if stops or run.saves():
            self._save(run, stops)

    def finish(self, run: Resumable) -> None:
        """Write a checkpoint now; raise `Interrupted` if a signal has come to any process."""
        stops = not self._sharding.group.every(not self._signals)
        if stops and not self._signals:
            self._signals.append(signal.SIGTERM)
        self._save(run, stops)

    def _save(self, run: Resumable, stops: bool) -> None:
        path = self._write(run)
        if stops or (self._sharding.group.world == 1 and self._signals):
            number = self._signals[0]
            by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            raise Interrupted(f"stopped by {by} {run.where()}; {self._advice(path)}", path, number)

    def _advice(self, path: Path | None) -> str:
        if self.path is None:
            return "nothing was saved, since there is no checkpoint path"
        if path is None:
            return f"the checkpoint could not be written to {self.path}; an earlier one stays"
        return f"to go on, resume from the checkpoint {path}"

    def _write(self, run: Resumable) -> Path | None:
        """Write a checkpoint; return its path, or None if that failed."""
        if self.path is None:
            return None
        began = time.perf_counter()
        state = run.state()
        facts = {**state.facts, "made": self._settings, "machine": self._machine()}
        saved = Saved(state.tensors, facts)
        try:
            with phase("writing the checkpoint"):
                if self._sharding.group.world == 1:
                    write(self.path, saved)
                else:
                    write_folder(self.path, saved, self._sharding)
        except OSError as error:
            self._report(
                f"warning: no checkpoint could be written to {self.path}: "
                f"{error.strerror or error}; training goes on, and the last one stays as it is"
            )
            return None
        finally:
            self._last = time.perf_counter()
            self._cost = self._last - began
        return self.path

    def _machine(self) -> dict[str, Any]:
        """Return what rounding depends on: threads, kernels, torch, and processes if several."""
        kernels = dispatch.instruction_set() or "plain torch"
        found = {"threads": dispatch.threads(), "kernels": kernels, "torch": str(torch.__version__)}
        world = self._sharding.group.world
        return found if world == 1 else {**found, "processes": world}

    def _report(self, text: str) -> None:
        """Print a line, by one process."""
        if self._sharding.group.leads:
            print_message(text)


def print_message(text: str) -> None:
    """Print a line to standard error, in the place of the progress line."""
    line("")
    print(text, file=sys.stderr, flush=True)


def _check_writable(path: Path) -> None:
    """Raise unless a file can be written to this path."""
    if path.is_dir() and not is_checkpoint(path):
        raise IsADirectoryError(f"the checkpoint {path} is a folder; name a file in it")
    partial = partial_path(path)
    try:
        partial.open("wb").close()  # may be left from a killed process
        partial.unlink()
    except OSError as error:
        raise OSError(
            error.errno,
            f"no checkpoint can be written here ({error.strerror}); name a folder that exists and "
            "may be written to",
            str(path),
        ) from None
