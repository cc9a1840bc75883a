"""The package itself: its public names, lazy imports and command."""

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


def test_few_names_are_directly_on_the_package() -> None:
    assert set(dir(fewfold)) == set(fewfold.__all__)
    assert len(fewfold.__all__) <= 80


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert (
        page
        == subprocess.run(
            [sys.executable, ROOT / "docs" / "generate_api.py"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    ), "docs/api.md is out of date; write it with make tables"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No fewfold attribute sparsemux"):
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
    kernels = "plain torch" if os.environ.get("FEWFOLD_NATIVE") == "0" else "native kernels"
    assert f"CPU      {kernels}" in capsys.readouterr().out


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
