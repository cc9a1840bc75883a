"""Kernels for GPUs in Triton; `fewfold._native.dispatch` imports them when they are first used."""
