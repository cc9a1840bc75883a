"""Solvers of the threshold equations of the maps."""
