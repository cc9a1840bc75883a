"""What a person sees beside the data: notes and errors on standard error, never a traceback."""

import contextlib
import errno
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from fewfold._progress import line

__all__ = ["Outcome", "emit", "errors", "note", "warnings_as_notes"]


@dataclass
class Outcome:
    """How the command ended."""

    code: int = 0


def note(text: str) -> None:
    """A line for the person, not for the data."""
    if sys.stderr is None:  # closed by whoever started us
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:  # nobody reads it any more, and the work is not about notes
        _drop(sys.stderr)


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show warnings of fewfold as one line each, without the line of code they come from."""
    before = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any
    ) -> None:
        if os.path.dirname(os.path.dirname(__file__)) in filename and category is UserWarning:
            line("")
            note(f"warning: {message}")
        else:
            before(message, category, filename, lineno, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


def emit(text: Any, as_json: Any = None) -> None:
    """Data on standard output: text, or JSON where it was asked for."""
    shown = str(text) if as_json is None else _json(as_json, ascii_alone=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:  # a letter that the terminal does not have
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        if as_json is not None:
            shown = _json(as_json, ascii_alone=True)
    try:
        print(shown, flush=True)
    except OSError as error:
        _drop(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # the reader, such as head, has seen enough
            raise OSError(error.errno, error.strerror, "standard output") from None


def _json(value: Any, *, ascii_alone: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_alone, indent=1, allow_nan=False)


def _drop(stream: TextIO) -> None:
    """Let nothing more arrive there, so that the end of the program does not fail over it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def errors() -> Iterator[Outcome]:
    """Turn what goes wrong into one message and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except KeyboardInterrupt as error:
        _say(str(error) or "interrupted")
        outcome.code = 130
    except Exception as error:
        debug = os.environ.get("FEWFOLD_DEBUG", "0") != "0"
        outcome.code = _code(error)
        if outcome.code == 1:
            _say(f"{type(error).__name__}: {error}\nThis is a defect of fewfold; please report it.")
            if not debug:
                note("FEWFOLD_DEBUG=1 shows where it happened.")
        else:
            _say(_text(error))
        if debug:
            note(traceback.format_exc())


def _code(error: Exception) -> int:
    names = {cls.__name__ for cls in type(error).__mro__}  # nothing is imported to compare with
    if "DataError" in names or isinstance(error, (ConnectionError, TimeoutError)):
        return 3
    if "ArtifactError" in names:
        return 4
    if isinstance(error, OSError) or _memory(error):
        return 5
    return 2 if isinstance(error, (ValueError, TypeError, ImportError)) else 1


def _memory(error: Exception) -> bool:
    """Whether there was too little of it; torch has no exception of its own for that."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def _text(error: Exception) -> str:
    if _memory(error):
        return (
            "there is not enough memory; a smaller model (--hidden, --latent), fewer users and "
            "items (--core) or another --model need less"
        )
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where = error.filename
    if error.errno == errno.ENOSPC:
        place = f" while writing {where}" if where else ""
        return f"the disk is full{place}; make room and run again, with --resume if it trained"
    if isinstance(error, PermissionError) and where:
        return f"no permission to write {where}; choose another place"
    if error.errno == errno.EROFS and where:
        return f"{where} is on a read-only file system; choose another place"
    if error.strerror and where:
        return f"{where}: {error.strerror[:1].lower()}{error.strerror[1:]}; choose another place"
    return str(error) or type(error).__name__


def _say(text: str) -> None:
    red = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = "\033[31mfewfold:\033[0m" if red else "fewfold:"
    note(f"{label} {text}")
