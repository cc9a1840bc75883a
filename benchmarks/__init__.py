"""Benchmarks, each a ratio to a peer in the same process: ``python -m benchmarks``."""
