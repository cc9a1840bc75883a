"""Nearest known items of items that are new to a model."""

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.interactions import Interactions

__all__ = ["nearest_known_items"]

_NEIGHBOURS = 20


def nearest_known_items(log: Interactions, old: int) -> tuple[Tensor, Tensor]:
    """Return the known items nearest to each new one, (new, neighbours), and weights that sum to 1.

    Nearness is the cosine ``both(n, j) / sqrt(users(n) users(j))`` over the log.

    Args:
        log: interactions with old and new items.
        old: number of known items; those from here on are new.
    """
    matrix = log.to_csr()
    counts = np.maximum(np.asarray(matrix.sum(0)).ravel(), 1)
    both = (matrix[:, old:].T @ matrix[:, :old]).tocsr()
    near = np.zeros((both.shape[0], _NEIGHBOURS), dtype=np.int64)
    weights = np.zeros(near.shape, dtype=np.float32)
    for item in range(both.shape[0]):
        mine = slice(both.indptr[item], both.indptr[item + 1])
        ids, similarity = both.indices[mine], both.data[mine]
        similarity = similarity / np.sqrt(counts[ids] * counts[old + item])
        best = np.argsort(-similarity, kind="stable")[:_NEIGHBOURS]
        near[item, : len(best)], weights[item, : len(best)] = ids[best], similarity[best]
    # An item without known neighbours has zero weights, hence zero rows.
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-12)
    return torch.from_numpy(near), torch.from_numpy(weights)
