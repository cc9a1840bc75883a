"""The log that comes along: what Debian's source packages build against.

19,914 source packages of Debian 12 and the 5,178 packages they name as build dependencies, five or
more of each, without debhelper-compat, which nearly all name. Facts of the archive's index, free to
redistribute; names and sections of packages, no prose.
"""

from importlib.resources import files
from pathlib import Path

__all__ = ["bundled", "bundled_items"]


def bundled() -> Path:
    """The log: package, dependency."""
    return Path(str(files(__name__) / "debian_build.parquet"))


def bundled_items() -> Path:
    """The sections of the dependencies: name, section."""
    return Path(str(files(__name__) / "debian_items.parquet"))
