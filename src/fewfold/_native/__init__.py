"""The C++ kernels, optional at run time; `dispatch` chooses between them, Triton and torch."""

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
    triton_available,
    triton_kernel,
    triton_on_cpu,
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
    "triton_available",
    "triton_kernel",
    "triton_on_cpu",
]
