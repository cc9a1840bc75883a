"""Checkpoints: training kept in one file, from which it goes on as if it had never stopped."""

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

__all__ = ["Checkpoint", "Interrupted", "Keeper", "Saved", "digest", "read", "say", "write"]

Layout = Callable[[Found], Iterable[tuple[str, Spec]]]

_FORMAT = 1
_KEY = "fewfold checkpoint"
_REST = 20  # a checkpoint that took a second is followed by as many without one
_AGAIN = "delete it, or name another path, to begin anew"
_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """Where training is kept, and how often.

    The file is complete at any moment: it is written beside the last one, and takes its place when
    it is safe on the disk. It stays when training ends, so that `resume` then gives the result at
    once; `discard` removes it.

    Args:
        path: the file; its folder exists.
        every: seconds between two of them, at least. If writing is slow they are rarer, so that
            it costs at most a twentieth of the time.
        resume: go on from the file, or begin where there is none. Without it a file that is there
            is refused, not replaced.

    Example:
        >>> import fewfold as ff, tempfile
        >>> from fewfold.recommender.training.checkpoint import Checkpoint
        >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     keep = Checkpoint(f"{folder}/run", resume=True)
        ...     for _ in range(2):  # the second time all of it has been done
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
        """The same for one of several trainings that belong together: a file beside this one."""
        stage = replace(self, path=f"{os.fspath(self.path)}.{name}", _stages=[])
        self._stages.append(stage)
        return stage

    def discard(self) -> None:
        """Remove the file, and those of the stages there have been."""
        for stage in self._stages:
            stage.discard()
        for path in (Path(self.path), _partial(Path(self.path))):
            path.unlink(missing_ok=True)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during training, which stopped after a whole step.

    Attributes:
        path: of the checkpoint, or None if there is none.
        signal: its number.
    """

    def __init__(self, message: str, path: Path | None, number: int) -> None:
        super().__init__(message)
        self.path, self.signal = path, number


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: tensors, and facts that are JSON.

    Attributes:
        tensors: by name.
        facts: likewise.
        source: the file they come from, if they come from one.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    source: Source = field(default=Source(Path("the checkpoint"), _AGAIN), compare=False)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name` and a dot, without these."""
        start = f"{name}."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}

    @property
    def found(self) -> Found:
        """Dtype and shape of each tensor."""
        return {name: (it.dtype, tuple(it.shape)) for name, it in self.tensors.items()}

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise for a tensor or a fact."""
        raise self.source.damaged(name, what)

    def expect(self, layout: Iterable[tuple[str, Spec]]) -> None:
        """Raise unless the tensors have these names, dtypes, shapes and ranges."""
        for name, spec in _fitting(self.source, self.found, layout).items():
            fault = spec.value_fault(*extremes(self.tensors[name]))
            if fault is not None:
                self.fail(name, fault)

    @contextlib.contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Within, whatever an object says against its saved state is said of this file."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self.source.damaged(name, f"cannot be used: {error}") from error


def _fitting(source: Source, found: Found, layout: Iterable[tuple[str, Spec]]) -> dict[str, Spec]:
    """The layout, after a look that names, dtypes and shapes are as it has them."""

    def fail(name: str, what: str) -> NoReturn:
        raise source.damaged(name, what)

    specs = check_names(found, layout, fail)
    for name, spec in specs.items():
        fault = spec.fault(*found[name])
        if fault is not None:
            fail(name, fault)
    return specs


@dataclass(frozen=True)
class _Made:
    """What every checkpoint says of the training it is of."""

    made: Mapping[str, Any]
    machine: Mapping[str, Any]


class Keepable(Protocol):
    """What can be kept: something that says all it needs to go on."""

    def state(self) -> Saved:
        """Everything, its tensors not copied."""

    def where(self) -> str:
        """How far it is, in words."""


class Keeper:
    """Writes a checkpoint when one is due, and when a signal asks to stop."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint, self._asked, self._cost = checkpoint, list[int](), 0.0
        # Whole, for the folder we are in may become another.
        self.path = None if checkpoint is None else Path(checkpoint.path).resolve()
        self._made: dict[str, Any] = {}
        self._last = time.perf_counter()
        if self.path is not None:
            _try(self.path)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Keep Ctrl-C and SIGTERM for the end of a step; a second one is not kept."""

        def note(number: int, _: Any) -> None:
            if self._asked:
                raise Interrupted("stopped at once", None, number)
            self._asked.append(number)

        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._asked:  # since the last step
            raise Interrupted("stopped when all was done", self.path, self._asked[0])

    def saved(self, made: Mapping[str, Any], layout: Layout | None = None) -> Saved | None:
        """The checkpoint to go on from, if there is one, of a training made as this one is.

        Args:
            made: what the training was made with.
            layout: what tensors its checkpoint must hold, as a function of those there are.
        """
        self._made = json.loads(json.dumps(made))
        if self._checkpoint is None or self.path is None or not self.path.exists():
            return None
        if not self._checkpoint.resume:
            raise FileExistsError(
                f"{self.path} is there already; to go on from it write "
                f"Checkpoint(..., resume=True), or {_AGAIN}"
            )

        def look(source: Source, found: Found, facts: Any) -> None:
            same = isinstance(facts, dict) and facts.get("made") == self._made
            if same and layout is not None:  # another training is told about below
                _fitting(source, found, layout(found))

        saved = read(self.path, look)
        facts = check(_Made, saved.facts, saved.source, exact=False)
        _compare(self.path, facts.made, self._made)
        there, here = facts.machine, _machine()
        for name in (name for name in here if there.get(name) != here[name]):
            say(
                f"warning: the checkpoint was made with {name} {there.get(name)}, this is "
                f"{here[name]}: numbers may differ in their last digits"
            )
        return saved

    def between(self, run: Keepable) -> None:
        """To be called between two steps."""
        rest = 0.0 if self._checkpoint is None else max(self._checkpoint.every, _REST * self._cost)
        due = self.path is not None and time.perf_counter() - self._last >= rest
        if due or self._asked:
            self.finish(run)

    def finish(self, run: Keepable) -> None:
        """Write one now; raise `Interrupted` if a signal has come."""
        kept = self._write(run)
        if self._asked:
            number = self._asked[0]
            by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            raise Interrupted(f"stopped by {by} {run.where()}; {self._kept(kept)}", kept, number)

    def _kept(self, path: Path | None) -> str:
        if self.path is None:
            return "nothing was kept, for no checkpoint was asked for"
        if path is None:
            return f"the checkpoint could not be written to {self.path}; an earlier one stays"
        return f"to go on, resume from the checkpoint {path}"

    def _write(self, run: Keepable) -> Path | None:
        """The path, if it worked."""
        if self.path is None:
            return None
        began = time.perf_counter()
        state = run.state()
        facts = {**state.facts, "made": self._made, "machine": _machine()}
        try:
            with phase("writing the checkpoint"):
                write(self.path, Saved(state.tensors, facts))
        except OSError as error:
            say(
                f"warning: no checkpoint could be written to {self.path}: "
                f"{error.strerror or error}; training goes on, and the last one stays as it is"
            )
            return None
        finally:
            self._last = time.perf_counter()
            self._cost = self._last - began
        return self.path


def write(path: Path, saved: Saved) -> None:
    """One safetensors file, all of it or none: what was at `path` stays until it is on the disk.

    The library's own function has a temporary file with a name of its own, which would stay for
    ever where the process is killed.
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


def read(path: Path, look: Callable[[Source, Found, Any], None] | None = None) -> Saved:
    """What `write` has written; the tensors are views of the file.

    `look` may raise by the header and the facts, before any tensor is read.
    """
    with optional_import("safetensors", "recommender", "resuming"):
        from safetensors import SafetensorError, safe_open
    source = Source(path, _AGAIN)
    try:
        header = read_header(path)  # which is compared with the file's length
        text = header.metadata.get(_KEY)
        if text is None:
            raise ArtifactError(f"{path} is not a checkpoint of fewfold; name another path")
        facts = strict_json(text.encode(), finite=False)
        if look is not None:
            look(source, header.tensors, facts)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ArtifactError:
        raise
    except (SafetensorError, RuntimeError, ValueError) as error:  # torch maps what there is
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
    """A few letters that tell tensors from others."""
    total = hashlib.sha256()
    for part in parts:
        total.update(_raw(part.contiguous()))
    return total.hexdigest()[:16]


def say(text: str) -> None:
    """A line on standard error that stays."""
    line("")
    print(text, file=sys.stderr, flush=True)


def _try(path: Path) -> None:
    """Raise unless a file can be written to this path."""
    if path.is_dir():
        raise IsADirectoryError(f"the checkpoint {path} is a folder; name a file in it")
    partial = _partial(path)
    try:
        partial.open("wb").close()  # also one that a killed process has left
        partial.unlink()
    except OSError as error:
        raise OSError(
            error.errno,
            f"no checkpoint can be written here ({error.strerror}); name a folder that exists and "
            "may be written to",
            str(path),
        ) from None


def _compare(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if names:
        told = "; ".join(f"{name} was {there.get(name)}, is {here.get(name)}" for name in names)
        raise ArtifactError(
            f"the checkpoint {path} is of another training: {told}. Train as it was, or {_AGAIN}"
        )


def _machine() -> dict[str, Any]:
    """What the last digits depend on."""
    kernels = dispatch.instruction_set() or "plain torch"
    return {"threads": dispatch.threads(), "kernels": kernels, "torch": str(torch.__version__)}


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _raw(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor, where they are."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checksum(facts: dict[str, Any], tensors: dict[str, Tensor]) -> int:
    total = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(_raw(tensor), total)
    return total
