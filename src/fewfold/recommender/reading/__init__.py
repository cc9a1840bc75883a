"""Readers of interaction logs: text, JSON lines, Parquet, Arrow, in-memory tables."""
