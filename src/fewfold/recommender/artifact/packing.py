"""Ids, attributes and histories as plain arrays, the way an artifact keeps them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._tensors import Spec
from fewfold.recommender.artifact.folder import Part
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions

__all__ = [
    "expect_items",
    "expect_users",
    "pack_items",
    "pack_users",
    "unpack_items",
    "unpack_users",
]

Arrays = Mapping[str, Any]
_ATTRIBUTE = re.compile(r"(attribute:([0-9]{3,}):(.*))\.(?:data|offsets)", re.DOTALL)


def pack_items(ids: Ids, attributes: Attributes | None) -> dict[str, Any]:
    """The ids of the items and what is attached to them."""
    arrays = _pack_ids(ids)
    for number, (name, column) in enumerate((attributes.columns if attributes else {}).items()):
        arrays |= _pack_texts(f"attribute:{number:03}:{name}", column)  # in their order
    return arrays


def expect_items(part: Part) -> int:
    """How many items a file has; raises unless its header is that of items."""
    count = _count(part)
    if count < 1:
        part.fail("ids", "must be at least one, got none")
    part.expect(_items_layout(part, count))
    _check_ends(part)
    return count


def unpack_items(part: Part) -> tuple[Ids, Attributes | None]:
    """What `pack_items` packed, of a file that is as `expect_items` wants it."""
    arrays = part.read()
    ids = _unpack_ids(part, arrays)
    columns: dict[str, Texts] = {}
    for stem, name in _columns(part).items():
        if name in columns:
            part.fail(stem, "is a column whose name comes twice")
        columns[name] = _unpack_texts(part, stem, arrays)
    return ids, Attributes(columns) if columns else None


def pack_users(ids: Ids, history: Interactions) -> dict[str, Any]:
    """The ids of the users and what each touched, two or four bytes a pair."""
    narrow = np.uint16 if _narrow(history.items) is torch.uint16 else np.uint32
    return {
        **_pack_ids(ids),
        "touched": history.ids.numpy().astype(narrow),
        "lengths": history.jagged.lengths.numpy().astype(np.uint32),
    }


def expect_users(part: Part, items: int) -> None:
    """Raise unless a header is that of users of so many items."""
    count = _count(part)
    part.expect(
        [
            *_ids_layout(part, count),
            ("touched", Spec((None,), _narrow(items), least=0, below=items)),
            ("lengths", Spec((count,), torch.uint32)),
        ]
    )
    _check_ends(part)
    lengths, touched = part.numbers("lengths", "<u4"), part.found["touched"][1][0]
    if int(lengths.sum(dtype=np.int64)) != touched:
        part.fail("lengths", f"must add up to {touched}, the length of touched")


def unpack_users(part: Part, items: int) -> tuple[Ids, Interactions]:
    """What `pack_users` packed, of a file that is as `expect_users` wants it."""
    arrays = part.read()
    ids = _unpack_ids(part, arrays)
    lengths = arrays["lengths"].to(torch.int64)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    try:
        return ids, Interactions(offsets, arrays["touched"].to(torch.int64), items)
    except ValueError as error:
        part.fail("touched", f"cannot be used: {error}")


def _narrow(items: int) -> torch.dtype:
    """Of numbers of items."""
    return torch.uint16 if items <= 2**16 else torch.uint32


def _count(part: Part) -> int:
    """How many ids there are, by the header."""
    name, more = ("ids", 0) if "ids" in part.found else ("ids.offsets", 1)
    if name not in part.found:
        part.fail("ids", "is missing")
    shape = part.found[name][1]
    return shape[0] - more if shape else -1


def _ids_layout(part: Part, count: int) -> Iterator[tuple[str, Spec]]:
    if "ids" in part.found:
        yield "ids", Spec((count,), torch.int64)
    else:
        yield from _texts_layout("ids", count)


def _texts_layout(name: str, count: int) -> Iterator[tuple[str, Spec]]:
    yield f"{name}.data", Spec((None,), torch.uint8)
    yield f"{name}.offsets", Spec((count + 1,), torch.int64, least=0)


def _items_layout(part: Part, count: int) -> Iterator[tuple[str, Spec]]:
    yield from _ids_layout(part, count)
    for stem in _columns(part):
        yield from _texts_layout(stem, count)


def _columns(part: Part) -> dict[str, str]:
    """The columns of attributes in their order: what they are called in the file and by people."""
    found = {(int(m[2]), m[1], m[3]) for m in map(_ATTRIBUTE.fullmatch, part.found) if m}
    return {stem: name for _, stem, name in sorted(found)}


def _check_ends(part: Part) -> None:
    """Raise unless texts end where their last offset says."""
    for name in part.found:
        if name.endswith(".offsets"):
            stem = name.removesuffix(".offsets")
            size = part.found[f"{stem}.data"][1][0]
            last = part.numbers(name, "<i8", last=True)
            if last.tolist() != [size]:
                part.fail(name, f"must end with {size}, got {last.tolist()}")


def _pack_ids(ids: Ids) -> dict[str, Any]:
    if isinstance(ids.values, Texts):
        return _pack_texts("ids", ids.values)
    return {"ids": ids.values}


def _unpack_ids(part: Part, arrays: Mapping[str, Tensor]) -> Ids:
    values = arrays["ids"].numpy() if "ids" in arrays else _unpack_texts(part, "ids", arrays)
    ids = Ids(values)
    if not ids.distinct():
        part.fail("ids", "must differ from each other, got one twice")
    return ids


def _pack_texts(name: str, texts: Texts) -> dict[str, Any]:
    return {f"{name}.data": texts.data, f"{name}.offsets": texts.offsets}


def _unpack_texts(part: Part, name: str, arrays: Mapping[str, Tensor]) -> Texts:
    texts = Texts(arrays[f"{name}.data"].numpy(), arrays[f"{name}.offsets"].numpy())
    fault = texts.fault()
    if fault is not None:
        part.fail(name, fault)
    return texts
