"""The documentation: what it names, its examples, and its site in a browser."""
