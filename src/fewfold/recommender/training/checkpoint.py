"""Checkpoints: the state of a training in one file, from which it resumes exactly."""

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold._files import new_file
from fewfold._native import dispatch
from fewfold._optional import optional_import
from fewfold._progress import line, phase
from fewfold._tensors import Found, Spec, check_names, extremes, read_header, strict_json
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.errors import ArtifactError

__all__ = [
    "Checkpoint",
    "CheckpointWriter",
    "Interrupted",
    "Saved",
    "digest",
    "print_message",
    "read",
    "write",
]

Layout = Callable[[Found], Iterable[tuple[str, Spec]]]

_FORMAT = 1
_KEY = "fewfold checkpoint"
_REST = 20  # least ratio of the time between two checkpoints to that of writing one
_AGAIN = "delete it, or name another path, to begin anew"
_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """File in which a training is saved, and how often.

    The file is complete at any moment: a new one replaces it when it is safely on the disk. It
    stays when training ends, so that `resume` then gives the result at once; `discard` removes it.

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
        """Remove the file, and those of its stages."""
        for stage in self._stages:
            stage.discard()
        for path in (Path(self.path), _partial(Path(self.path))):
            path.unlink(missing_ok=True)


class Interrupted(KeyboardInterrupt):
    """Raised for Ctrl-C or SIGTERM during training, after a whole step.

    Attributes:
        path: of the checkpoint, or None if there is none.
        signal: the signal's number.
    """

    def __init__(self, message: str, path: Path | None, number: int) -> None:
        super().__init__(message)
        self.path, self.signal = path, number


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint: tensors, and facts in the form of JSON.

    Attributes:
        tensors: by name.
        facts: by name.
        source: the file they were read from, for errors.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    source: Source = field(default=Source(Path("the checkpoint"), _AGAIN), compare=False)

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `name` and a dot, without this prefix."""
        start = f"{name}."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}

    @property
    def found(self) -> Found:
        """Dtype and shape of each tensor."""
        return {name: (it.dtype, tuple(it.shape)) for name, it in self.tensors.items()}

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise an ArtifactError about a tensor or a fact."""
        raise self.source.damaged(name, what)

    def expect(self, layout: Iterable[tuple[str, Spec]]) -> None:
        """Raise unless the tensors have these names, dtypes, shapes and ranges."""
        for name, spec in _check_layout(self.source, self.found, layout).items():
            fault = spec.value_fault(*extremes(self.tensors[name]))
            if fault is not None:
                self.fail(name, fault)

    @contextlib.contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Turn errors of an object that loads its state into an ArtifactError of this file."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self.source.damaged(name, f"cannot be used: {error}") from error


def _check_layout(
    source: Source, found: Found, layout: Iterable[tuple[str, Spec]]
) -> dict[str, Spec]:
    """Return the layout by name; raise if names, dtypes or shapes differ from it."""

    def fail(name: str, what: str) -> NoReturn:
        raise source.damaged(name, what)

    specs = check_names(found, layout, fail)
    for name, spec in specs.items():
        fault = spec.fault(*found[name])
        if fault is not None:
            fail(name, fault)
    return specs


@dataclass(frozen=True)
class _Origin:
    """Settings and machine of the training that wrote a checkpoint."""

    made: Mapping[str, Any]
    machine: Mapping[str, Any]


class Resumable(Protocol):
    """A training whose state can be saved."""

    def state(self) -> Saved:
        """Return the whole state; its tensors are not copied."""

    def where(self) -> str:
        """Return the current step and epoch, as text."""


class CheckpointWriter:
    """Writes a checkpoint when one is due, and when a signal stops training."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint, self._signals, self._cost = checkpoint, list[int](), 0.0
        # Absolute, because the working directory may change.
        self.path = None if checkpoint is None else Path(checkpoint.path).resolve()
        self._settings: dict[str, Any] = {}
        self._last = time.perf_counter()
        if self.path is not None:
            _check_writable(self.path)

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

    def load(self, settings: Mapping[str, Any], layout: Layout | None = None) -> Saved | None:
        """Return the checkpoint to resume from, or None; raise if its settings differ.

        Args:
            settings: of this training.
            layout: tensors that its checkpoint must have, as a function of those it has.
        """
        self._settings = json.loads(json.dumps(settings))
        if self._checkpoint is None or self.path is None or not self.path.exists():
            return None
        if not self._checkpoint.resume:
            raise FileExistsError(
                f"{self.path} is there already; to go on from it write "
                f"Checkpoint(..., resume=True), or {_AGAIN}"
            )

        def validate(source: Source, found: Found, facts: Any) -> None:
            same = isinstance(facts, dict) and facts.get("made") == self._settings
            if same and layout is not None:  # differences of settings are reported below
                _check_layout(source, found, layout(found))

        saved = read(self.path, validate)
        facts = check(_Origin, saved.facts, saved.source, exact=False)
        _check_settings(self.path, facts.made, self._settings)
        there, here = facts.machine, _machine()
        for name in (name for name in here if there.get(name) != here[name]):
            print_message(
                f"warning: the checkpoint was made with {name} {there.get(name)}, this is "
                f"{here[name]}: numbers may differ in their last digits"
            )
        return saved

    def after_step(self, run: Resumable) -> None:
        """Write a checkpoint if one is due; raise `Interrupted` if a signal has come."""
        rest = 0.0 if self._checkpoint is None else max(self._checkpoint.every, _REST * self._cost)
        due = self.path is not None and time.perf_counter() - self._last >= rest
        if due or self._signals:
            self.finish(run)

    def finish(self, run: Resumable) -> None:
        """Write a checkpoint now; raise `Interrupted` if a signal has come."""
        path = self._write(run)
        if self._signals:
            number = self._signals[0]
            by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            raise Interrupted(f"stopped by {by} {run.where()}; {self._advice(path)}", path, number)

    def _advice(self, path: Path | None) -> str:
        if self.path is None:
            return "nothing was saved, for no checkpoint was asked for"
        if path is None:
            return f"the checkpoint could not be written to {self.path}; an earlier one stays"
        return f"to go on, resume from the checkpoint {path}"

    def _write(self, run: Resumable) -> Path | None:
        """Write a checkpoint; return its path, or None if that failed."""
        if self.path is None:
            return None
        began = time.perf_counter()
        state = run.state()
        facts = {**state.facts, "made": self._settings, "machine": _machine()}
        try:
            with phase("writing the checkpoint"):
                write(self.path, Saved(state.tensors, facts))
        except OSError as error:
            print_message(
                f"warning: no checkpoint could be written to {self.path}: "
                f"{error.strerror or error}; training goes on, and the last one stays as it is"
            )
            return None
        finally:
            self._last = time.perf_counter()
            self._cost = self._last - began
        return self.path


