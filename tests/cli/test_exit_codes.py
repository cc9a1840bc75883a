"""What a shell sees: exit codes, one sentence, streams, pipes and terminals."""

import errno
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import fewfold as ff
from fewfold import _files
from fewfold.cli.console import emit
from tests.cli.invoke import SMALL, contents, fewfold

COMMAND = [sys.executable, "-c", "import sys; from fewfold.cli import main; sys.exit(main())"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["data"],
        ["fitt"],
        ["fit", "--nothing"],
        ["fit", "a.csv", "b.csv"],
        ["fit", ""],
        ["fit", "zero\0byte"],
        ["fit", "--out", " "],
        ["fit", "--model", "easy"],
        ["fit", "--epochs", "0"],
        ["fit", "--epochs", "1e3"],
        ["fit", "--hidden", "99999999999"],
        ["fit", "--seed", str(2**70)],
        ["fit", "--threads", "100000"],
        ["fit", "--test", "1"],
        ["fit", "--test", "nan"],
        ["fit", "--l2", "inf"],
        ["fit", "--time-budget", "soon"],
        ["fit", "--time-budget", "-3m"],
        ["recommend", "m", "--recall", "0"],
        ["recommend", "m", "-k", "0"],
        ["completion", "fish"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments: list[str], here: Path) -> None:
    done = fewfold(*arguments)
    assert done.code == 2
    assert done.err.startswith("usage: fewfold")
    assert ": error: " in done.err
    assert len(done.err.splitlines()) <= 3
    assert "_" not in done.err.splitlines()[-1]  # no name of a function
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--users", "nobody"], "no user 'nobody' in this model"),
        (["--users", "u0,x,y,z,w"], "'x', 'y', 'z' and 1 more"),
        (["--users", ","], "at least one user"),
        (["--history", "nothing,none"], "knows no item of the history nothing, none"),
        (["--history", "a1", "--items", "nothing"], "no item 'nothing'"),
        (["--history", "a1", "--users", "u0"], "name the users"),
        ([], "name the users"),
    ],
    ids=str,
)
def test_nobody_and_nothing(arguments: list[str], words: str, model: Path) -> None:
    done = fewfold("recommend", model, *arguments)
    assert done.code == 2
    assert words in done.message


def test_other_wrong_values(log: Path, model: Path, simple: Path, here: Path) -> None:
    for arguments, words in (
        (("similar", model, "nothing"), "no item 'nothing'"),
        (("recommend", simple, "--history", "a1", "--recall", 0.9), "has no item vectors"),
        (("fit", log, "--model", "ease", "--l2", -1), "l2 must be"),
        (("fit", log, *SMALL, "--test", "1e-9"), "leaves nothing to test"),
        (("data", "fetch", "ml-3m"), "there is no public set 'ml-3m'"),
    ):
        done = fewfold(*arguments)
        assert done.code == 2
        assert words in done.message
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", ["prepare", "update", "evaluate", "compare", "serve"])
def test_commands_of_one_process_are_refused_in_several(
    command: str, log: Path, model: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "prepare": [log], "update": [model, log, "--overwrite"], "evaluate": [model, log],
        "compare": [log], "serve": [model],
    }[command]  # fmt: skip
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        done = fewfold(command, *arguments)
        assert done.code == 2
        if rank == 0:
            assert f"{command} is done by one process, got 2; start it without" in done.message
        else:
            assert done.err == ""
    assert list(here.iterdir()) == []


def test_data_that_cannot_be_read(log: Path, model: Path, here: Path) -> None:
    for arguments, words in (
        (("fit", "none.csv"), "none.csv: there is no such file"),
        (("fit", here), "in this folder, got nothing"),
        (("fit", log, "--user", "who"), "there is no column 'who'"),
        (("fit", log, "--core", 1000), "lower core (--core)"),
        (("evaluate", model, "none.csv"), "none.csv"),
        (("recommend", model, "--histories", "none.csv"), "none.csv"),
    ):
        done = fewfold(*arguments, "-q")
        assert done.code == 3
        assert words in done.message
    assert list(here.iterdir()) == []


