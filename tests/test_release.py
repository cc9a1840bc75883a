"""Metadata, texts and tools of a release; nothing is built here, `make wheel` does that."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
import yaml

import fewfold
from fewfold.cli import version
from release import check, nightly, pins, versions, wheels
from release.environments import ROOT, project


def test_version_prints_the_build_without_torch():
    code = (
        "import sys, fewfold.cli as cli\n"
        "try: cli.main(['--version'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    first, python, kernels, imported = done.stdout.splitlines()
    assert first == f"fewfold {fewfold.__version__}"
    assert re.match(r"python  CPython 3\.\d+\.\d+ on .*, torch \d", python)
    assert re.match(r"kernels (\w+, compiled by|switched off|not built)", kernels)
    assert imported == "False"


def test_version_without_kernels_and_with_broken_ones(monkeypatch):
    monkeypatch.delitem(sys.modules, version._KERNELS, raising=False)
    monkeypatch.setattr(version, "_spec", lambda: None)
    assert version.build_facts().endswith("kernels not built, plain torch is used")

    def broken() -> None:
        raise ImportError("libgomp.so.1: cannot open")

    monkeypatch.setattr(version, "_load", broken)
    assert "cannot be loaded, plain torch is used: libgomp" in version.build_facts()


def test_threads_pool_of_torch_is_not_vendored():
    """A second libgomp in the wheel would be a second pool of threads."""
    repair = project()["tool"]["cibuildwheel"]["linux"]["repair-wheel-command"]
    assert "--exclude libgomp.so.1" in repair
    assert check._is_foreign("fewfold.libs/libgomp-a34b3233.so.1.0.0")
    assert not check._is_foreign("fewfold/_native/kernels.abi3.so")


@pytest.mark.parametrize("text", check.PROSE, ids=lambda text: text.__name__)
def test_texts_agree_on_the_version(text):
    assert text() == []


def test_stable_abi_starts_at_one_version():
    settings = project()["tool"]
    assert settings["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert settings["cibuildwheel"]["build"] == ["cp311-*", "cp312-*"]
    assert project()["project"]["requires-python"] == ">=3.11"


NATIVE = ROOT / "src" / "fewfold" / "_native"


def test_kernels_call_the_limited_api_alone():
    """A wheel for 3.12 and later may call nothing else; add a name that is in the stable ABI."""
    limited = {
        *("PyCapsule_GetPointer", "PyCapsule_IsValid", "PyErr_Clear", "PyErr_Occurred"),
        *("PyLong_AsLong", "PyLong_AsLongLong", "PyLong_AsVoidPtr", "PyObject_CallNoArgs"),
        *("PyObject_GetAttr", "PyObject_IsTrue", "PyObject_TypeCheck", "PyObject_Vectorcall"),
        *("PyObject_VectorcallMethod", "PyTuple_GetItem", "PyTuple_Size", "PyType_Check"),
        "PyUnicode_InternFromString",
    }
    files = [*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]
    assert len(files) > 50
    for file in files:
        code = re.sub(r"//.*", "", file.read_text())
        assert set(re.findall(r"\bPy[A-Z]\w*_\w+", code)) <= limited, file.name


def test_wheel_without_kernels_is_for_every_python():
    """Otherwise a build without a compiler fails, as the stable ABI needs a compiled module."""
    without = [
        override["wheel"]
        for override in project()["tool"]["scikit-build"]["overrides"]
        if override["wheel"]["cmake"] is False
    ]
    assert without == [{"cmake": False, "py-api": "py3"}] * 2


@pytest.mark.parametrize(
    ("wheel", "python", "expected"),
    [
        ("fewfold-1-cp311-cp311-linux_x86_64.whl", "3.11", True),
        ("fewfold-1-cp311-cp311-linux_x86_64.whl", "3.12", False),
        ("fewfold-1-cp312-abi3-linux_x86_64.whl", "3.11", False),
        ("fewfold-1-cp312-abi3-linux_x86_64.whl", "3.14", True),
    ],
)
def test_wheel_suits_a_python(wheel, python, expected):
    assert wheels._suits(Path(wheel), python) is expected


def test_unpacking_writes_only_what_differs(tmp_path):
    source, sdist = tmp_path / "source", tmp_path / "some.tar.gz"
    source.mkdir()
    (source / "same.cpp").write_text("a")
    (source / "gone.cpp").write_text("b")
    os.utime(source / "same.cpp", (1, 1))
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in {"same.cpp": b"a", "new/one.cpp": b"c"}.items():
            member = tarfile.TarInfo(f"fewfold-1/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    wheels.unpack(sdist, source)
    assert (source / "same.cpp").stat().st_mtime == 1
    assert not (source / "gone.cpp").exists()
    assert (source / "new" / "one.cpp").read_text() == "c"


def test_every_requirement_has_a_lower_bound_and_no_other():
    pinned = versions.lowest(versions.requirements())
    assert "numpy==1.26" in pinned
    assert not [one for one in pinned if one.startswith("torch==")]
    with pytest.raises(ValueError, match=r"lower bound and nothing else, got \['a<2'\]"):
        versions.lowest(["a<2"])


def test_pins_name_each_requirement_once():
    found = {bound.name: bound for bound in pins.bounds()}
    assert len(found) == len(pins.bounds())
    assert (found["torch"].sign, found["torch"].source) == ("==", "constraints")
    assert (found["nanobind"].sign, found["nanobind"].source) == (">=", "build")
    assert "fewfold" not in found


def test_page_names_what_moved():
    before = {
        "test": nightly.Result(True, 600, {"passed": 10}),
        "fuzz": nightly.Result(False, 600),
    }
    now = {
        "test": nightly.Result(
            False, 900, {"passed": 8, "failed": 2}, "FAILED a.py", "exit code 2"
        ),
        "fuzz": nightly.Result(True, 610),
    }
    text = nightly.page(now, before, [], "today")
    assert "Stages: 2. **1 failed: test.**" in text
    assert "| passed before, +2 failed, -2 passed, 1.50 times the time |" in text
    assert "| fuzz | passed | 10.2 | 10.0 |  | passes again |" in text
    assert "| test | **failed**: exit code 2 | 15.0 |" in text
    assert "## Test, the end of test.log\n\n```text\nFAILED a.py\n```" in text


def test_moved_rows_are_missed_new_or_changed():
    def row(ratio: float, passed: bool = True) -> dict[str, object]:
        return {"ratio": ratio, "bar": 1.0, "passed": passed}

    before = {"same": row(0.5), "slower": row(0.5), "missed": row(0.99)}
    now = {"same": row(0.51), "slower": row(0.8), "missed": row(1.01, False), "new": row(0.1)}
    assert nightly.moved_rows(before, now) == [
        "| slower | 0.500 | 0.800 | 1 | 1.60 times |",
        "| missed | 0.990 | 1.010 | 1 | missed, was met |",
        "| new |  | 0.100 | 1 | new |",
    ]
    assert nightly.moved_rows({"gone": row(1.0)}, {}) == [
        "| 1 rows, such as gone |  |  |  | not measured |"
    ]


@pytest.fixture
def night(tmp_path, monkeypatch):
    """A folder for a run, whose stages are programs of one line."""

    def program(code: str) -> str:
        return f"{sys.executable} -c {shlex.quote(code)}"

    stages = {
        "good": program("print('3 passed in 0.1s')"),
        "bad": program("print('FAILED a.py::b\\n1 failed in 0.1s'); raise SystemExit(3)"),
        "missing": "no-such-program",
        "killed": program("import os; os.kill(os.getpid(), 9)"),
        "endless": program("import subprocess; subprocess.run(['sleep', '600'])"),
        "last": program("print('after all')"),
    }
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    monkeypatch.setattr(nightly, "STAGES", stages)
    return tmp_path


def run_night(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nightly", *words])
    before = signal.getsignal(signal.SIGTERM)
    try:
        return nightly.main()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_failed_stages_are_on_the_page_and_the_others_run(night, monkeypatch):
    assert run_night(monkeypatch, "good", "bad", "missing", "killed", "last") == 1
    text = (night / "page.md").read_text()
    assert "Stages: 5. **3 failed: bad, missing, killed.**" in text
    assert "| bad | **failed**: exit code 3 |" in text
    assert "FAILED a.py::b\n```" in text
    assert "| missing | **failed**: cannot be started: " in text
    assert "| killed | **failed**: killed by SIGKILL |" in text
    assert "| last | passed |" in text
    stages = json.loads((night / "last.json").read_text())
    assert [name for name, one in stages.items() if one["passed"]] == ["good", "last"]
    assert run_night(monkeypatch, "endless", "--hours", "0.0001") == 1
    text = (night / "page.md").read_text()
    assert "| endless | **failed**: ended after 0 minutes |" in text


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_its_page_and_no_process(night, monkeypatch, sign):
    main = threading.main_thread().ident

    def interrupt() -> None:
        while not (night / "endless.log").exists():
            time.sleep(0.05)
        time.sleep(0.2)
        signal.pthread_kill(main, sign)

    threading.Thread(target=interrupt, daemon=True).start()
    assert run_night(monkeypatch, "good", "endless", "last") == 1
    text = (night / "page.md").read_text()
    assert "| good | passed |" in text
    assert "| endless | **failed**: interrupted |" in text
    assert "last" not in text
    assert list(json.loads((night / "last.json").read_text())) == ["good"]
    assert sorted(one.name for one in night.iterdir()) == [
        *("endless.log", "good.log", "last.json", "page.md")
    ]


def test_benchmarks_that_were_cut_off_leave_a_page(night, monkeypatch):
    code = (
        f"import pathlib; folder = pathlib.Path({str(night)!r}) / 'benchmarks'; folder.mkdir(); "
        "(folder / 'als.json').write_text('['); raise SystemExit(1)"
    )
    monkeypatch.setitem(nightly.STAGES, "benchmarks", f"{sys.executable} -c {shlex.quote(code)}")
    assert run_night(monkeypatch, "benchmarks") == 1
    text = (night / "page.md").read_text()
    assert "| benchmarks | **failed**: exit code 1 |" in text
    assert "not measured" in text


def test_makefile_has_the_targets_of_the_nightly_run():
    targets = set(re.findall(r"(?m)^([\w-]+)(?: [\w-]+)*:", (ROOT / "Makefile").read_text()))
    targets |= {"tests-nightly", "test-triton"}
    used = [text.split()[1] for text in nightly.STAGES.values() if text.startswith("make ")]
    assert set(used) <= targets


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml")), ids=lambda form: form.stem
)
def test_issue_forms_have_what_a_form_needs(form):
    found = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(found)
    kinds = {part["type"] for part in found["body"]}
    assert kinds <= {"textarea", "input", "dropdown"}
    assert len({part["id"] for part in found["body"]}) == len(found["body"])
