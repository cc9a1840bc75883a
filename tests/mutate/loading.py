"""Import one module from another source or from another compiled file, in this process only."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _FromText(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compiled from the text; no cache of bytecode is read or written."""
        return compile(self.text, self.path, "exec", dont_inherit=True)


class _Instead(MetaPathFinder):
    def __init__(self, name: str, spec: ModuleSpec) -> None:
        self.name = name
        self.spec = spec

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self.spec if fullname == self.name else None


def module_name(file: Path, base: Path) -> str:
    """The dotted name of a source below `base`.

    Example:
        >>> module_name(Path("src/fewfold/maps/__init__.py"), Path("src"))
        'fewfold.maps'
    """
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import(name: str, spec: ModuleSpec | None) -> None:
    """Import at once: pytest's own hook would read a file whose examples it runs from disk."""
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already; its mutant would not be seen")
    assert spec is not None
    sys.meta_path.insert(0, _Instead(name, spec))
    importlib.import_module(name)


def import_from_text(file: Path, base: Path, text: str) -> None:
    """Import the module of `file`, made from `text` instead."""
    name = module_name(file, base)
    inside = [str(file.parent)] if file.name == "__init__.py" else None
    loader = _FromText(name, str(file), text)
    spec = importlib.util.spec_from_file_location(
        name, file, loader=loader, submodule_search_locations=inside
    )
    _import(name, spec)


def import_compiled(name: str, library: Path) -> None:
    """Import the extension module `name` from `library`."""
    loader = ExtensionFileLoader(name, str(library))
    _import(name, importlib.util.spec_from_file_location(name, library, loader=loader))
