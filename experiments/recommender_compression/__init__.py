"""Compression of the two tables of FastVAE."""
