"""Names, calls and flags that the documentation mentions are there."""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fewfold as ff
from fewfold.cli.arguments import parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "tutorials").glob("*.py"))
MIGRATION = [page for page in PAGES if page.name.startswith("from_")]
FILES = {"fewfold.models", "fewfold.service", "fewfold.toml"}  # and an entry point: not names
VALUES = {
    "basis": ff.continuous.GaussianBasis,
    "energy": ff.FenchelYoung,
    "graph": ff.FactorGraph,
    "rec": ff.Recommender,
    "structure": ff.structures.Sequence,
}
"""What the variables of the tables on migration pages stand for."""
SPACES = (ff.recommender, ff.structures)  # names of these stand there without their module
OTHERS = {
    *("--artifact", "--batching", "--endpoint", "--evaluation", "--ranking", "--reading"),
    *("--training", "--no"),  # arrows of a picture, and a prefix
    *("--coverage", "--isa", "--longest", "--minutes", "--unmeasured", "--quick"),  # our own tools
    *("--max-restarts", "--nnodes", "--nproc-per-node"),  # torchrun
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
}
"""Flags of other programs."""


def code(text: str) -> Iterator[str]:
    """Yield the pieces of code of a page: blocks, without prompts, and spans within sentences."""
    block = re.compile(r"^( *)```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    for match in block.finditer(text):
        source = textwrap.dedent(match[2])
        prompted = [line[4:] for line in source.split("\n") if line.startswith((">>> ", "... "))]
        yield "\n".join(prompted) if prompted else source
    yield from spans(block.sub("", text))


def spans(text: str) -> list[str]:
    """Return the code within sentences, as Markdown or reStructuredText marks it."""
    found = re.findall(r"(?<!`)``([^`]+)``(?!`)|(?<!`)`([^`\n]+)`(?!`)", text)
    return [twice or once for twice, once in found]


def resolved(name: str) -> Any:
    """Return what a dotted name stands for; None for a field of a class; AttributeError."""
    first, *rest = name.split(".")
    found: Any = ff
    if first not in ("ff", "fewfold"):
        rest = rest if first in VALUES else [first, *rest]
        found = VALUES.get(first) or next((s for s in SPACES if hasattr(s, rest[0])), ff)
    for part in rest:
        if inspect.isclass(found) and not hasattr(found, part):
            if part in {*inspect.get_annotations(found), *inspect.signature(found).parameters}:
                return None
            raise AttributeError(f"{name}: a {found.__name__} has no {part}")
        found = getattr(found, part)
        if not isinstance(found, type | ModuleType):
            break  # attributes of values, as of a function, are not looked up
    return found


def wrong_names(text: str) -> list[str]:
    """Return dotted names of the package that do not exist."""
    found = []
    for name in re.findall(r"(?<![\w/.-])(?:ff|fewfold)(?:\.[A-Za-z_]\w*)+", text):
        try:
            resolved(name)
        except AttributeError:
            found.append(name)
    return [name for name in found if name not in FILES]


def wrong_calls(sources: Iterator[str] | list[str], known: str) -> list[str]:
    """Return calls of names that match `known` which the functions would refuse."""
    found = []
    for source in sources:
        try:
            tree = ast.parse(source)
        except SyntaxError:  # a command, a formula, an output
            continue
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not re.fullmatch(known, ast.unparse(call.func)):
                continue
            try:
                _bind(call)
            except (AttributeError, TypeError) as error:
                found.append(f"{ast.unparse(call)}: {error}")
    return found


def _bind(call: ast.Call) -> None:
    """Bind the arguments of a call; `...` stands for any others."""
    name = ast.unparse(call.func)
    function = resolved(name)
    cut = any(isinstance(one, ast.Starred) or ast.unparse(one) == "..." for one in call.args)
    if cut or function is None or any(word.arg is None for word in call.keywords):
        return
    method = name.partition(".")[0] in VALUES
    names = {str(word.arg): None for word in call.keywords}
    inspect.signature(function).bind_partial(*[None] * (len(call.args) + method), **names)


def ours(page: str) -> list[str]:
    """Return the code in the columns of a migration page that say what to write here."""
    rows = [re.split(r"(?<!\\)\|", line)[2:-1] for line in page.split("\n") if line.startswith("|")]
    return [span for row in rows for cell in row for span in spans(cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_and_calls(page: Path) -> None:
    text = page.read_text()
    assert wrong_names(text) == []
    assert wrong_calls(code(text), r"(?:ff|fewfold)(\.\w+)+") == []


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_calls_of_migration_tables(page: Path) -> None:
    known = "|".join(VALUES)
    found = ours(page.read_text())
    assert len(found) > 10
    assert wrong_calls(found, rf"(?:{known})(\.\w+)+|[A-Z]\w+|\w+_split|held_out_\w+") == []


def _flags(parsed: argparse.ArgumentParser) -> set[str]:
    """Return all flags of a parser and of its commands."""
    found = set()
    for action in parsed._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for one in action.choices.values() for flag in _flags(one)}
    return found


def test_flags() -> None:
    known = _flags(parser()) | OTHERS
    for page in PAGES:
        said = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", page.read_text())
        assert {flag for flag in said if flag not in known} == set(), page.name


def test_mistakes_are_found() -> None:
    assert wrong_names("`ff.sparsemux` and `ff.recommender.VAE`, ff.Support.weights") == [
        "ff.sparsemux"
    ]
    page = (
        "```python\n>>> ff.ksubset(scores, b=3)\n1\n```\n`ff.ksubset(scores, k=3)`, `ff.VAE(...)`"
    )
    assert len(wrong_calls(code(page), r"ff\.\w+")) == 1
    row = "| `Rec(x=1)` | `rec.recommend(u, n=3)`, `rec.recommend(u, k=3)` |"
    table = f"| theirs | ours |\n|---|---|\n{row}"
    assert ours(table)[0] == "rec.recommend(u, n=3)"
    assert len(wrong_calls(ours(table), r"rec\.\w+")) == 1
    assert len(wrong_calls(["rec.recommended(u)"], r"rec\.\w+")) == 1
