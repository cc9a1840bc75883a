"""Build the C++ kernels with one changed file, recompiling as little as possible.

The sources are copied to `build/mutate/cmake/source`, and only the copy is ever changed. CMake
configures and builds it once; a mutant then runs the compiler's commands of the affected files and
the linker's, with other names for what they write.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutate.mutant import BUILD, PACKAGE, ROOT, Mutant

NATIVE = PACKAGE / "_native"
SETS = ("avx512", "avx2", "generic")
_SET = re.compile(r"_(avx512|avx2|generic)\.cpp$")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def includers(header: str, texts: dict[str, str]) -> list[str]:
    """The .cpp files whose object depends on a file, itself or through other headers.

    Example:
        >>> includers("a.h", {"a.h": "", "b.h": '#include "a.h"', "c.cpp": '#include "b.h"'})
        ['c.cpp']
    """
    reached, fresh = {header}, {header}
    while fresh:
        fresh = {
            name
            for name, text in texts.items()
            if name not in reached and fresh & set(_INCLUDE.findall(text))
        }
        reached |= fresh
    return sorted(name for name in reached if name.endswith(".cpp"))


def _set_of(unit: str) -> str | None:
    found = _SET.search(unit)
    return found.group(1) if found else None


class Build:
    """A build of the kernels in which single files can be replaced.

    Args:
        sets: the instruction sets that mutants are compiled for, the preferred one first.
        flags: compiler flags added to those of CMakeLists.txt; the last -O wins.
        name: the folder in build/mutate.
        link: flags for the linker.
    """

    def __init__(
        self,
        sets: tuple[str, ...] = SETS,
        flags: str = "-O1",
        name: str = "cmake",
        link: str = "",
    ) -> None:
        self.link_flags = link
        self.sets = sets
        self.place = BUILD / name
        self.source = self.place / "source"
        self.native = self.source / "src" / "fewfold" / "_native"
        self.flags = flags
        self.plain: dict[str, bytes] = {}  # preprocessed units

    def prepare(self) -> None:
        """Copy the sources, configure and build all of them."""
        self.native.mkdir(parents=True, exist_ok=True)
        _copy(ROOT / "CMakeLists.txt", self.source / "CMakeLists.txt")
        files = [f.relative_to(NATIVE) for f in NATIVE.rglob("*") if f.suffix in (".cpp", ".h")]
        for old in [file for file in self.native.rglob("*") if file.is_file()]:
            if old.relative_to(self.native) not in files:
                old.unlink()
        for file in files:
            _copy(NATIVE / file, self.native / file)
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        _run(
            [
                *("cmake", "-S", str(self.source), "-B", str(self.place / "objects")),
                *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *launcher),
                f"-DPython_EXECUTABLE={sys.executable}",
                f"-DCMAKE_MODULE_LINKER_FLAGS={self.link_flags}",
                # Behind the flags of the target, where the last -O counts.
                f"-DCMAKE_CXX_COMPILE_OBJECT=<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> "
                f"{self.flags} -o <OBJECT> -c <SOURCE>",
            ]
        )
        _run(["cmake", "--build", str(self.place / "objects"), "-j", "2"])
        listed = _run(["ninja", "-C", str(self.place / "objects"), "-t", "commands", "kernels"])
        commands = [line for line in listed.splitlines() if line.strip()]
        self.compiles = {
            unit.name: line
            for line in commands
            for unit in [Path(line.split()[-1])]
            if "_native" in unit.parts and " -c " in line
        }
        self.link = next(line for line in commands if " -shared " in line)
        self.texts = {file.name: (self.native / file).read_text() for file in files}
        self.library = next((self.place / "objects").glob("kernels*.so"))

    def _command(self, unit: str, suffix: str) -> tuple[str, str, str]:
        """The command that compiles a unit, its usual object and the one it writes instead."""
        words = shlex.split(self.compiles[unit])
        if "&&" in words:
            words = words[: words.index("&&")]
        usual = words[words.index("-o") + 1]
        other = f"{usual}{suffix}.o"
        words[words.index("-o") + 1] = other
        words = [word for word in words if "ccache" not in word.rsplit("/", 1)[-1]]
        for flag in ("-MD", "-MF", "-MT"):
            if flag in words:
                spot = words.index(flag)
                del words[spot : spot + (1 if flag == "-MD" else 2)]
        return shlex.join(words), usual, other

    def _units(self, name: str) -> list[tuple[str, list[str]]]:
        """For each instruction set, the units to compile for it."""
        units = [unit for unit in includers(name, self.texts) if unit in self.compiles]
        shared = [unit for unit in units if _set_of(unit) is None]
        groups = [(s, [u for u in units if _set_of(u) == s]) for s in self.sets]
        groups = [(s, own) for s, own in groups if own]
        return [(s, [*shared, *own]) for s, own in groups] or [(self.sets[0], shared)]

    def _object(self, unit: str, suffix: str, extra: str = "") -> tuple[int, str, bytes]:
        command, usual, other = self._command(unit, suffix)
        folder = self.place / "objects"
        code = subprocess.run(
            f"{command} {extra}", shell=True, cwd=folder, capture_output=True, check=False
        ).returncode
        place = folder / other
        made = place.read_bytes() if place.exists() else b""
        if extra:
            place.unlink(missing_ok=True)
        return code, f"{usual} {other}", made

    def build(self, mutant: Mutant, text: str) -> tuple[str, str, Path | None]:
        """Build the kernels with a mutant.

        Returns:
            `(how it went, the instruction set, the library)`. How it went is "built", "invalid" if
            it does not compile, or "same" if the compiler makes the same machine code of it.
        """
        place = next(self.native.rglob(Path(mutant.file).name))
        groups = self._units(place.name)
        for unit in {unit for _, units in groups for unit in units} - set(self.plain):
            self.plain[unit] = self._object(unit, ".plain", "-E -P")[2]
        times = place.stat()
        try:
            place.write_text(mutant.apply(text))
            for instructions, units in groups:
                # Is the line seen at all with this instruction set?
                seen = [u for u in units if self._object(u, ".seen", "-E -P")[2] != self.plain[u]]
                if seen:
                    how, library = self._link(seen)
                    return how, instructions, library
            return "same", groups[0][0], None
        finally:
            place.write_text(text)
            # As if never touched: the next run compiles nothing again.
            os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _link(self, units: list[str]) -> tuple[str, Path | None]:
        link, same = self.link, True
        for unit in units:
            code, names, made = self._object(unit, ".mutant")
            if code:
                return "invalid", None
            usual, other = names.split()
            same = same and made == (self.place / "objects" / usual).read_bytes()
            link = link.replace(f" {usual} ", f" {other} ")
        if same:
            return "same", None
        library = self.place / "mutant" / self.library.name
        library.parent.mkdir(exist_ok=True)
        library.unlink(missing_ok=True)
        link = re.sub(r"-o \S*kernels\S*\.so", f"-o {library}", link)
        link = link.split(" && ")[1] if link.startswith(":") else link
        done = subprocess.run(
            link, shell=True, cwd=self.place / "objects", capture_output=True, check=False
        )
        return ("built", library) if done.returncode == 0 else ("invalid", None)


def _copy(old: Path, new: Path) -> None:
    """Copy unless the contents are equal: the time of a file decides what is compiled again."""
    if not new.exists() or new.read_bytes() != old.read_bytes():
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old, new)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
