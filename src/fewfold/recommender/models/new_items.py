"""New items without training: tables extended by averages of similar items, logs merged."""

import numpy as np
import torch
from torch import Tensor, nn

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.anchored import AnchorVAE
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.reading.log import Log

__all__ = ["merged", "with_more_items"]

_NEIGHBOURS = 20


def with_more_items(model: FastVAE, more: FastVAE, log: Interactions) -> FastVAE:
    """Fill a network with the parameters of a model and rows for the items of `log` beyond its own.

    In every table the row of a new item n is the mean of the rows of its nearest known items j,
    weighted by cosine ``both(n, j) / sqrt(users(n) users(j))`` over the log.

    Args:
        model: a trained network.
        more: an untrained network of the same shape, whose tables are replaced.
        log: interactions with old and new items.
    """
    near, weights = _neighbours(log, model.count)
    if isinstance(model, AnchorVAE) and isinstance(more, AnchorVAE):
        more.take_grown(model, near, weights)
    else:
        more.inputs = nn.Parameter(_grown(model.inputs.detach(), near, weights))
        more.items = nn.Parameter(_grown(model.items.detach(), near, weights))
    rest = {name: value for name, value in model.state_dict().items()
            if name not in model.table_state()}  # fmt: skip
    more.load_state_dict({**more.table_state(), **rest})
    if model.shortcut is not None:
        table = _grown(model.shortcut.table, near, weights)
        scale = _grown(model.shortcut.scale.unsqueeze(1), near, weights).squeeze(1)
        scale = scale.where(scale > 0, 1.0)  # of an item without neighbours, whose row is zero
        more.shortcut = Shortcut(table, scale, model.shortcut.strength)
    return more


def _grown(table: Tensor, near: Tensor, weights: Tensor) -> Tensor:
    """Append a weighted mean of rows for each new item."""
    return torch.cat([table, (table[near] * weights.unsqueeze(2)).sum(1)])


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


def merged(
    users: Ids | None, history: Interactions | None, log: Log, number: Tensor, items: int
) -> tuple[Ids, Interactions]:
    """Merge a log into earlier users and histories; its items have these numbers among `items`."""
    row, ids = log.interactions.row, number[log.interactions.ids]
    if users is None or history is None:
        return log.users, Interactions.from_pairs(row, ids, shape=(len(log.users), items))
    who = users.find(log.users.tolist())
    new = (who < 0).nonzero().squeeze(1)
    who[new] = len(users) + torch.arange(len(new))
    everybody = users.extended(Ids.of(log.users.take(new))) if len(new) else users
    row, ids = torch.cat([history.row, who[row]]), torch.cat([history.ids, ids])
    return everybody, Interactions.from_pairs(row, ids, shape=(len(everybody), items))
