"""The package itself: its table of contents, its laziness, its command."""

import ast
import os
import resource
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fewfold
from fewfold import cli
from tests.pictures import has_colour

ROOT = Path(__file__).parents[1]
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.py"))


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


def children_seconds() -> float:
    """Processor time of finished child processes: a busy machine does not add to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_public_name_resolves() -> None:
    missing = [name for name in fewfold.__all__ if getattr(fewfold, name, None) is None]
    assert not missing


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(fewfold.__file__).read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and "TYPE" in ast.dump(node.test)
    )
    seen = {
        (".".join((statement.module or "").split(".")[:2]), alias.name)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == {(f"fewfold.{room}", name) for name, room in fewfold._HOME.items()}


def test_every_room_is_exported_completely() -> None:
    for room in ("attention", "maps", "losses", "recommender", "structured"):
        assert set(getattr(fewfold, room).__all__) == set(fewfold._ROOMS[room])


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = {line.split(":: ")[1] for line in page.splitlines() if line.startswith(".. auto")}
    # Some are reached through their room alone, and listed so.
    inside = {f"fewfold.optim.{name}" for name in fewfold.optim.__all__}
    inside |= {
        f"{room.__name__}.{name}"
        for room in (fewfold.embeddings, fewfold.expectation)
        for name in room.__all__
        if getattr(fewfold, name, None) is not getattr(room, name)
    }
    inside |= {f"fewfold.structures.{name}" for name in fewfold.structures.__all__}
    assert listed == set(fewfold.__all__) - {"__version__", "structures"} | inside


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sparsemux'"):
        _ = fewfold.sparsemux


def test_help_is_quick_and_leaves_torch_alone() -> None:
    code = (
        "import sys, fewfold.cli as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    times = []
    for _ in range(3):
        start = children_seconds()
        assert python(code).endswith("False")
        times.append(children_seconds() - start)
    assert min(times) < 0.3


def test_config_says_which_path_is_active(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    kernels = "plain torch" if os.environ.get("FEWFOLD_NATIVE") == "0" else "native"
    assert f"kernels  {kernels}" in capsys.readouterr().out


def test_environment_switches_the_kernels_off() -> None:
    code = "import torch; from fewfold import _native; print(_native.ready(torch.zeros(1)))"
    assert python(code, FEWFOLD_NATIVE="0") == "False"


def test_wrong_command_exits_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["recommnd"])
    assert error.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("script", GALLERY, ids=lambda script: script.stem)
@pytest.mark.filterwarnings("default")
def test_gallery_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", [str(script), str(picture)])
    with torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    pyplot.close("all")
    if "sys.argv" in script.read_text():
        assert has_colour(picture)
