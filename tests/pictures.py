"""Check that a figure is not blank."""

from pathlib import Path

import pytest


def has_colour(file: Path) -> bool:
    """Say whether what was measured is in the picture: paper, axes and words are all grey."""
    image = pytest.importorskip("matplotlib.image").imread(file)[..., :3]
    return int((image.max(-1) - image.min(-1) > 0.1).sum()) > 50
