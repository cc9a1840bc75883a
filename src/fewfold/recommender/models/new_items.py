"""New items without training: tables extended by averages of similar items."""

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.models.fastvae.tables import append_means

__all__ = ["with_more_items"]

_NEIGHBOURS = 20


def with_more_items(model: FastVAE, log: Interactions) -> FastVAE:
    """Return the network with rows for the items of `log` beyond its own.

    In every table the row of a new item n is the mean of the rows of its nearest known items j,
    weighted by cosine ``both(n, j) / sqrt(users(n) users(j))`` over the log.

    Args:
        model: a trained network.
        log: interactions with old and new items.
    """
    near, weights = _neighbours(log, model.count)
    tables = model.tables.with_new_items(near, weights)
    more = FastVAE(tables, layers=len(model.layers.layers))
    more.load_encoder_state(model.encoder_state())
    if model.shortcut is not None:
        table = append_means(model.shortcut.table, near, weights)
        scale = append_means(model.shortcut.scale.unsqueeze(1), near, weights).squeeze(1)
        scale = scale.where(scale > 0, 1.0)  # of an item without neighbours, whose row is zero
        more.shortcut = Shortcut(table, scale, model.shortcut.strength)
    return more


def _neighbours(log: Interactions, old: int) -> tuple[Tensor, Tensor]:
    """(new, neighbours) the known items nearest to each new one, and weights that sum to one."""
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
