"""The mutants of a C++ source, made from its tokens.

There is no parser: an operator counts if it stands between spaces, as the layout of the sources has
it, so that `<` of a template and `*` of a pointer are left alone. What does not compile is dropped
later, when it is built. What only asks for memory ahead of time, or says how much work a row is to
`share`, is left alone too: it changes no number.
"""

import re
from collections.abc import Iterator

from tests.mutate.mutant import Mutant

_OPERATORS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "&&": ("||",),
    "||": ("&&",),
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "%": ("/",),
    "+=": ("-=",),
    "-=": ("+=",),
    "*=": ("/=",),
    "/=": ("*=",),
    "<<": (">>",),
    ">>": ("<<",),
    "&": ("|",),
    "|": ("&",),
}
_OPERATOR = re.compile(r"(?<= )(?:[<>=!+\-*/]=|<<|>>|&&|\|\||[<>+\-*/%&|])(?= )")
_INTEGER = re.compile(r"(?<![\w.'])\d+(?![\w.'])")
_FLOAT = re.compile(r"(?<![\w.'])\d+\.\d*(?:[eE][+-]?\d+)?(?=f?\b)|(?<![\w.'])\d+[eE][+-]?\d+\b")
_WORD = re.compile(r"\b(?:true|false|min|max)\b")
_NOT = re.compile(r"!(?=[\w(])")
_IF = re.compile(r"\bif(?: constexpr)? \(")
_WORDS = {"true": "false", "false": "true", "min": "max", "max": "min"}
_SKIPPED = re.compile(
    r"\s*(?:#|template\b|using\b|static_assert|namespace\b|typedef\b)|.*(?:prefetch|\bAHEAD\b)"
)
_WORK = re.compile(r"\bshare\([^;{]*?, threads")
_TYPES = (
    r"const|auto|return|using|int|int64_t|int32_t|uint64_t|double|float|bool|else|case|T|V|struct"
)
_STATEMENT = re.compile(
    rf"[ \t]*(?!(?:{_TYPES})\b)"
    r"(?:\*?[\w.\[\]>:-]+(?:\([^;{}]*\))?(?:[\w.\[\]>-]*) (?:[+\-*/|&]?=) [^;{}]*"
    r"|[\w:.>-]+(?:<\w+>)?\([^;{}]*\)|throw [^;{}]*|continue|break"
    r"|\+\+[\w.\[\]>-]+|[\w.\[\]>-]+\+\+);"
)
_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def _blank(text: str) -> str:
    """The same length, with spaces for comments and the contents of strings."""
    return _NOISE.sub(lambda found: re.sub(r"[^\n]", "\x01", found.group()), text)


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens at `opening` closes."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return -1


def _in_line(code: str) -> Iterator[tuple[int, int, str, str]]:
    """The (start, end, new text, kind) of the changes inside one line."""
    for found in _OPERATOR.finditer(code):
        for new in _OPERATORS.get(found.group(), ()):
            kind = "comparison" if new[0] in "<>=!" and new not in ("<<", ">>") else "arithmetic"
            yield *found.span(), new, "boolean" if new in ("&&", "||") else kind
    for found in _INTEGER.finditer(code):
        value = int(found.group())
        for number in (value + 1, value - 1):
            yield *found.span(), str(number) if number >= 0 else f"({number})", "constant"
    for found in _FLOAT.finditer(code):
        value_f = float(found.group())
        if value_f + 1 != value_f:
            yield *found.span(), repr(value_f + 1), "constant"
    for found in _WORD.finditer(code):
        yield *found.span(), _WORDS[found.group()], "name"
    for found in _NOT.finditer(code):
        yield *found.span(), "", "negation"


def _guards(code: str) -> Iterator[tuple[int, int, str, str]]:
    for found in _IF.finditer(code):
        if _SKIPPED.match(code, code.rfind("\n", 0, found.start()) + 1):
            continue
        last = _closing(code, found.end() - 1)
        if last > 0:
            for new in ("true", "false"):
                yield found.end(), last, new, "guard"


def _statements(code: str) -> Iterator[tuple[int, int, str, str]]:
    """Statements that fill whole lines, to be left out."""
    place = 0
    for line in code.splitlines(keepends=True):
        before = code[:place].rstrip(" \n\x01")
        found = _STATEMENT.match(code, place)
        starts = before.endswith((";", "{", "}", ")", "else")) and not before.endswith("= {")
        starts = starts and not _SKIPPED.match(code, place)
        if found and starts and found.group().count("(") == found.group().count(")"):
            first = place + len(line) - len(line.lstrip())
            yield first, found.end(), ";", "statement"
        place += len(line)


def cpp_mutants(file: str, text: str) -> list[Mutant]:
    """Every mutant of a C++ source, in the order of its lines.

    Args:
        file: the path of the source, relative to the root of the repository.
        text: the source.

    Returns:
        Mutants of which no two give the same text.

    Example:
        >>> text = "if (a < b) c = std::min(a, b);"
        >>> for mutant in cpp_mutants("x.h", text):
        ...     print(mutant.apply(text))
        if (true) c = std::min(a, b);
        if (false) c = std::min(a, b);
        if (a <= b) c = std::min(a, b);
        if (a >= b) c = std::min(a, b);
        if (a < b) c = std::max(a, b);
    """
    code = _blank(text)
    found: list[tuple[int, int, str, str]] = [*_guards(code), *_statements(code)]
    place = 0
    for line in code.splitlines(keepends=True):
        if not _SKIPPED.match(line):
            found += [(place + a, place + b, new, kind) for a, b, new, kind in _in_line(line)]
        place += len(line)
    work = [match.span() for match in _WORK.finditer(code)]
    found = [row for row in found if not any(a <= row[0] and row[1] <= b for a, b in work)]
    unique = {(a, b, new): kind for a, b, new, kind in found if text[a:b] != new}
    ordered = sorted(unique.items(), key=lambda item: item[0][:2])
    return [
        Mutant(file, a, b, new, kind, text.count("\n", 0, a) + 1) for (a, b, new), kind in ordered
    ]
