"""Draw p(alpha) for alpha in [1, 3]."""

import sys
from pathlib import Path

from fewfold import demo

demo.draw_path(Path(sys.argv[1]))
