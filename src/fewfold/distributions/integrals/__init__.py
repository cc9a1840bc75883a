"""Numerical integrals behind the densities of mixed distributions."""
