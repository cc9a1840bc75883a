"""The flag over FEWFOLD_NAME over the file over the default, and what is wrong with a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from fewfold.cli.arguments import parse
from tests.cli.invoke import fewfold


def value(name: str, *arguments: str, command: str = "fit") -> Any:
    """Of an option, as the command would get it."""
    return getattr(parse([*command.split(), *arguments]), name)


# An option of each kind: its name, the command and what it stands at by default; then in the file,
# in the environment and as flags, each with the value that comes of it.
KINDS = [
    ("epochs", "fit", None, ("30", 30), ("40", 40), (["--epochs", "50"], 50)),
    ("time_budget", "fit", None, ('"10m"', 600), ("1h", 3600), (["--time-budget", "5"], 5)),
    ("min_rating", "fit", None, ("3.5", 3.5), ("4", 4.0), (["--min-rating", "-1"], -1.0)),
    ("refit", "fit", False, ("true", True), ("no", False), (["--refit"], True)),
    ("overwrite", "fit", False, ("true", True), ("1", True), (["--no-overwrite"], False)),
    ("model", "fit", None, ('"ease"', "ease"), ("item-knn", "item-knn"),
     (["--model", "popularity"], "popularity")),
    ("out", "fit", "model", ('"a"', "a"), ("b", "b"), (["-o", "c"], "c")),
    ("history", "recommend m", None, ('["a,b", "c"]', ["a,b", "c"]), ("d,e", ["d,e"]),
     (["--history", "f", "--history", "g"], ["f", "g"])),
    ("to", "data fetch x", "data", ('"a"', "a"), ("b", "b"), (["--to", "c"], "c")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "command", "default", "file", "environment", "flag"), KINDS, ids=[k[0] for k in KINDS]
)
def test_the_nearest_wins(
    name: str, command: str, default: Any, file: Any, environment: Any, flag: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = ".".join(command.split()[: 2 if command.startswith("data") else 1])
    assert value(name, command=command) == default
    Path("fewfold.toml").write_text(f"[{table}]\n{name.replace('_', '-')} = {file[0]}\n")
    assert value(name, command=command) == file[1]
    monkeypatch.setenv(f"FEWFOLD_{name.upper()}", "")  # as good as none
    assert value(name, command=command) == file[1]
    monkeypatch.setenv(f"FEWFOLD_{name.upper()}", environment[0])
    assert value(name, command=command) == environment[1]
    assert value(name, *flag[0], command=command) == flag[1]


def test_a_file_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fewfold.toml").write_text("[fit]\nseed = 1\n")
    Path("mine.toml").write_text("[fit]\nseed = 2\n[compare]\ntest = 0.5\n")
    Path("yours.toml").write_text("[fit]\nseed = 3\n")
    assert value("seed") == 1
    assert value("test") == 0.2
    monkeypatch.setenv("FEWFOLD_CONFIG", "mine.toml")
    assert value("seed") == 2
    assert value("seed", "--config", "yours.toml") == 3
    monkeypatch.setenv("FEWFOLD_CONFIG", "nowhere/fewfold.toml")
    done = fewfold("data", "list")
    assert done.code == 2
    assert "there is no file nowhere/fewfold.toml" in done.message


def test_the_command_takes_them(log: Path) -> None:
    Path("fewfold.toml").write_text(
        '[fit]\nmodel = "item-knn"\nneighbours = 3\njson = true\nquiet = true\nout = "from-file"\n'
    )
    done = fewfold("fit", log)
    assert done.err == ""
    assert json.loads(done.out)["recipe"]["neighbours"] == 3
    assert Path("from-file/manifest.json").exists()
    assert fewfold("fit", log, "--no-json", "--overwrite").out.startswith("Held out")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fit]\nepoch = 3\n", ("[fit] has no option 'epoch'", "epochs")),
        ("[fit]\nconfig = 'x'\n", ("[fit] has no option 'config'",)),
        ("[fitt]\nepochs = 3\n", ("there is no command 'fitt'", "fit, prepare, compare")),
        ("epochs = 3\n", ("write epochs below the command",)),
        ("[fit]\nepochs = 'many'\n", ("epochs must be a whole number", "'many'")),
        ("[fit]\nepochs = true\n", ("epochs must be one text or number", "True")),
        ("[fit]\nepochs = [3, 4]\n", ("epochs must be one text or number", "[3, 4]")),
        ("[fit]\nepochs = []\n", ("epochs must be one text or number", "[]")),
        ("[fit]\nepochs = 0\n", ("epochs must be a whole number from 1",)),
        ("[fit]\nuser = {a = 1}\n", ("user must be one text or number",)),
        ("[fit]\nuser = 2020-01-01\n", ("user must be one text or number",)),
        ("[fit]\nrefit = 'perhaps'\n", ("refit must be true or false, got 'perhaps'",)),
        ("[fit]\nrefit = 1\n", ("refit must be true or false, got 1",)),
        ("[fit]\nmodel = 'easy'\n", ("model must be one of auto, fastvae, ease", "'easy'")),
        ("[fit]\ntest = 1\n", ("test must be at least 0 and below 1, got '1'",)),
        ("[fit\nepochs = 3\n", ("is not TOML", "line 1")),
        ("[fit]\nepochs = 3\nepochs = 4\n", ("is not TOML",)),
        ("\ud800", ("is not TOML",)),
    ],
)
def test_what_is_wrong_with_a_file(text: str, words: tuple[str, ...], log: Path) -> None:
    Path("fewfold.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    done = fewfold("fit", log)
    assert done.code == 2
    for word in ("fewfold.toml", *words):
        assert word in done.message
    assert not Path("model").exists()


def test_a_table_of_data_has_tables() -> None:
    Path("fewfold.toml").write_text("[data]\nlist = 3\n")
    done = fewfold("data", "list")
    assert done.code == 2
    assert "[data.list] must be a table" in done.message


def test_files_that_cannot_be_read() -> None:
    Path("folder").mkdir()
    for name, words in (("none.toml", "there is no file none.toml"), ("folder", "cannot be read")):
        done = fewfold("data", "list", "--config", name)
        assert done.code == 2
        assert words in done.message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("EPOCHS", "x", "FEWFOLD_EPOCHS must be a whole number"),
        ("REFIT", "perhaps", "FEWFOLD_REFIT must be true or false"),
        ("MODEL", "easy", "FEWFOLD_MODEL must be one of auto, fastvae"),
        ("THREADS", "1000000", "FEWFOLD_THREADS must be a whole number from 1 to"),
    ],
)
def test_what_is_wrong_in_the_environment(
    name: str, text: str, words: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FEWFOLD_{name}", text)
    done = fewfold("fit", log)
    assert done.code == 2
    assert words in done.message
