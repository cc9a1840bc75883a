"""The C++ kernels, optional at run time; `dispatch` decides when they run, and which."""

from fewfold._native.dispatch import (
    available,
    disabled,
    enabled,
    instruction_set,
    kernel,
    kernels,
    ready,
    show_config,
    table,
    threads,
)

__all__ = [
    "available",
    "disabled",
    "enabled",
    "instruction_set",
    "kernel",
    "kernels",
    "ready",
    "show_config",
    "table",
    "threads",
]
