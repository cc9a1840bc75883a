"""Anchor tables on disk."""
