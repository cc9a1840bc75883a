"""``python -m fewfold``: the command line, as ``fewfold``."""

import sys

from fewfold.cli import main

if __name__ == "__main__":
    sys.exit(main())
