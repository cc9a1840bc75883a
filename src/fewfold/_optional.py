"""Imports of optional dependencies, with one error message for all that are missing."""

import contextlib
from collections.abc import Iterator

__all__ = ["optional_import"]


@contextlib.contextmanager
def optional_import(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Replace an ImportError raised inside the block by one that says what to install.

    Args:
        package: the distribution to import, with a version if that matters.
        extra: the extra of fewfold that installs it.
        purpose: the subject of the message: what needs the package.

    Example:
        >>> from fewfold._optional import optional_import
        >>> with optional_import("imaginary", "demo", "a picture"):
        ...     import imaginary
        Traceback (most recent call last):
        ImportError: a picture needs imaginary: pip install 'fewfold[demo]'
    """
    try:
        yield
    except ImportError as error:
        message = f"{purpose} needs {package}: pip install 'fewfold[{extra}]'"
        raise ImportError(message, name=error.name) from error
