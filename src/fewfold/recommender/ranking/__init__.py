"""Exact and approximate top-k ranking of items."""
