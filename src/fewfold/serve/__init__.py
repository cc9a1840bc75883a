"""HTTP API and page of a fitted recommender; see `fewfold serve --help`.

Modules are imported from where they are; nothing is loaded by importing this package, so that the
command line can read the default settings without loading torch.
"""
