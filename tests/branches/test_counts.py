"""The report of branches: merged counts, and lines explained by their text."""

from pathlib import Path

import pytest

from tests.branches.counts import NEVER, ONE_WAY, SOURCES, Line, explained, places, report


def instance(count: int, *branches: int, throw: bool = False) -> dict[str, object]:
    return {"count": count, "branches": [{"count": one, "throw": throw} for one in branches]}


def line(*instances: dict[str, object]) -> Line:
    made = Line()
    for one in instances:
        made.add(one)
    return made


@pytest.mark.parametrize(
    ("found", "text", "taken"),
    [
        (line(instance(5)), "f();", []),
        (line(instance(5, 5, 0)), "if (a)", [5, 0]),
        (line(instance(5, 5, 0), instance(2, 0, 2)), "if (a)", [5, 2]),  # instances of a template
        (line(instance(5, 5, 0, 0, 2)), "if (a)", [5, 2]),  # in a row
        (line(instance(5, 5, 0, 0, 2)), "if (a && b)", [5, 0, 0, 2]),
        (line(instance(5, 5, 0), instance(4, 1, 3, 1)), "if (a)", [1, 3, 1]),
        (line(instance(5, 5, 0, throw=True)), "if (a)", []),
    ],
)
def test_a_branch_is_taken_if_some_instance_takes_it(
    found: Line, text: str, taken: list[int]
) -> None:
    assert found.taken(text) == taken


def test_explained_places_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "some.h"
    source.write_text("int f(int x) {\n  if (x) g();\n  return h();\n}\n")
    lines = {source: {2: line(instance(3, 3, 0)), 3: line(instance(0)), 4: line(instance(3, 3, 0))}}
    assert [(place.number, place.what) for place in places(lines)] == [(2, ONE_WAY), (3, NEVER)]
    assert report(lines, {("some.h", "if (x) g();"): "x is one", ("some.h", "f"): "none"}) == 1
    printed = capsys.readouterr().out
    assert "some.h:3: never runs: return h();" in printed
    assert "if (x)" not in printed
    assert "reached by this run: f" in printed


def test_what_is_explained_is_a_line_of_the_sources() -> None:
    for (file, text), reason in explained().items():
        assert reason
        source = next(SOURCES.rglob(file))
        assert text in [one.strip() for one in source.read_text().splitlines()], text
