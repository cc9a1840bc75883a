"""Copies of the model folders of the fixtures with one thing changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.artifact import FIXTURES, resign
from tests.fuzz.mutations import pack, unpack

MODEL, ITEMS, USERS = "model.safetensors", "items.safetensors", "users.safetensors"
CONFIG, METRICS, MANIFEST = "config.json", "metrics.json", "manifest.json"
Change = Callable[[Any], Any]


def forged(kind: str, place: Path, name: str, change: Change) -> Path:
    """A copy of a folder with one file changed, and the manifest made to fit."""
    copy = place / "forged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(FIXTURES / kind, copy)
    file = copy / name
    if name.endswith(".json"):
        document = json.loads(file.read_text())
        changed = change(document)
        file.write_text(json.dumps(document if changed is None else changed))
    else:
        tensors, metadata = unpack(file.read_bytes())
        change(tensors)
        file.write_bytes(pack(tensors, metadata))
    if name != "manifest.json":
        resign(copy, name)
    return copy


def put(*path: Any, to: Any) -> Change:
    """Set a value deep in a document."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def drop(*path: Any) -> Change:
    """Remove a value deep in a document."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


def tensor(name: str, *, shape: Any = None, dtype: Any = None, raw: Any = None) -> Change:
    """Change a tensor; what is given may be a function of what was there."""

    def change(tensors: Any) -> None:
        old = tensors[name]
        new = [
            was if now is None else now(was) if callable(now) else now
            for was, now in zip(old, (dtype, shape, raw), strict=True)
        ]
        tensors[name] = tuple(new)

    return change


def first(one: bytes) -> Change:
    """The same bytes but for the first."""
    return lambda raw: one + raw[len(one) :]
