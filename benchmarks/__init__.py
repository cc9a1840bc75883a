"""Every speed claim, as a ratio to its peer in the same process: ``python -m benchmarks``."""
