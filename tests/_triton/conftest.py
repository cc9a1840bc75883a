"""Run Triton's kernels by its interpreter on CPU tensors; without Triton collect nothing."""

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
