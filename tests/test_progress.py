"""The line that tells how far something is."""

import io
import sys

import pytest

from fewfold import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A second passes whenever somebody looks."""
    seconds = iter(range(1000))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(seconds)))


@pytest.mark.usefixtures("clock")
def test_long_work_tells_what_is_left_and_cleans_up(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert list(_progress.over("counting", range(6))) == list(range(6))
    said = terminal.getvalue()
    assert "counting: 50%, 4 s left" in said
    assert said.endswith("\r\033[K")


def test_short_work_says_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert list(_progress.over("counting", range(6))) == list(range(6))
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("silent", ["file", "environment"])
def test_silence(monkeypatch, silent):
    stream = io.StringIO() if silent == "file" else Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    if silent == "environment":
        monkeypatch.setenv("FEWFOLD_PROGRESS", "0")
    list(_progress.over("counting", range(6)))
    assert stream.getvalue() == ""
