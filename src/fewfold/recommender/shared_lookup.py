"""Tables by which ids and histories of a large model are found, in files that processes share."""

from torch import Tensor

from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.shared_tensors import SharedTensors

__all__ = ["share_lookup"]


def share_lookup(state: RecommenderState, shared: SharedTensors) -> None:
    """Replace the tables of ids and the offsets of histories by mapped ones, if ids are many."""
    tables = {"items": state.items.hashes}
    if state.users is not None:
        tables["users"] = state.users.hashes
    indices = {name: index for name, index in tables.items() if index is not None}
    if not indices:
        return

    def build() -> dict[str, Tensor]:
        parts = {
            f"{name}.{part}": tensor
            for name, index in indices.items()
            for part, tensor in index.parts().items()
        }
        return parts if state.history is None else {**parts, "offsets": state.history.offsets}

    found = shared.tensors("lookup", build)
    for name, index in indices.items():
        index.replace(found[f"{name}.keys"], found[f"{name}.order"])
    if state.history is not None:
        state.history.replace_offsets(found["offsets"])
