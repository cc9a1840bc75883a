"""A folder to work in, a log and a model; no setting of whoever runs the tests."""

import os
from pathlib import Path

import pytest

from tests.cli.invoke import SMALL, fewfold
from tests.recommender.conftest import grouped


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    for name in [name for name in os.environ if name.startswith("FEWFOLD_")]:
        if name not in ("FEWFOLD_NATIVE", "FEWFOLD_ISA"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Who touched what; not to be changed."""
    rows = grouped()
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = [f"{user},{item}\n" for user, item in zip(rows["user"], rows["item"], strict=True)]
    path.write_text("user,item\n" + "".join(lines))
    return path


@pytest.fixture(scope="session")
def model(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command makes of the log; not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "model"
    done = fewfold("fit", log, "--out", folder, *SMALL, "--epochs", 30)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="session")
def simple(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has no vectors; not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "simple"
    assert fewfold("fit", log, "--out", folder, "--model", "item-knn").code == 0
    return folder