def test_models_that_cannot_be_read(model: Path, here: Path) -> None:
    (here / "empty").mkdir()
    (here / "cut").mkdir()
    for name, data in contents(model).items():
        (here / "cut" / name).write_bytes(data[: len(data) // 2])
    for folder in ("none", "empty", "cut"):
        for command in (("recommend", folder, "--users", "u0"), ("inspect", folder)):
            done = fewfold(*command)
            assert done.code == 4
            assert folder in done.message


def test_a_checkpoint_of_another_training(log: Path, here: Path) -> None:
    (here / "model.checkpoint.fit").write_text("mine")
    refused = fewfold("fit", log, *SMALL, "-q")
    assert refused.code == 5
    assert "--resume" in refused.message
    damaged = fewfold("fit", log, *SMALL, "-q", "--resume")
    assert damaged.code == 4
    assert (here / "model.checkpoint.fit").read_text() == "mine"
    assert not (here / "model").exists()


def test_places_that_cannot_be_written_to(log: Path, model: Path, here: Path) -> None:
    (here / "file").write_text("mine")
    for kind in ("fastvae", "popularity"):
        for out in ("file", "file/model", "/proc/fewfold/model", "m" * 300):
            done = fewfold("fit", log, *SMALL, "--model", kind, "-q", "--out", out)
            assert done.code == 5
            assert out.split("/model")[0] in done.message
    assert fewfold("export", model, "--vectors", "file/v.parquet").code == 5
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["fastvae", "popularity"])
def test_a_full_disk(kind: str, log: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = _files.sync

    def full(file: Path) -> None:
        if "checkpoint" in file.name or file == here:  # those were small enough
            return sync(file)
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(_files, "sync", full)
        done = fewfold("fit", log, *SMALL, "--model", kind, "-q")
    assert done.code == 5
    assert "the disk is full while writing" in done.message
    left = ["model.checkpoint.fit"] if kind == "fastvae" else []
    assert [path.name for path in here.iterdir()] == left
    # What was trained is not lost.
    assert fewfold("fit", log, *SMALL, "--model", kind, "-q", "--resume").code == 0
    assert [path.name for path in here.iterdir()] == ["model"]


def test_too_little_memory(log: Path, here: Path) -> None:
    done = fewfold("fit", log, "-q", "--hidden", 2**31 - 1, "--latent", 7, "--test", 0)
    assert done.code == 5
    assert "not enough memory" in done.message
    assert list(here.iterdir()) == []


def test_a_defect_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(ff.Recommender, "load", broken)
    done = fewfold("recommend", model, "--users", "u0")
    assert done.code == 1
    assert done.message.startswith("fewfold: ZeroDivisionError: by nothing\nThis is a bug")
    monkeypatch.setenv("FEWFOLD_DEBUG", "1")
    shown = fewfold("recommend", model, "--users", "u0")
    assert shown.code == 1
    assert "Traceback" in shown.err
    assert "in broken" in shown.err


def test_help_of_a_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; from fewfold.cli import main\n"
        "try: main(['fit', '--help'])\n"
        "except SystemExit: print({'torch', 'numpy', 'polars'} & {*sys.modules}, "
        "time.process_time() < 0.3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set() True\n")


def on_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What a person sees on the screen."""
    main, other = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=other, stdout=other, stderr=other, env={**os.environ, **environment}, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        return os.read(main, 10_000)
    finally:
        os.close(main)
        os.close(other)


def test_colour_on_a_terminal_unless_unwanted() -> None:
    wrong = ("data", "list", "--config", "none.toml")
    assert b"\033[31mfewfold:\033[0m there is no file" in on_a_terminal(*wrong, NO_COLOR="")
    assert b"\033" not in on_a_terminal(*wrong, NO_COLOR="1")


def test_a_reader_that_has_seen_enough() -> None:
    done = subprocess.Popen(
        [*COMMAND, "completion", "bash"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.stdout is not None
    done.stdout.close()
    _, err = done.communicate()
    assert err == b""
    assert done.returncode == 0


def test_output_that_cannot_be_written() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "completion", "bash"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 5
    assert done.stderr == (
        b"fewfold: the disk is full while writing standard output; free space and run again, with "
        b"--resume if it trained\n"
    )


def test_streams_that_are_closed_or_speak_ascii() -> None:
    """`2>&-` leaves no standard error; its notes must not land in the data."""
    command = f"{sys.executable} -c 'from fewfold.cli import main; exit(main())'"
    wrong = f"{command} data list --config none.toml 2>&-"
    done = subprocess.run(wrong, shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_letters_the_terminal_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        emit("größer")
        emit("", {"name": "größer"})
        monkeypatch.undo()
        assert raw.getvalue() == b'gr\\xf6\\xdfer\n{\n "name": "gr\\u00f6\\u00dfer"\n}\n'


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "fewfold", "recommend", "nowhere", "--history", "a"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "there is no folder nowhere" in done.stderr
