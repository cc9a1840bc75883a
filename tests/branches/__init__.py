"""Coverage of the branches of the C++ kernels by tests: ``python -m tests.branches``.

`__main__.py` builds the kernels with the counters of gcov, runs tests and the fuzzer on every
instruction set and prints the report; `counts.py` reads the counters; `explained.toml` lists
places that no test can reach, with reasons.
"""
