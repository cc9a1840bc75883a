"""Item vectors and their quantised copy in files that processes share."""

import contextlib
from typing import Any

from torch import Tensor

from fewfold.recommender.ranking.catalogue import Catalogue
from fewfold.recommender.shared_tensors import SharedTensors

__all__ = ["share_directions", "share_ranking"]


def share_ranking(fitted: Any, shared: SharedTensors) -> Catalogue:
    """Return a catalogue of mapped tensors, and replace the item vectors by mapped ones.

    Args:
        fitted: a fitted model whose `vectors` are a cached property.
        shared: files of this model.
    """

    def build() -> dict[str, Tensor]:
        parts = Catalogue(fitted.vectors).parts()
        places = {tensor.data_ptr() for tensor in fitted.state().values()}
        if fitted.vectors.data_ptr() not in places:  # computed, not a tensor of the model
            parts["vectors"] = fitted.vectors
        return parts

    parts = shared.tensors("ranking", build)
    if "vectors" in parts:
        vars(fitted)["vectors"] = parts.pop("vectors")
    return Catalogue.of_parts(fitted.vectors, parts)


def share_directions(fitted: Any, shared: SharedTensors | None) -> Tensor:
    """Return the directions of the items, mapped if they are shared; see `similar`."""
    with contextlib.suppress(OSError):  # a full disk
        if shared is not None:
            found = shared.tensors("directions", lambda: {"directions": fitted.normalised()})
            return found["directions"]
    computed: Tensor = fitted.normalised()
    return computed
