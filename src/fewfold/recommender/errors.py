"""Exceptions for invalid data and artifacts; every message says what to do."""

__all__ = ["ArtifactError", "DataError"]


class DataError(ValueError):
    """Invalid log, table or download."""


class ArtifactError(ValueError):
    """Model folder or checkpoint that is damaged, newer than this program, or not one."""
