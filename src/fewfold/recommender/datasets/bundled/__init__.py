"""The bundled log: Debian source packages (users) and their build dependencies (items).

19,914 source packages of Debian 12 and 5,178 build dependencies, each with at least five pairs,
without debhelper-compat, which nearly all packages have. Taken from the archive's index, free to
redistribute; names and sections of packages, no prose.
"""

from importlib.resources import files
from pathlib import Path

__all__ = ["bundled", "bundled_items"]


def bundled() -> Path:
    """Path of the bundled log: package, dependency."""
    return Path(str(files(__name__) / "debian_build.parquet"))


def bundled_items() -> Path:
    """Path of the table of items: name, section."""
    return Path(str(files(__name__) / "debian_items.parquet"))
