"""Published tables and figures next to our rows: ``python -m experiments.evidence``.

A published table is a value (`published.Table`) in one of the files named `*_tables.py`. Its
figures are imported from the `table` module of the experiment, where that has them.
"""
