"""``python -m release.check``: everything a release needs, checked; nothing is uploaded or tagged.

Each check is a function that returns what is wrong, or an empty list. `make release` builds and
tests the packages first.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from email.parser import Parser
from pathlib import Path

from release.environments import ROOT, environment, project, python
from release.wheels import DIST, version_here

__all__ = ["CHECKS", "PROSE", "main", "notes"]

WHEEL_FILES = ("fewfold/__init__.pyi", "fewfold/py.typed", "bundled/debian_build.parquet")
SDIST_FILES = (
    "CMakeLists.txt",
    "LICENSE",
    "pyproject.toml",
    "src/fewfold/_native/core/kernels.cpp",
)
NOT_VENDORED = ("libgomp", "libomp", "libtorch", "libc10")


def notes(version: str) -> tuple[str, str]:
    """Return the date and the text of the section of CHANGELOG.md about a version; "" if none."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^## \[{re.escape(version)}\] - (\S+)\n(.*?)(?=^## \[|\Z)", text)
    return (section[1], section[2].strip()) if section else ("", "")


def check_changelog() -> list[str]:
    """Unreleased is on top, and below it this version with a date and notes."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^## \[(.+?)\]", text)
    version = version_here()
    wrong = []
    if headings[:2] != ["Unreleased", version]:
        wrong.append(
            f"CHANGELOG.md must begin with [Unreleased] and [{version}], has {headings[:2]}"
        )
    date, body = notes(version)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        wrong.append(f"the section [{version}] of CHANGELOG.md needs a date: ## [{version}] - DATE")
    if len(body) < 200:
        wrong.append(f"the section [{version}] of CHANGELOG.md has no notes")
    return wrong


def check_citation() -> list[str]:
    """CITATION.cff names the version and the date of the changelog."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version, (date, _) = version_here(), notes(version_here())
    expected = {
        "version": version,
        "date-released": date,
        "license": project()["project"]["license"],
    }
    return [
        f"CITATION.cff: {name} must be {value}"
        for name, value in expected.items()
        if not re.search(rf"(?m)^{name}: ['\"]?{re.escape(value)}['\"]?$", text)
    ]


def check_torch_is_no_build_requirement() -> list[str]:
    """Neither torch nor anything that brings it is needed to build."""
    requires = project()["build-system"]["requires"]
    named = [re.split(r"[<>=~\[; ]", one)[0] for one in requires]
    extra = sorted(set(named) - {"scikit-build-core", "nanobind"})
    return [f"build-system.requires has {extra}; torch must not come with it"] if extra else []


def check_git() -> list[str]:
    """Everything is committed, and the tag of the version is free."""
    version = version_here()
    changed = _git("status", "--porcelain")
    wrong = [f"not committed: {', '.join(changed)}"] if changed else []
    if f"v{version}" in _git("tag", "--list"):
        wrong.append(f"the tag v{version} exists; raise __version__ in src/fewfold/__init__.py")
    return wrong


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def check_sdist() -> list[str]:
    """The source distribution is of this version and of the files as they are now."""
    version = version_here()
    sdist = DIST / f"fewfold-{version}.tar.gz"
    if not sdist.exists():
        return [f"there is no dist/{sdist.name}; run make wheel"]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        stale = [
            member.name
            for member in archive.getmembers()
            if member.isfile() and _differs(archive, member)
        ]
    wrong = [f"dist/{sdist.name} lacks {name}" for name in SDIST_FILES if name not in names]
    if stale:
        wrong.append(f"dist/{sdist.name} is older than {stale[0].partition('/')[2]}: make wheel")
    return wrong


def _differs(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    file, content = ROOT / member.name.partition("/")[2], archive.extractfile(member)
    if file.name == "PKG-INFO" or content is None:
        return False
    return not file.exists() or file.read_bytes() != content.read()


def wheels() -> list[Path]:
    """Return the wheels of this version in dist/."""
    return sorted(DIST.glob(f"fewfold-{version_here()}-*.whl"))


def check_wheels() -> list[str]:
    """There are both wheels, with kernels, data and types, and without libraries of others."""
    wrong = [
        f"there is no wheel dist/fewfold-{version_here()}-{tag}-*.whl; run make wheel"
        for tag in ("cp311-cp311", "cp312-abi3")
        if not any(f"-{tag}-" in wheel.name for wheel in wheels())
    ]
    for wheel in wheels():
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
            found = Parser().parsestr(archive.read(metadata).decode())
        suffix = ".abi3.so" if "-abi3-" in wheel.name else ".so"
        if not any(n.startswith("fewfold/_native/kernels.") and n.endswith(suffix) for n in names):
            wrong.append(f"{wheel.name} has no kernels")
        wrong += [
            f"{wheel.name} lacks {file}"
            for file in WHEEL_FILES
            if not any(name.endswith(file) for name in names)
        ]
        wrong += [f"{wheel.name} has {name}" for name in names if _is_foreign(name)]
        if found["Version"] != version_here() or found["License-Expression"] != "Apache-2.0":
            wrong.append(f"{wheel.name}: version {found['Version']}, {found['License-Expression']}")
    return wrong


def _is_foreign(name: str) -> bool:
    return name.endswith((".cpp", ".h")) or any(one in name for one in NOT_VENDORED)


def check_metadata() -> list[str]:
    """Twine accepts all packages, and abi3audit finds no symbol outside of the stable ABI."""
    tools = environment("tools", Path(sys.executable), "twine", "abi3audit")
    files = [*wheels(), *DIST.glob(f"fewfold-{version_here()}.tar.gz")]
    stable = [wheel for wheel in wheels() if "-abi3-" in wheel.name]
    wrong = [] if not files else _fails(python(tools), "-m", "twine", "check", "--strict", *files)
    return wrong + [say for one in stable for say in _fails(tools / "bin" / "abi3audit", one)]


def _fails(*command: str | Path) -> list[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return [f"{command[-1]}: {done.stdout}{done.stderr}".strip()] if done.returncode else []


PROSE: tuple[Callable[[], list[str]], ...] = (
    check_changelog,
    check_citation,
    check_torch_is_no_build_requirement,
)
"""Checks of texts alone, which the tests run as well."""
CHECKS = (*PROSE, check_git, check_sdist, check_wheels, check_metadata)


def report(checks: Iterable[Callable[[], list[str]]]) -> int:
    """Run checks, print a line for each, and return how many failed."""
    failed = 0
    for check in checks:
        wrong = check()
        failed += bool(wrong)
        print(f"{'no' if wrong else 'ok':3} {(check.__doc__ or '').splitlines()[0]}")
        for line in wrong:
            print(f"      {line}")
    return failed


def main() -> int:
    """Check, and print what a person would do next; the exit code is 1 if something is missing."""
    version = version_here()
    failed = report(CHECKS)
    if failed:
        print(f"fewfold {version} cannot be released: {failed} of {len(CHECKS)} checks failed")
        return 1
    print(f"\nfewfold {version} can be released; this was a dry run. RELEASING.md says how to:")
    print(f"  git tag -a v{version} -m 'fewfold {version}' && git push origin v{version}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
