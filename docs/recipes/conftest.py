"""Recipes need packages that the project does not install; tests run them where they are there."""

collect_ignore_glob = ["*.py"]
