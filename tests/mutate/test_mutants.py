"""The mutators generate the expected mutants, and no no-ops."""

import ast

import pytest

from tests.mutate import equivalents
from tests.mutate.cpp_mutants import cpp_mutants
from tests.mutate.kernels import includers
from tests.mutate.mutant import PACKAGE, ROOT
from tests.mutate.python_mutants import changes_program, python_mutants


def made(text: str) -> list[str]:
    return [mutant.apply(text) for mutant in python_mutants("x.py", text)]


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("a <= b", ["a < b", "a > b"]),
        ("a == b", ["a != b"]),
        ("a is not b", ["a is b"]),
        ("a in b", ["a not in b"]),
        ("(a) < (b)", ["(a) <= (b)", "(a) >= (b)"]),
        ("a + b", ["a - b"]),
        ("a // b", ["a * b"]),
        ("'é' + a + b", ["'é' + a - b"]),
        ("a if b else c", ["a if True else c", "a if False else c"]),
        ("not a", ["a"]),
        ("not (a and b)", ["(a and b)", "not (a or b)"]),
        ("-a", ["a"]),
        ("a and b", ["a or b"]),
        ("x[-1]", ["x[0]", "x[-2]"]),
        ("x = True", ["x = False"]),
        ("x = 2", ["x = 3", "x = 1"]),
        ("x = 0.5", ["x = 1.5"]),
        ("a.amin(x)", ["a.amax(x)", "pass"]),
        ("max(a)", ["min(a)", "pass"]),
        ("f'{1 + 1}' + 'a'", []),
        ("x: int | None = None", []),
        ("__all__ = [1 + 1]", []),
        ("raise ValueError(1 + 2)", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["pass", "a -= b"]),
        ("while a: break", ["while False: break", "while a: pass"]),
        ("if a: b()", ["if True: b()", "if False: b()", "if a: pass"]),
        ("if a: pass", ["if True: pass", "if False: pass"]),
        ("def f(a: A | B, b=3): '1 + 1'", [f"def f(a: A | B, b={n}): '1 + 1'" for n in (2, 4)]),
    ],
)
def test_python_mutants(text: str, mutants: list[str]) -> None:
    assert sorted(made(text)) == sorted(mutants)


def test_a_default_acts_where_the_function_does() -> None:
    text = "def f(\n    a=1,\n):\n    b()\n    return a\n"
    default = next(m for m in python_mutants("x.py", text) if m.line == 2)
    assert default.lines == (4, 5)
    assert default.kind == "default"
    assert {m.kind for m in python_mutants("x.py", "def f(a=1):\n    a = 2\n")} == {
        "default",
        "constant",
    }


def test_equal_lines_have_names_of_their_own() -> None:
    text = "if a:\n    b()\nif a:\n    b()\n"
    names = [m.identity(text) for m in python_mutants("x.py", text)]
    assert len(set(names)) == len(names) == 6
    moved = "\n\n" + text
    assert names == [m.identity(moved) for m in python_mutants("x.py", moved)]


def test_a_statement_over_lines_is_executed_where_any_of_them_is() -> None:
    text = "def f(a):\n    return (\n        a\n        + 1\n    )\n"
    assert {m.lines for m in python_mutants("x.py", text)} == {(2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("template <class T> T *f(T *x);", []),
        ("// a < b + 1\n", []),
        ('f("a < b");', []),
        ("#if A > 1", []),
        ("share(n + 1, 8 * s, threads, [&](int64_t a, int64_t b) {", []),
        ("if (i + 1 < n) __builtin_prefetch(x + 1);", []),
        ("x = a * b;", ["x = a / b;"]),
        ("const V x = a & b;", ["const V x = a | b;"]),
        ("return 3;", ["return 4;", "return 2;"]),
        ("return 0;", ["return 1;", "return (-1);"]),
        ("return 0.5f;", ["return 1.5f;"]),
        ("return x1 ? int64_t{} : y;", []),
        ("return std::max(a, !b);", ["return std::min(a, !b);", "return std::max(a, b);"]),
        ("return true;", ["return false;"]),
        ("{\n  x = f(a);\n}", ["{\n  ;\n}"]),
        ("{\n  f(a,\n    b);\n}", ["{\n  ;\n}"]),
        ("{\n  throw Error(a);\n}", ["{\n  ;\n}"]),
        ("{\n  const T x = f(a);\n}", []),
        ("{\n  if (f(a)) return;\n}", ["{\n  if (true) return;\n}", "{\n  if (false) return;\n}"]),
    ],
)
def test_cpp_mutants(text: str, mutants: list[str]) -> None:
    assert sorted(m.apply(text) for m in cpp_mutants("x.h", text)) == sorted(mutants)


@pytest.mark.parametrize("file", ["sampling/static.py", "losses/support_loss.py"])
def test_mutants_of_real_sources_change_one_statement_and_parse(file: str) -> None:
    path = PACKAGE / file
    text = path.read_text()
    mutants = python_mutants(str(path.relative_to(ROOT)), text)
    assert len({m.apply(text) for m in mutants}) == len(mutants) > 50
    assert len({(m.identity(text), m.start) for m in mutants}) == len(mutants)
    for mutant in mutants[::7]:
        ast.parse(mutant.apply(text))
        assert changes_program(mutant, text)
        removed = [row for row in mutant.diff(text).splitlines() if row.startswith("-")]
        assert text.splitlines()[mutant.line - 1] in [row[1:] for row in removed]


def test_changes_program_tells_a_no_op_and_what_does_not_parse() -> None:
    text = "x = (a)\n"
    mutant = python_mutants("x.py", "x = 1\n")[0]
    from dataclasses import replace

    assert not changes_program(replace(mutant, start=4, end=7, new="a"), text)
    assert not changes_program(replace(mutant, start=4, end=7, new="a b"), text)
    assert changes_program(replace(mutant, start=4, end=7, new="b"), text)


def test_a_header_is_compiled_by_those_who_include_it_through_others() -> None:
    texts = {
        "a.h": "",
        "b.h": '#include "a.h"\n',
        "c.cpp": '#include <x>\n#include "b.h"\n',
        "d.cpp": '#include "a.h"\n',
        "e.cpp": '// #include "a.h"\n',
    }
    assert includers("a.h", texts) == ["c.cpp", "d.cpp"]
    assert includers("d.cpp", texts) == ["d.cpp"]


def test_known_equivalents_name_lines_that_exist_and_say_why() -> None:
    for (file, before, after), why in equivalents.load().items():
        text = (ROOT / file).read_text()
        lines = "\n".join(line.strip() for line in text.splitlines())
        assert before in lines, f"{file} has no line {before!r} any more"
        assert before != after
        assert len(why) > 20


def test_an_equivalent_is_known_by_its_text_wherever_it_stands() -> None:
    known = {("x.py", "b = c < d", "b = c <= d"): "one", ("x.py", "e = 1", "*"): "two"}
    text = "# moved\nif a:\n    b = c < d\n    e = 1\n"
    found = [equivalents.reason(m, text, known) for m in python_mutants("x.py", text)]
    assert found == [None, None, "one", None, "two", "two"]
    known = {("x.py", "@record(True)\nclass B:", "@record(False)"): "three"}
    text = "@record(True)\nclass A:\n    a: int\n\n@record(True)\nclass B:\n    b: int\n"
    mutants = [m for m in python_mutants("x.py", text) if m.new == "False"]
    assert [equivalents.reason(m, text, known) for m in mutants] == [None, "three"]
