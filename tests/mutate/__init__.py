"""Mutation testing: change the sources a little, and see which changes the tests do not notice.

`python -m tests.mutate --module losses` makes the mutants of a folder of `src/fewfold`, runs the
tests that execute the changed line on each, and lists the mutants that survive.
"""