def write(path: Path, saved: Saved) -> None:
    """Write a safetensors file atomically: an existing file stays until the new one is on the disk.

    The library's own function uses a temporary file with a random name, which would never be
    removed if the process is killed.
    """
    tensors = {name: saved.tensors[name].detach().contiguous() for name in saved.tensors}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    facts = {"format": _FORMAT, **saved.facts}
    facts["checksum"] = _checksum(facts, tensors)
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(facts, sort_keys=True)}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind, shape = _DTYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path, _partial(path)) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(_raw(tensors[name]))


def read(path: Path, validate: Callable[[Source, Found, Any], None] | None = None) -> Saved:
    """Read what `write` has written; the tensors are views of the file.

    `validate` is called with the header and the facts before any tensor is read.
    """
    with optional_import("safetensors", "recommender", "resuming"):
        from safetensors import SafetensorError, safe_open
    source = Source(path, _AGAIN)
    try:
        header = read_header(path)  # checks the length of the file
        text = header.metadata.get(_KEY)
        if text is None:
            raise ArtifactError(f"{path} is not a checkpoint of fewfold; name another path")
        facts = strict_json(text.encode(), finite=False)
        if validate is not None:
            validate(source, header.tensors, facts)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ArtifactError:
        raise
    except (SafetensorError, RuntimeError, ValueError) as error:  # torch maps the file as it is
        raise source.damaged("", f"is damaged ({error})") from error
    version = facts.get("format") if isinstance(facts, dict) else None
    if type(version) is not int or version < 1:
        raise source.damaged("format", f"is damaged: it must be {_FORMAT}, got {version!r}")
    if version > _FORMAT:
        raise ArtifactError(
            f"the checkpoint {path} is of format {version}, this fewfold reads {_FORMAT}; "
            f"update fewfold, or {_AGAIN}"
        )
    if facts.pop("checksum", None) != _checksum(facts, tensors):
        raise source.damaged("", "is damaged: it has changed since it was written")
    return Saved(tensors, facts, source)


def digest(*parts: Tensor) -> str:
    """Return a short hash of the tensors."""
    total = hashlib.sha256()
    for part in parts:
        total.update(_raw(part.contiguous()))
    return total.hexdigest()[:16]


def print_message(text: str) -> None:
    """Print a line to standard error, in the place of the progress line."""
    line("")
    print(text, file=sys.stderr, flush=True)


def _check_writable(path: Path) -> None:
    """Raise unless a file can be written to this path."""
    if path.is_dir():
        raise IsADirectoryError(f"the checkpoint {path} is a folder; name a file in it")
    partial = _partial(path)
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


def _check_settings(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise if the settings of a checkpoint differ from those of this training."""
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if names:
        changes = "; ".join(f"{name} was {there.get(name)}, is {here.get(name)}" for name in names)
        raise ArtifactError(
            f"the checkpoint {path} is of another training: {changes}. Train as it was, or {_AGAIN}"
        )


def _machine() -> dict[str, Any]:
    """Return what rounding depends on: threads, kernels and the version of torch."""
    kernels = dispatch.instruction_set() or "plain torch"
    return {"threads": dispatch.threads(), "kernels": kernels, "torch": str(torch.__version__)}


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _raw(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checksum(facts: dict[str, Any], tensors: dict[str, Tensor]) -> int:
    total = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(_raw(tensor), total)
    return total
