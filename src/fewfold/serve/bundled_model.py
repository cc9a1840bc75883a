"""The model of the bundled log, fitted once and kept."""

import os
import subprocess
import sys
from pathlib import Path

import fewfold

__all__ = ["bundled_model", "fit_bundled"]

_FIT = "import sys; from fewfold.serve.bundled_model import fit_bundled; fit_bundled(sys.argv[1])"


def bundled_model(*, quiet: bool = False) -> Path:
    """Return the folder of a model of the bundled log; it is fitted if it does not exist.

    It is fitted in a process of its own, since the server is forked from this one and torch does
    not survive that once it has computed.
    """
    folder = _cache() / f"bundled-{fewfold.__version__}"
    if not (folder / "manifest.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings = {**os.environ, "FEWFOLD_PROGRESS": "0"} if quiet else None
        subprocess.run([sys.executable, "-c", _FIT, str(folder)], check=True, env=settings)
    return folder


def fit_bundled(folder: str) -> None:
    """Fit a model to the bundled log and save it."""
    recommender = fewfold.Recommender()
    recommender.fit(
        fewfold.recommender.bundled(), test=0.2, refit=True,
        items_table=fewfold.recommender.bundled_items(),
    )  # fmt: skip
    recommender.save(folder, overwrite=True)


def _cache() -> Path:
    """Folder of the user's cached files of fewfold."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return root / "fewfold"
