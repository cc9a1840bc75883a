"""The progress line."""

import io
import sys
import time

import pytest

from fewfold import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, text: str, times: int = 1) -> None:
    """Wait until it has been written so often; on a busy machine that takes a while."""
    until = time.monotonic() + 20
    while stream.getvalue().count(text) < times and time.monotonic() < until:
        time.sleep(0.01)
    assert stream.getvalue().count(text) >= times, stream.getvalue()


@pytest.fixture(autouse=True)
def phases(monkeypatch):
    """Nothing under way, and a thread of this test's own."""
    monkeypatch.setattr(_progress, "_phases", _progress._Phases())


@pytest.fixture
def clock(monkeypatch):
    """A second passes whenever somebody looks."""
    seconds = iter(range(1000))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(_progress._Phases, "_tick", lambda _: None)  # nobody else looks


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


def test_a_long_operation_is_spoken_for(monkeypatch):
    """A thread tells about work that says nothing itself, with what is known of it."""
    monkeypatch.setattr(_progress, "_PATIENCE", 0.05)
    monkeypatch.setattr(_progress, "_TICK", 0.02)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with _progress.phase("thinking"):
        shown(terminal, "thinking: 0 s so far", times=3)
    with _progress.phase("waiting", seconds=1000.49):
        shown(terminal, "waiting: 1000 s left")
    with _progress.phase("counting", total=4) as counting:
        counting.advance(1)
        shown(terminal, "counting: 25%, 0 s left")
    assert terminal.getvalue().endswith("\r\033[K")


@pytest.mark.usefixtures("clock")
def test_phases_within_phases_are_one_estimate(monkeypatch):
    """The outer one is shown, and what is done within its part counts."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with _progress.phase("outer", total=2) as outer:
        for _ in outer.each(range(2)):
            list(_progress.over("inner", range(4)))
    said = terminal.getvalue()
    assert "inner" not in said
    assert "outer: 25%, " in said
    assert "outer: 75%, " in said
    assert "outer: 88%, " in said


def test_into_a_file_a_line_now_and_then_if_asked(monkeypatch):
    monkeypatch.setattr(_progress, "_PATIENCE", 0.02)
    monkeypatch.setattr(_progress, "_TICK", 0.02)
    monkeypatch.setattr(_progress, "_NOTE", 0.05)
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with _progress.phase("thinking"):
        time.sleep(0.2)
    assert file.getvalue() == ""
    with _progress.notes(), _progress.phase("thinking"):
        shown(file, "thinking: 0 s so far\n", times=2)
    with _progress.notes(), _progress.silence(), _progress.phase("whispering"):
        time.sleep(0.2)
    assert "whispering" not in file.getvalue()
    assert "\r" not in file.getvalue()


def test_what_an_exception_left_is_forgotten(monkeypatch):
    """A generator that is never closed does not speak, nor is it taken for an outer phase."""
    monkeypatch.setattr(_progress, "_PATIENCE", 0.02)
    monkeypatch.setattr(_progress, "_TICK", 0.02)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    left = _progress.over("left", range(4))
    next(left)
    next(left)
    before = len(terminal.getvalue())
    time.sleep(0.1)
    assert len(terminal.getvalue()) == before
    with _progress.phase("right", total=4) as right:
        right.advance(1)
        shown(terminal, "right: 25%")
    assert "right: 25%" in terminal.getvalue()
    assert "left:" not in terminal.getvalue()[before:]
    left.close()


def test_short_phases_one_after_the_other_are_long_work(monkeypatch):
    monkeypatch.setattr(_progress, "_PATIENCE", 0.3)
    monkeypatch.setattr(_progress, "_TICK", 0.02)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    for _ in range(30):
        with _progress.phase("splitting"):
            time.sleep(0.1)
        if "splitting" in terminal.getvalue():
            return
    pytest.fail("three seconds of short phases without a word")


def test_a_phase_inside_counts_as_a_share_of_the_current_part():
    with _progress.phase("outer", total=10) as outer:
        outer.advance(2)
        outer.part = 4
        share, left = outer.left(outer.began + 30, inner=0.75)
        assert share == pytest.approx(0.5)
        assert left == pytest.approx(30, abs=1)
        assert outer.left(outer.began + 30, inner=0.0)[0] == pytest.approx(0.5)  # never back


def test_inside_a_phase_that_counts():
    assert not _progress.inside_phase()
    with _progress.phase("unknown length"):
        assert not _progress.inside_phase()
        with _progress.phase("known", total=2):
            assert _progress.inside_phase()
    assert not _progress.inside_phase()


def test_nothing_is_estimated_from_a_handful_of_parts():
    with _progress.phase("long", total=1000) as found:
        found.advance(9)
        assert found.left(found.began + 30) == (pytest.approx(0.009), None)
        found.advance(10)
        assert found.left(found.began + 30)[1] is not None
