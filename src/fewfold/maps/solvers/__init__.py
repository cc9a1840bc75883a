"""Solvers of the threshold equations behind the maps."""
