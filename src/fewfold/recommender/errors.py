"""What can be wrong with what a person hands over; every message says what to do."""

__all__ = ["ArtifactError", "DataError"]


class DataError(ValueError):
    """A log, a table or a download that cannot be read as it is."""


class ArtifactError(ValueError):
    """A model folder or a checkpoint that is damaged, newer than this program, or not one."""
