"""Builds of C++ mutants recompile only what is needed and leave the sources unchanged."""

import ctypes
import shutil
from pathlib import Path

import pytest

from tests.mutate.cpp_mutants import cpp_mutants
from tests.mutate.kernels import Build

HEADER = """\
inline int twice(int x) {
#ifdef WIDE
  return x + x;
#else
  return 2 * x;
#endif
}
inline int kept(int x) {
  if (x > 0 && x > 0) return x;
  return 0;
}
"""
UNIT = '#include "toy.h"\nextern "C" int NAME(int x) { return twice(x) + kept(x); }\n'


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """As `prepare` leaves it, for two units of one header."""
    if shutil.which("g++") is None:
        pytest.skip("needs a compiler")
    made = Build(sets=("avx512", "generic"))
    made.place, made.native = tmp_path, tmp_path / "native"
    made.native.mkdir()
    (tmp_path / "objects").mkdir()
    made.texts = {
        "toy.h": HEADER,
        "a_avx512.cpp": "#define WIDE\n" + UNIT.replace("NAME", "wide"),
        "a_generic.cpp": UNIT.replace("NAME", "narrow"),
    }
    for name, text in made.texts.items():
        (made.native / name).write_text(text)
    units = [name for name in made.texts if name.endswith(".cpp")]
    made.compiles = {
        unit: f"ccache g++ -fPIC -O1 -MD -MT x.o -MF x.d -o {unit}.o -c {made.native / unit}"
        for unit in units
    }
    made.link = f": && g++ -shared -o kernels.so {' '.join(f'{unit}.o' for unit in units)} && :"
    made.library = tmp_path / "kernels.so"
    for unit in units:
        command, usual, _ = made._command(unit, "")
        assert made._object(unit, "")[0] == 0
        shutil.copy(tmp_path / "objects" / f"{usual}.o", tmp_path / "objects" / usual)
        assert "ccache" not in command
        assert "-M" not in command
    return made


def built(build: Build, before: str, after: str) -> tuple[str, str, Path | None]:
    text = build.texts["toy.h"]
    mutants = cpp_mutants("src/toy.h", text)
    found = [m for m in mutants if m.hunk(text) == (before, after)]
    assert len(found) == 1
    before_it = (build.native / "toy.h").stat().st_mtime_ns
    answer = build.build(found[0], text)
    assert (build.native / "toy.h").read_text() == text
    assert (build.native / "toy.h").stat().st_mtime_ns == before_it  # nothing is compiled again
    return answer


def test_a_mutant_is_built_for_the_instruction_set_that_sees_it(build: Build) -> None:
    how, instructions, library = built(build, "return x + x;", "return x - x;")
    assert (how, instructions) == ("built", "avx512")
    assert library is not None
    mutated = ctypes.CDLL(str(library))
    assert (mutated.wide(3), mutated.narrow(3)) == (0 + 3, 6 + 3)
    how, instructions, library = built(build, "return 2 * x;", "return 3 * x;")
    assert (how, instructions) == ("built", "generic")


def test_what_compiles_to_the_same_needs_no_test(build: Build) -> None:
    line = "if (x > 0 && x > 0) return x;"
    assert built(build, line, "if (x > 0 && x >= 0) return x;")[0] == "same"
    assert built(build, line, "if (x > 0 || x > 0) return x;")[0] == "same"


def test_what_does_not_compile_is_no_mutant(build: Build) -> None:
    text = build.texts["toy.h"].replace("2 * x", "2 & x")
    build.texts["toy.h"] = text.replace("inline int twice(int x)", "inline int twice(double x)")
    (build.native / "toy.h").write_text(build.texts["toy.h"])
    assert built(build, "return 2 & x;", "return 2 | x;")[0] == "invalid"
