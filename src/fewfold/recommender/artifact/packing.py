"""Convert ids, attributes and histories to and from the tensors of an artifact."""

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
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.stored_interactions import StoredInteractions

__all__ = [
    "check_ends",
    "count_ids",
    "expect_items",
    "expect_users",
    "ids_layout",
    "pack_ids",
    "pack_items",
    "pack_users",
    "unpack_ids",
    "unpack_items",
    "unpack_users",
]

Arrays = Mapping[str, Any]
_ATTRIBUTE = re.compile(r"(attribute:([0-9]{3,}):(.*))\.(?:data|offsets)", re.DOTALL)


def pack_items(ids: Ids, attributes: Attributes | None) -> dict[str, Any]:
    """Pack item ids and attributes into arrays."""
    arrays = pack_ids(ids)
    for number, (name, column) in enumerate((attributes.columns if attributes else {}).items()):
        arrays |= _pack_texts(f"attribute:{number:03}:{name}", column)  # keeps the order
    return arrays


def expect_items(part: Part) -> int:
    """Return the number of items; raise unless the header is that of an items file."""
    count = count_ids(part)
    if count < 1:
        part.fail("ids", "must be at least one, got none")
    part.expect(_items_layout(part, count))
    check_ends(part)
    return count


def unpack_items(part: Part) -> tuple[Ids, Attributes | None]:
    """Unpack item ids and attributes from a file validated by `expect_items`."""
    arrays = part.read()
    ids = unpack_ids(part, arrays)
    columns: dict[str, Texts] = {}
    for stem, name in _columns(part).items():
        if name in columns:
            part.fail(stem, "is a column whose name comes twice")
        columns[name] = _unpack_texts(part, stem, arrays)
    return ids, Attributes(columns) if columns else None


def pack_users(ids: Ids, history: Interactions) -> dict[str, Any]:
    """Pack user ids and histories, with two or four bytes per pair.

    If times are known, their order within each user is kept, with one, two or four bytes per pair.
    """
    dtype = np.uint16 if _item_dtype(history.items) is torch.uint16 else np.uint32
    order: dict[str, Any] = {}
    if history.times is not None:
        ranks = history.time_ranks().numpy()
        order["order"] = ranks.astype(np.min_scalar_type(ranks.max(initial=0)))
    return {
        **pack_ids(ids),
        "touched": history.ids.numpy().astype(dtype),
        "lengths": history.jagged.lengths.numpy().astype(np.uint32),
        **order,
        **_pack_dislikes(history.disliked, dtype),
    }


def _pack_dislikes(dislikes: Jagged | None, dtype: Any) -> dict[str, Any]:
    if dislikes is None:
        return {}
    return {
        "disliked": dislikes.values.numpy().astype(dtype),
        "disliked_lengths": dislikes.lengths.numpy().astype(np.uint32),
    }


def expect_users(part: Part, items: int) -> None:
    """Raise unless the header is that of a users file for `items` items."""
    count = count_ids(part)
    layout = [
        *ids_layout(part, count),
        ("touched", Spec((None,), _item_dtype(items), least=0, below=items)),
        ("lengths", Spec((count,), torch.uint32)),
    ]
    if "order" in part.found:  # of logs with times; older folders have none
        layout.append(("order", Spec((None,), (torch.uint8, torch.uint16, torch.uint32))))
    disliked = "disliked" in part.found or "disliked_lengths" in part.found
    if disliked:  # of logs with ratings below the threshold
        layout.append(("disliked", Spec((None,), _item_dtype(items), least=0, below=items)))
        layout.append(("disliked_lengths", Spec((count,), torch.uint32)))
    part.expect(layout)
    check_ends(part)
    touched = part.found["touched"][1][0]
    if "order" in part.found and part.found["order"][1] != (touched,):
        part.fail("order", f"must have {touched} numbers, one for each of touched")
    _check_lengths(part, "lengths", "touched")
    if disliked:
        _check_lengths(part, "disliked_lengths", "disliked")


def _check_lengths(part: Part, lengths: str, values: str) -> None:
    """Raise unless the lengths of the rows add up to the number of values."""
    count = part.found[values][1][0]
    if int(part.numbers(lengths, "<u4").sum(dtype=np.int64)) != count:
        part.fail(lengths, f"must add up to {count}, the length of {values}")


def unpack_users(part: Part, items: int) -> tuple[Ids, Interactions]:
    """Unpack user ids and histories from a file validated by `expect_users`.

    Times are ranks within each user: 0 is the oldest, and equal times have equal ranks.
    """
    arrays = part.read()
    ids = unpack_ids(part, arrays)
    dislikes = None
    if "disliked" in arrays:
        dislikes = _unpack_rows(part, arrays, "disliked", "disliked_lengths", items)
    order = arrays.get("order")
    return ids, _unpack_rows(part, arrays, "touched", "lengths", items, order, dislikes)


def _unpack_rows(
    part: Part, arrays: Mapping[str, Tensor], values: str, lengths: str, items: int, *more: Any
) -> StoredInteractions:
    """Return the items of each user, with this order and these dislikes."""
    try:
        return StoredInteractions(arrays[values], arrays[lengths], items, *more)
    except ValueError as error:
        part.fail(values, f"cannot be used: {error}")


def _item_dtype(items: int) -> torch.dtype:
    """Return the dtype of item numbers."""
    return torch.uint16 if items <= 2**16 else torch.uint32


def count_ids(part: Part) -> int:
    """Return the number of ids, by the header."""
    name, more = ("ids", 0) if "ids" in part.found else ("ids.offsets", 1)
    if name not in part.found:
        part.fail("ids", "is missing")
    shape = part.found[name][1]
    return shape[0] - more if shape else -1


def ids_layout(part: Part, count: int) -> Iterator[tuple[str, Spec]]:
    """Yield the specifications of the ids."""
    if "ids" in part.found:
        yield "ids", Spec((count,), torch.int64)
    else:
        yield from _texts_layout("ids", count)


def _texts_layout(name: str, count: int) -> Iterator[tuple[str, Spec]]:
    yield f"{name}.data", Spec((None,), torch.uint8)
    yield f"{name}.offsets", Spec((count + 1,), torch.int64, least=0)


def _items_layout(part: Part, count: int) -> Iterator[tuple[str, Spec]]:
    yield from ids_layout(part, count)
    for stem in _columns(part):
        yield from _texts_layout(stem, count)


def _columns(part: Part) -> dict[str, str]:
    """Return the attribute columns in order, from the tensor name to the column name."""
    found = {(int(m[2]), m[1], m[3]) for m in map(_ATTRIBUTE.fullmatch, part.found) if m}
    return {stem: name for _, stem, name in sorted(found)}


def check_ends(part: Part) -> None:
    """Raise unless the last offset of each text column equals its length."""
    for name in part.found:
        if name.endswith(".offsets"):
            stem = name.removesuffix(".offsets")
            size = part.found[f"{stem}.data"][1][0]
            last = part.numbers(name, "<i8", last=True)
            if last.tolist() != [size]:
                part.fail(name, f"must end with {size}, got {last.tolist()}")


def pack_ids(ids: Ids) -> dict[str, Any]:
    """Pack ids into arrays."""
    if isinstance(ids.values, Texts):
        return _pack_texts("ids", ids.values)
    return {"ids": ids.values}


def unpack_ids(part: Part, arrays: Mapping[str, Tensor]) -> Ids:
    """Unpack ids; they must differ."""
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
