"""Checkpoint files: tensors and facts of a training in safetensors, and what they must match."""

import contextlib
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fewfold._files import new_file
from fewfold._optional import optional_import
from fewfold._tensors import Found, Spec, check_names, extremes, read_header, strict_json
from fewfold.recommender.artifact.schema import Source
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.interactions import Interactions
from fewfold.sampling.proposal import Proposal

__all__ = [
    "RESTART",
    "Saved",
    "check_layout",
    "describe",
    "describe_log",
    "digest",
    "partial_path",
    "read",
    "write",
]

_FORMAT = 1
_KEY = "fewfold checkpoint"
RESTART = "delete it, or name another path, to start again"
_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint: tensors, and facts in the form of JSON.

    Attributes:
        tensors: by name.
        facts: by name.
        source: the file they were read from, for errors.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    source: Source = field(default=Source(Path("the checkpoint"), RESTART), compare=False)

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `name` and a dot, without this prefix."""
        start = f"{name}."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}

    @property
    def found(self) -> Found:
        """Dtype and shape of each tensor."""
        return {name: (it.dtype, tuple(it.shape)) for name, it in self.tensors.items()}

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise an ArtifactError about a tensor or a fact."""
        raise self.source.damaged(name, what)

    def expect(self, layout: Iterable[tuple[str, Spec]]) -> None:
        """Raise unless the tensors have these names, dtypes, shapes and ranges."""
        for name, spec in check_layout(self.source, self.found, layout).items():
            fault = spec.value_fault(*extremes(self.tensors[name]))
            if fault is not None:
                self.fail(name, fault)

    @contextlib.contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Turn errors of an object that loads its state into an ArtifactError of this file."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self.source.damaged(name, f"cannot be used: {error}") from error


def check_layout(
    source: Source, found: Found, layout: Iterable[tuple[str, Spec]]
) -> dict[str, Spec]:
    """Return the layout by name; raise if names, dtypes or shapes differ from it."""

    def fail(name: str, what: str) -> NoReturn:
        raise source.damaged(name, what)

    specs = check_names(found, layout, fail)
    for name, spec in specs.items():
        fault = spec.fault(*found[name])
        if fault is not None:
            fail(name, fault)
    return specs


def write(path: Path, saved: Saved) -> None:
    """Write a safetensors file atomically: an existing file stays until the new one is on the disk.

    The library's own function uses a temporary file with a random name, which would never be
    removed if the process is killed.
    """
    tensors = {name: saved.tensors[name].detach().contiguous() for name in saved.tensors}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned
    facts = {"format": _FORMAT, **saved.facts}
    facts["checksum"] = _checksum(facts, tensors)
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(facts, sort_keys=True)}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind, shape = _DTYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path, partial_path(path)) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(_raw(tensors[name]))


def read(path: Path, validate: Callable[[Source, Found, Any], None] | None = None) -> Saved:
    """Read what `write` has written; the tensors are views of the file.

    `validate` is called with the header and the facts before any tensor is read.
    """
    with optional_import("safetensors", "recommender", "resuming"):
        from safetensors import SafetensorError, safe_open
    source = Source(path, RESTART)
    try:
        header = read_header(path)  # checks the length of the file
        text = header.metadata.get(_KEY)
        if text is None:
            raise ArtifactError(f"{path} is not a checkpoint of fewfold; name another path")
        facts = strict_json(text.encode(), finite=False)
        if validate is not None:
            validate(source, header.tensors, facts)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ArtifactError:
        raise
    except (SafetensorError, RuntimeError, ValueError) as error:  # torch maps the file as it is
        raise source.damaged("", f"is damaged ({error})") from error
    version = facts.get("format") if isinstance(facts, dict) else None
    if type(version) is not int or version < 1:
        raise source.damaged("format", f"is damaged: it must be {_FORMAT}, got {version!r}")
    if version > _FORMAT:
        raise ArtifactError(
            f"the checkpoint {path} is of format {version}, this fewfold reads {_FORMAT}; "
            f"update fewfold, or {RESTART}"
        )
    if facts.pop("checksum", None) != _checksum(facts, tensors):
        raise source.damaged("", "is damaged: it has changed since it was written")
    return Saved(tensors, facts, source)


def describe(value: Any) -> str:
    """Return a value's type and the arguments it was constructed with, as text."""
    if isinstance(value, Proposal):
        arguments = {name: it for name, it in vars(value).items() if not name.startswith("_")}
    elif is_dataclass(value):
        arguments = {each.name: getattr(value, each.name) for each in fields(value) if each.repr}
    elif value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    else:
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    inside = ", ".join(f"{name}={describe(it)}" for name, it in arguments.items())
    return f"{type(value).__qualname__}({inside})"


def describe_log(log: Interactions) -> str:
    """Return the size and a digest of the interactions, as text."""
    parts = [log.offsets, log.ids, *([] if log.weights is None else [log.weights])]
    return f"{log.pairs} pairs of {log.items} items, {digest(*parts)}"


def digest(*parts: Tensor) -> str:
    """Return a short hash of the tensors."""
    total = hashlib.sha256()
    for part in parts:
        total.update(_raw(part.contiguous()))
    return total.hexdigest()[:16]


def partial_path(path: Path) -> Path:
    """Return the path a checkpoint is written to before it replaces the old one."""
    return path.with_name(f"{path.name}.partial")


def _raw(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _checksum(facts: dict[str, Any], tensors: dict[str, Tensor]) -> int:
    total = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(_raw(tensor), total)
    return total
