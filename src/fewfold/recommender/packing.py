"""Ids, attributes and histories as plain arrays, the way an artifact keeps them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.attributes import Attributes
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions

__all__ = ["pack_items", "pack_users", "unpack_items", "unpack_users"]

Arrays = Mapping[str, Any]
_ATTRIBUTE = "attribute:"


def pack_items(ids: Ids, attributes: Attributes | None) -> dict[str, Any]:
    """The ids of the items and what is attached to them."""
    arrays = _pack_ids(ids)
    for number, (name, column) in enumerate((attributes.columns if attributes else {}).items()):
        arrays |= _pack_texts(f"{_ATTRIBUTE}{number:03}:{name}", column)  # in their order
    return arrays


def unpack_items(arrays: Arrays) -> tuple[Ids, Attributes | None]:
    """What `pack_items` packed."""
    ids = _unpack_ids(arrays)
    names = [key for key in sorted(arrays) if key.startswith(_ATTRIBUTE)]
    names = [name.removesuffix(".data") for name in names if name.endswith(".data")]
    if not names:
        return ids, None
    columns = {name.split(":", 2)[-1]: _unpack_texts(name, arrays) for name in names}
    if any(len(column) != len(ids) for column in columns.values()):
        raise ArtifactError(f"attributes must have a row for each of {len(ids)} items")
    return ids, Attributes(columns)


def pack_users(ids: Ids, history: Interactions) -> dict[str, Any]:
    """The ids of the users and what each touched, two or four bytes a pair."""
    narrow = np.uint16 if history.items <= 2**16 else np.uint32
    return {
        **_pack_ids(ids),
        "touched": history.ids.numpy().astype(narrow),
        "lengths": history.jagged.lengths.numpy().astype(np.uint32),
    }


def unpack_users(arrays: Arrays, items: int) -> tuple[Ids, Interactions]:
    """What `pack_users` packed."""
    try:
        lengths = arrays["lengths"].to(torch.int64)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        history = Interactions(offsets, arrays["touched"].to(torch.int64), items)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"what users touched cannot be read: {error}") from error
    ids = _unpack_ids(arrays)
    if len(ids) != history.users:
        raise ArtifactError(f"there are {len(ids)} users but histories of {history.users}")
    return ids, history


def _pack_ids(ids: Ids) -> dict[str, Any]:
    if isinstance(ids.values, Texts):
        return _pack_texts("ids", ids.values)
    return {"ids": ids.values}


def _unpack_ids(arrays: Arrays) -> Ids:
    if "ids" not in arrays:
        return Ids(_unpack_texts("ids", arrays))
    return Ids(_checked(arrays["ids"], torch.int64).numpy())


def _pack_texts(name: str, texts: Texts) -> dict[str, Any]:
    return {f"{name}.data": texts.data, f"{name}.offsets": texts.offsets}


def _unpack_texts(name: str, arrays: Arrays) -> Texts:
    try:
        data = _checked(arrays[f"{name}.data"], torch.uint8)
        offsets = _checked(arrays[f"{name}.offsets"], torch.int64)
    except KeyError as error:
        raise ArtifactError(f"{error} is missing") from None
    ends = offsets[:1].tolist() == [0] and offsets[-1:].tolist() == [len(data)]
    if not ends or bool((offsets.diff() < 0).any()):
        raise ArtifactError(f"the texts of {name} do not fit their offsets")
    return Texts(data.numpy(), offsets.numpy())


def _checked(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype or tensor.dim() != 1:
        raise ArtifactError(f"expected a row of {dtype}, got {tensor.dtype} {tuple(tensor.shape)}")
    return tensor
