"""Convert profiles of users to and from the tensors of an artifact."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fewfold._tensors import Spec
from fewfold.recommender.artifact.folder import Part
from fewfold.recommender.artifact.packing import (
    check_ends,
    count_ids,
    ids_layout,
    pack_ids,
    unpack_ids,
)
from fewfold.recommender.user_profiles import ProfileSettings, UserProfiles

__all__ = ["expect_profiles", "pack_profiles", "unpack_profiles"]


def pack_profiles(profiles: UserProfiles, *, users: bool) -> dict[str, Any]:
    """Convert user profiles to tensors; users without interactions are included on request."""
    counts = profiles.counts
    arrays = {
        "popularity": profiles.popularity,
        "starts": counts.indptr.astype(np.int64),
        "liked": counts.indices.astype(np.int32),
        "counts": counts.data.astype(np.float32),
    }
    if users and profiles.ids is not None and profiles.codes is not None:
        arrays |= {**pack_ids(profiles.ids), "codes": profiles.codes.to(torch.int32)}
    return arrays


def expect_profiles(part: Part, settings: ProfileSettings, items: int) -> None:
    """Raise unless the header is that of a profiles file for these settings."""
    part.expect(_layout(part, settings, items))
    check_ends(part)


def _layout(part: Part, settings: ProfileSettings, items: int) -> Iterator[tuple[str, Spec]]:
    values = sum(column.size for column in settings.columns)
    entries = part.found["liked"][1][:1] if "liked" in part.found else (0,)
    yield "popularity", Spec((items,), least=0)
    yield "starts", Spec((values + 1,), torch.int64, least=0)
    yield "liked", Spec((None,), torch.int32, least=0, below=items)
    yield "counts", Spec(entries, least=0)
    if "codes" in part.found:
        count = count_ids(part)
        yield from ids_layout(part, count)
        yield "codes", Spec((count, len(settings.columns)), torch.int32, least=-1)


def unpack_profiles(part: Part, settings: ProfileSettings, items: int) -> UserProfiles:
    """Unpack profiles from a file validated by `expect_profiles`."""
    from scipy.sparse import csr_array

    arrays = part.read()
    starts, liked = arrays["starts"], arrays["liked"]
    if int(starts[0]) != 0 or int(starts[-1]) != len(liked) or bool((starts.diff() < 0).any()):
        part.fail("starts", f"must rise from 0 to {len(liked)}, the length of liked")
    shape = (len(starts) - 1, items)
    counts = csr_array((arrays["counts"].numpy(), liked.numpy(), starts.numpy()), shape=shape)
    if "codes" not in arrays:
        return UserProfiles(settings, arrays["popularity"], counts)
    sizes = torch.tensor([column.size for column in settings.columns])
    if bool((arrays["codes"] >= sizes).any()):
        part.fail("codes", "must be below the number of values of their columns")
    ids = unpack_ids(part, arrays)
    return UserProfiles(settings, arrays["popularity"], counts, ids, arrays["codes"])
