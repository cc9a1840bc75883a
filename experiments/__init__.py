"""Experiments: one folder per published table; `datasets` locates the data."""
