"""``python -m release.wheels``: build the source distribution and its wheels, and test them.

1. The source distribution, of the files of this checkout.
2. From its unpacked files alone, without a network, a wheel for this Python, and the one for the
   stable ABI, which all later versions share, by the oldest Python of 3.12 and later that is found.
3. Each wheel in a new environment without a compiler in PATH, on every Python found that it is for:
   `smoke.py`.
4. The wheel that the source distribution becomes where no compiler works, in the same way.
"""

import argparse
import os
import platform
import shutil
import sys
import tarfile
import time
from pathlib import Path

from release.environments import (
    BUILD,
    OLDEST_STABLE,
    ROOT,
    constraints,
    environment,
    interpreters,
    project,
    python,
    run,
    succeeds,
)

__all__ = ["DIST", "build_sdist", "build_wheel", "main", "smoke", "unpack", "version_here"]

DIST = ROOT / "dist"
SOURCE = BUILD / "source"


def version_here() -> str:
    """Return the version of the checkout."""
    text = (ROOT / "src" / "fewfold" / "__init__.py").read_text()
    return text.split('__version__ = "')[1].split('"')[0]


def build_sdist(builder: Path) -> Path:
    """Write the source distribution to dist/."""
    run(python(builder), "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    return DIST / f"fewfold-{version_here()}.tar.gz"


def unpack(sdist: Path, to: Path) -> None:
    """Make a folder equal to the source distribution.

    Only what differs is written: all its files have one date, by which the build could not tell
    what to compile again.
    """
    with tarfile.open(sdist) as archive:
        inside = {
            Path(*Path(member.name).parts[1:]): archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isfile()
        }
    for file in sorted(to.rglob("*")):
        if file.is_file() and file.relative_to(to) not in inside:
            file.unlink()
    for name, content in inside.items():
        file = to / name
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def builder_for(name: str, base: Path) -> Path:
    """Return an environment with the newest of what builds the package for a Python."""
    requires = project()["build-system"]["requires"]
    return environment(f"build-{name}", base, "--upgrade", *requires, "build", "cmake", "ninja")


def build_wheel(builder: Path, source: Path, to: Path) -> Path:
    """Build the wheel of a folder of sources without a network, with kernels, and return it."""
    before = set(to.glob("*.whl"))
    offline = ["unshare", "-rn"] if _can_unshare() else []
    run(
        *offline,
        *("nice", "-n", "5", python(builder), "-m", "pip", "wheel", "-q", "--no-index"),
        *("--no-build-isolation", "--no-deps", "--wheel-dir", to),
        *("-C", f"build-dir={BUILD / 'objects'}/{builder.name}-{{wheel_tag}}", source),
        path=f"{builder / 'bin'}:{os.environ['PATH']}",
        more={"FEWFOLD_NATIVE": "1", **_compiler_cache()},
    )
    # A wheel that existed is written again under its name.
    found = [file for file in to.glob("*.whl") if file not in before] or sorted(
        before, key=lambda file: file.stat().st_mtime
    )
    return found[-1]


def build_pure(builder: Path, source: Path) -> Path:
    """Build where the compiler does not work: a wheel without kernels for every Python."""
    to = BUILD / "pure"
    shutil.rmtree(to, ignore_errors=True)
    variables = {"CXX": "/bin/false", "PATH": f"{builder / 'bin'}:{os.environ['PATH']}"}
    os.environ.pop("FEWFOLD_NATIVE", None)
    run(
        *(python(builder), "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation"),
        *("--no-deps", "--wheel-dir", to, "-C", f"build-dir={to}/objects", source),
        more=variables,
    )
    (wheel,) = to.glob("*-py3-none-any.whl")
    return wheel


def _compiler_cache() -> dict[str, str]:
    """Return the variables by which CMake uses ccache, if it is installed."""
    if shutil.which("ccache") is None:
        return {}
    return {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": str(ROOT)}


def _can_unshare() -> bool:
    """Return whether a process may have a network of its own, that is none."""
    return shutil.which("unshare") is not None and os.system("unshare -rn true 2>/dev/null") == 0


def smoke(wheel: Path, name: str, base: Path) -> str:
    """Install a wheel into a new environment without a compiler, test it there; return a line."""
    folder = environment(f"smoke-{name}", base, fresh=True)
    pip, alone = (python(folder), "-m", "pip", "install", "-q"), str(folder / "bin")
    torch = constraints(folder)
    without = ""
    if succeeds(*pip, "--dry-run", "--no-deps", *torch, "torch"):
        run(*pip, *torch, "--only-binary=:all:", f"{wheel}[recommender]", path=alone)
    else:
        run(*pip, "--only-binary=:all:", "numpy", "lazy_loader", path=alone)
        run(*pip, "--no-deps", wheel, path=alone)
        without = ", without torch, which cannot be installed for it here"
    return f"Python {name}{without}: {run_smoke(folder)}"


def run_smoke(folder: Path, *arguments: str) -> str:
    """Run the smoke test in an environment, outside of the checkout, and return its line."""
    script = BUILD / "smoke.py"
    shutil.copy(ROOT / "release" / "smoke.py", script)
    words = [str(python(folder)), "-I", str(script), *arguments]
    return run(*words, path=str(folder / "bin"), cwd=folder).strip()


def _suits(wheel: Path, name: str) -> bool:
    """Return whether a wheel is for a version of Python."""
    minor = int(name.split(".")[1])
    if "-abi3-" in wheel.name:
        return minor >= OLDEST_STABLE[1]
    return f"-cp3{minor}-" in wheel.name


def main() -> int:
    """Build, test, and print what was done and what could not be."""
    parser = argparse.ArgumentParser(prog="python -m release.wheels", description=__doc__)
    parser.add_argument("--jobs", default="1", help="processes that compile (default: 1)")
    os.environ["CMAKE_BUILD_PARALLEL_LEVEL"] = parser.parse_args().jobs
    known = interpreters()
    here = "{}.{}".format(*sys.version_info)
    stable = [name for name in known if int(name.split(".")[1]) >= OLDEST_STABLE[1]]
    print(f"Python {', '.join(known)} found on {platform.system()} {platform.machine()}")
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("fewfold-*"):
        old.unlink()
    sdist = build_sdist(builder_for(here, known[here]))
    unpack(sdist, SOURCE)
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
    for name in dict.fromkeys([here, *stable[:1]]):
        start = time.monotonic()
        wheel = build_wheel(builder_for(name, known[name]), SOURCE, DIST)
        size, seconds = wheel.stat().st_size / 1e6, time.monotonic() - start
        print(f"{wheel.name}: {size:.1f} MB, from the source distribution in {seconds:.0f} s")
        for tested in [one for one in known if _suits(wheel, one)]:
            print(f"  {smoke(wheel, tested, known[tested])}", flush=True)
    wheel = build_pure(builder_for(here, known[here]), SOURCE)
    print(f"{wheel.name}: from the source distribution where no compiler works")
    pip = (python(BUILD / f"smoke-{here}"), "-m", "pip", "install", "-q", "--no-deps")
    run(*pip, "--force-reinstall", wheel)
    print(f"  Python {here}: {run_smoke(BUILD / f'smoke-{here}', 'pure')}")
    if not stable:
        print("no Python 3.12 or later is installed: the wheel for the stable ABI was not built")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
