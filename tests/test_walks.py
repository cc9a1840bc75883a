"""How many files of the package the two main commands execute, so that a reader can follow them.

`docs/architecture.md` says what they are and why there are not fewer.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fewfold
from tests.cli.invoke import SMALL
from tests.cli.invoke import fewfold as command

PACKAGE = str(Path(fewfold.__file__).parent)
_FUNCTION = 0x1  # CO_OPTIMIZED: a function, not the body of a module or class


def walked(run: Callable[[], Any]) -> set[str]:
    """Return the files of the package of which a function is called; imports do not count."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & _FUNCTION and code.co_filename.startswith(PACKAGE):
            files.add(code.co_filename.removeprefix(PACKAGE).lstrip("/"))

    run()  # everything is imported now
    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(earlier)
    return files


def test_fit_and_recommend_stay_short(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [f"u{u},i{i}" for u in range(120) for i in draw.sample(range(40), 8)]
    log, model = tmp_path / "log.csv", tmp_path / "model"
    log.write_text("\n".join(["user,item", *rows]))

    def fit() -> None:
        done = command("fit", log, "--out", model, "--overwrite", *SMALL)
        assert done.code == 0, done.err

    def recommend() -> None:
        assert command("recommend", model, "--history", "i1,i2").code == 0

    fitting, answering = walked(fit), walked(recommend)
    assert "recommender/fit_job.py" in fitting
    assert "recommender/recommendations.py" in answering
    assert not [file for file in answering if file.startswith(("losses", "optim", "sampling"))]
    assert len(fitting) <= 87, sorted(fitting)
    assert len(answering) <= 44, sorted(answering)
