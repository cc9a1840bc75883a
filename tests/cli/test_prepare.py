"""`fewfold prepare`, and fits from what it writes."""

import json
from pathlib import Path

import pytest

from tests.cli.invoke import SMALL, contents, fewfold


def test_prepare_and_fit_from_the_folder(log: Path, here: Path) -> None:
    done = fewfold("prepare", log, "--parts", 3)
    assert done.code == 0, done.err
    assert "columns: user=user (guessed), item=item (guessed)" in done.out
    assert "prepared log written to prepared; try: fewfold fit prepared" in done.err
    assert "the first rows:" in done.err
    assert len(list((here / "prepared").glob("part-*.parquet"))) == 3
    shown = fewfold("fit", "prepared", "--dry-run")
    assert "prepared from CSV" in shown.out
    for source, out in ((log, "one"), ("prepared", "other")):
        assert fewfold("fit", source, "--out", out, "--model", "ease").code == 0
    one, other = contents(here / "one"), contents(here / "other")
    for name in ("model.safetensors", "items.safetensors", "users.safetensors", "metrics.json"):
        assert one[name] == other[name]


def test_prepare_as_json_and_again(log: Path, here: Path) -> None:
    done = fewfold("prepare", log, "-o", "there", "--json", "-q")
    assert done.err == ""
    told = json.loads(done.out)
    assert told["parts"] == 1
    assert told["data"]["rows"] == len(log.read_text().splitlines()) - 1
    again = fewfold("prepare", log, "-o", "there")
    assert again.code == 5
    assert "holds a prepared log already" in again.message
    assert fewfold("prepare", log, "-o", "there", "--overwrite", "--memory", "1.5G").code == 0


def test_fit_on_a_stream(log: Path, here: Path) -> None:
    assert fewfold("prepare", log, "--parts", 3).code == 0
    done = fewfold("fit", "prepared", "--stream", *SMALL)
    assert done.code == 0, done.err
    assert "fastvae: 3 epochs" in done.out
    item = log.read_text().splitlines()[1].split(",")[1]
    assert fewfold("recommend", "model", "--history", item).code == 0
    unknown = fewfold("recommend", "model", "--users", "nobody")
    assert unknown.code == 2
    assert "saved without users; use --history" in unknown.message


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("prepare", "missing.csv"), 3, "there is no such file"),
        (("prepare", "LOG", "--memory", "much"), 2, "must be a size such as 4G"),
        (("prepare", "LOG", "--memory", "3M"), 2, "memory must be at least 500M"),
        (("prepare", "LOG", "--parts", "0"), 2, "must be a whole number from 1"),
        (("fit", "LOG", "--stream"), 3, "this is not a prepared log"),
        (("fit", "--stream"), 2, "--stream needs a folder"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], code: int, message: str, log: Path) -> None:
    done = fewfold(*(log if word == "LOG" else word for word in words))
    assert done.code == code
    assert message in done.err
