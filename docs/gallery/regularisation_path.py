"""Plot p(alpha) for alpha in [1, 3]."""

import sys
from pathlib import Path

from fewfold.demo import maps_demo

maps_demo.draw_path(Path(sys.argv[1]))
