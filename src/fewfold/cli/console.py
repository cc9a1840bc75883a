"""Console output: data on standard output, notes and errors on standard error."""

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
    """Exit code of the command."""

    code: int = 0


def note(text: str) -> None:
    """Print a line to standard error."""
    if sys.stderr is None:  # closed by the parent process
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:  # the reader is gone; continue without notes
        _redirect_to_null(sys.stderr)


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show warnings of fewfold as one line each, without their source line."""
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
    """Print text, or `as_json` if given, to standard output."""
    shown = str(text) if as_json is None else _dump_json(as_json, ascii_only=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:  # a character outside the terminal's encoding
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        if as_json is not None:
            shown = _dump_json(as_json, ascii_only=True)
    try:
        print(shown, flush=True)
    except OSError as error:
        _redirect_to_null(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # closed by a reader such as head
            raise OSError(error.errno, error.strerror, "standard output") from None


def _dump_json(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, indent=1, allow_nan=False)


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a closed stream to the null device, so that flushing at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def errors() -> Iterator[Outcome]:
    """Turn exceptions into one message and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except KeyboardInterrupt as error:
        _print_error(str(error) or "interrupted")
        outcome.code = 130
    except Exception as error:
        debug = os.environ.get("FEWFOLD_DEBUG", "0") != "0"
        outcome.code = _exit_code(error)
        notes = "".join(f" {each}" for each in getattr(error, "__notes__", []))
        if outcome.code == 1:
            _print_error(
                f"{type(error).__name__}: {error}{notes}\n"
                "This is a bug in fewfold; please report it."
            )
            if not debug:
                note("FEWFOLD_DEBUG=1 shows where it happened.")
        else:
            _print_error(_message(error) + notes)
        if debug:
            note(traceback.format_exc())


def _exit_code(error: Exception) -> int:
    names = {cls.__name__ for cls in type(error).__mro__}  # by name, to avoid imports
    if "DataError" in names or isinstance(error, (ConnectionError, TimeoutError)):
        return 3
    if "ArtifactError" in names:
        return 4
    if isinstance(error, OSError) or _out_of_memory(error):
        return 5
    return 2 if isinstance(error, (ValueError, TypeError, ImportError)) else 1


def _out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def _message(error: Exception) -> str:
    if _out_of_memory(error):
        return (
            "there is not enough memory; a smaller model (--hidden, --latent), fewer users and "
            "items (--core) or another --model need less"
        )
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where = error.filename
    if error.errno == errno.ENOSPC:
        place = f" while writing {where}" if where else ""
        return f"the disk is full{place}; free space and run again, with --resume if it trained"
    if isinstance(error, PermissionError) and where:
        return f"no permission to write {where}; choose another place"
    if error.errno == errno.EROFS and where:
        return f"{where} is on a read-only file system; choose another place"
    if error.strerror and where:
        return f"{where}: {error.strerror[:1].lower()}{error.strerror[1:]}; choose another place"
    return str(error) or type(error).__name__


def _print_error(text: str) -> None:
    red = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = "\033[31mfewfold:\033[0m" if red else "fewfold:"
    note(f"{label} {text}")
