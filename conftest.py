"""For the examples in docstrings, README and docs: one torch thread, as in the tests proper."""

import torch

torch.set_num_threads(1)

# Sphinx's configuration and the gallery are scripts, not modules with examples.
collect_ignore_glob = ["docs/conf.py", "docs/gallery/*.py", "build/*"]
