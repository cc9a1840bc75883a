"""New items without training: tables extended by averages of similar items."""

from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.models.fastvae.tables import append_means
from fewfold.recommender.models.nearest_items import nearest_known_items

__all__ = ["with_more_items"]


def with_more_items(model: FastVAE, log: Interactions) -> FastVAE:
    """Return the network with rows for the items of `log` beyond its own.

    In every table the row of a new item n is the mean of the rows of its nearest known items j,
    weighted by cosine ``both(n, j) / sqrt(users(n) users(j))`` over the log.

    Args:
        model: a trained network.
        log: interactions with old and new items.
    """
    near, weights = nearest_known_items(log, model.count)
    tables = model.tables.with_new_items(near, weights)
    more = model.with_tables(tables)
    if model.shortcut is not None:
        table = append_means(model.shortcut.table, near, weights)
        scale = append_means(model.shortcut.scale.unsqueeze(1), near, weights).squeeze(1)
        scale = scale.where(scale > 0, 1.0)  # of an item without neighbours, whose row is zero
        more.shortcut = Shortcut(table, scale, model.shortcut.strength)
    return more
