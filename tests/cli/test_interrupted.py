"""Ctrl-C, SIGTERM and kill -9 at any moment: the run goes on, to the same bytes."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fewfold as ff
from tests.cli.invoke import SMALL, contents, fewfold

ROOT = Path(__file__).parents[2]
Forks = Callable[..., dict[str, Any]]
# To look longer: FEWFOLD_KILLS=200 pytest tests/cli/test_interrupted.py -k killed
KILLS = int(os.environ.get("FEWFOLD_KILLS", "6"))
STRIDE = 1 if KILLS > 20 else 5  # of the changes to files before which it is killed


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextlib.contextmanager
def signal_at(step: int, number: int) -> Iterator[None]:
    """Send a signal in the middle of a step of the training."""
    steps, loss = iter(range(1, 10_000)), ff.recommender.FastVAE.loss

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(steps) == step:
            signal.raise_signal(number)
        return loss(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ff.recommender.FastVAE, "loss", counted)
        yield


@pytest.mark.parametrize(
    ("step", "number"), [(1, signal.SIGINT), (11, signal.SIGINT), (30, signal.SIGTERM)]
)
@pytest.mark.parametrize("refit", [(), ("--refit",)], ids=["fit", "refit"])
def test_interrupted_and_resumed(
    step: int, number: int, refit: tuple[str, ...], log: Path, here: Path
) -> None:
    command = ("fit", log, *SMALL, "--epochs", 5, "--checkpoint-every", "1h", *refit)
    assert fewfold(*command, "-o", "whole").code == 0
    with signal_at(step, number):
        stopped = fewfold(*command)
    assert stopped.code == 130
    assert stopped.out == ""
    by = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"fewfold: stopped by {by} at step {step} of " in stopped.err
    assert "run the same command with --resume" in stopped.err
    assert names(here) == {"whole", "model.checkpoint.fit"}
    again = fewfold(*command)
    assert again.code == 5
    assert "resume it with --resume" in again.message
    resumed = fewfold(*command, "--resume")
    assert resumed.code == 0
    assert f"resumed at step {step} of " in resumed.err
    assert names(here) == {"whole", "model"}
    assert contents(here / "model") == contents(here / "whole")


def test_interrupted_while_reading(log: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ff, "read_log", interrupted)
    done = fewfold("fit", log, *SMALL)
    assert done.code == 130
    assert done.message == "fewfold: interrupted"
    assert names(here) == set()


def test_interrupted_after_the_training(
    log: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ff.Recommender, "save", interrupted)
        done = fewfold("fit", log, *SMALL, "-q")
    assert done.code == 130
    assert done.message == "fewfold: interrupted: run the same command with --resume"
    assert fewfold("fit", log, *SMALL, "-q", "--resume").code == 0
    assert names(here) == {"model"}


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded everything, to be forked."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.forks"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == "ready"
        yield process
        process.stdin.close()


@pytest.fixture
def forks(process: subprocess.Popen[str], here: Path) -> Forks:
    """Runs the command in a fork, here, and kills it as asked."""

    def run(
        *arguments: object, seconds: float | None = None, change: int | None = None
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"arguments": [*map(str, arguments)], "folder": str(here)}
        line = json.dumps({**order, "seconds": seconds, "change": change})
        print(line, file=process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    return run


@pytest.mark.slow
def test_killed_at_any_moment(log: Path, here: Path, forks: Forks) -> None:
    """Kills spread over the whole run, and over the runs that go on."""
    command = ("fit", log, *SMALL, "--epochs", 20, "--checkpoint-every", "0.05")
    whole = forks(*command, "-o", "whole")
    assert whole["code"] == 0
    draw, kills, compared = random.Random(0), 0, 0
    resume: tuple[str, ...] = ()
    while kills < KILLS or resume:
        # When the last kill has been made it may end.
        limit = draw.uniform(0.01, 1.1 * whole["seconds"]) if kills < KILLS else None
        done = forks(*command, *resume, seconds=limit)
        assert done["code"] in (0, -signal.SIGKILL)
        if (here / "model").exists():
            assert contents(here / "model") == contents(here / "whole")
            compared += 1
        if done["code"] == 0:
            assert names(here) == {"whole", "model"}
            shutil.rmtree(here / "model")
            resume = ()
        else:
            kills += 1
            resume = ("--resume", "--overwrite")
    assert compared > 0


@pytest.mark.slow
def test_killed_before_any_change_to_a_file(log: Path, here: Path, forks: Forks) -> None:
    """Also between the files of a model, and while it takes the place of an older one."""
    assert fewfold("fit", log, "--model", "popularity", "-o", "old").code == 0
    command = ("fit", log, *SMALL, "--checkpoint-every", "1h", "--overwrite")
    whole = forks(*command, "-o", "whole")
    assert whole["code"] == 0
    for change in range(1, 200, STRIDE):
        shutil.copytree(here / "old", here / "model")
        if forks(*command, change=change)["code"] == 0:
            break
        if (here / "model").exists():  # one of the two, and all of it
            there = contents(here / "model")
            assert there in (contents(here / "old"), contents(here / "whole"))
        assert forks(*command, "--resume")["code"] == 0
        assert contents(here / "model") == contents(here / "whole")
        assert names(here) == {"old", "whole", "model"}
        shutil.rmtree(here / "model")
    assert change > whole["changes"] > 10  # to the last of them


@pytest.mark.parametrize("first", [3, 12])
def test_a_killed_prepare_goes_on(first: int, here: Path, forks: Forks) -> None:
    rows = [f"u{n * n % 211},{n % 17}\n" for n in range(3000)]
    (here / "log.csv").write_text("user,item\n" + "".join(rows))
    command = ("prepare", "log.csv", "--parts", 6)
    assert forks(*command, "-o", "whole")["code"] == 0
    changes = itertools.count(first, 7)  # the next run is killed a little later
    while forks(*command, change=next(changes))["code"] == -signal.SIGKILL:
        assert not (here / "prepared").exists() or (here / "prepared/prepared.json").exists()
    if not (here / "prepared").exists():
        assert forks(*command)["code"] == 0
    assert names(here) - {".prepared.lock"} == {"log.csv", "whole", "prepared"}
    assert contents(here / "prepared") == contents(here / "whole")
