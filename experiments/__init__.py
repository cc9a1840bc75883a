"""One folder per published table; `datasets` finds the logs they need."""
