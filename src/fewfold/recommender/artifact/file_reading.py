"""Read files of an artifact, with errors that name the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fewfold._optional import optional_import
from fewfold.recommender.artifact.schema import Source
from fewfold.recommender.errors import ArtifactError

__all__ = ["read_file", "read_small", "safetensors_library"]

_MAX_JSON = 1 << 24  # maximum bytes of a JSON file

T = TypeVar("T")


def read_small(file: Path) -> bytes:
    """Return the content of a file; raise if it exceeds the size limit of JSON files."""
    if file.stat().st_size > _MAX_JSON:
        raise Source(file).damaged("", f"has more than {_MAX_JSON:,} bytes")
    return read_file(Path.read_bytes, file)


def read_file(read: Callable[[Path], T], file: Path) -> T:
    """Call `read` on the file; errors name the file."""
    try:
        return read(file)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, _safetensors_error()) as error:
        raise Source(file).damaged("", f"cannot be read ({error})") from error


def safetensors_library() -> Any:
    """Return `safetensors.torch`, or raise an ImportError that says what to install."""
    with optional_import("safetensors", "recommender", "a saved model"):
        import safetensors.torch
    return safetensors.torch


def _safetensors_error() -> type[Exception]:
    import safetensors

    error: type[Exception] = safetensors.SafetensorError
    return error
