"""For the examples in docstrings, README and docs: one torch thread, as in the tests proper."""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

torch.set_num_threads(1)

# Sphinx's configuration and the gallery are scripts, not modules with examples.
collect_ignore_glob = [
    "docs/conf.py",
    "docs/source_links.py",
    "docs/gallery/*.py",
    "docs/tutorials/*.py",
]
collect_ignore_glob += ["docs/pictures/*.py", "build/*"]
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob += ["src/fewfold/_triton/*.py"]
# Pages that compare numbers with a library that only the extras for tests and benchmarks have.
for peer in ("entmax", "torch_struct"):
    if importlib.util.find_spec(peer) is None:
        collect_ignore_glob.append(f"docs/from_{peer}.md")

# A source is imported as a part of its package, whichever file is collected first.
for folder in sorted((Path(__file__).parent / "src" / "fewfold").glob("*/__init__.py")):
    with contextlib.suppress(ImportError):
        importlib.import_module(f"fewfold.{folder.parent.name}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a package show its function again where it has a module of the same name.

    Collecting a source for its examples makes the module an attribute of the package, in the place
    of the function that the package exports under that name.
    """
    if not isinstance(item, pytest.DoctestItem):
        return
    for name, module in list(sys.modules.items()):
        parent, _, last = name.rpartition(".")
        package = sys.modules.get(parent)
        if not name.startswith("fewfold.") or last not in getattr(package, "__all__", ()):
            continue
        own = getattr(module, last, None)
        if isinstance(getattr(package, last, None), ModuleType) and callable(own):
            setattr(package, last, own)
