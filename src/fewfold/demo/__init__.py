"""Demonstrations: recommendations from the bundled data, and the sparse maps."""
