"""Public data sets and the bundled log."""
