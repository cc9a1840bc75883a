"""Mutation testing: change the sources a little, and see which changes the tests do not notice.

`python -m tests.mutate --module losses` makes the mutants of a folder of `src/fewfold`, runs on each
the tests that execute the changed line, and lists the mutants that survive.
"""
