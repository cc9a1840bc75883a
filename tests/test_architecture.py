"""The architecture page names files that exist, and every module; file names are unique."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fewfold"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_it_names_exists() -> None:
    named = set(re.findall(r"`([\w./]+\.(?:py|pyi|h|cpp|toml))`", PAGE))
    folders = set(re.findall(r"`((?:\w+/)+)`", PAGE))
    roots = (PACKAGE, ROOT, PACKAGE / "_native", ROOT / "tests" / "mutate")
    missing = [
        path
        for path in sorted(named | folders)
        if not any((root / path).exists() for root in roots)
        and not any(PACKAGE.rglob(path if path.endswith((".h", ".cpp")) else "-"))
    ]
    assert len(named) > 20
    assert missing == []


def test_every_module_is_named() -> None:
    listing = PAGE.split("## The modules")[1].split("## Who may import whom")[0]
    words = set(re.findall(r"\w+", listing))
    modules = {
        path.stem if path.is_file() else path.name
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert modules - {"__init__"} <= words


def test_no_two_files_have_the_same_name() -> None:
    files = [
        path.name
        for path in PACKAGE.rglob("*")
        if path.suffix in {".py", ".h", ".cpp"} and path.name != "__init__.py"
    ]
    assert len(files) > 200
    assert sorted({name for name in files if files.count(name) > 1}) == []


def test_property_tests_are_named_for_what_they_test() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*properties.py")]
    assert len(names) > 5
    assert len(names) == len(set(names))
