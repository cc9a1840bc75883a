"""Add the new items of a log to a fitted recommender without training."""

from dataclasses import replace

import torch
from torch import Tensor

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.reading.log import Log
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["with_items_of"]


def with_items_of(state: RecommenderState, log: Log) -> RecommenderState:
    """Return the recommender with the new items, users and histories of a log."""
    number = state.items.find(log.items.tolist())
    new = (number < 0).nonzero().squeeze(1)
    if len(new) == 0:
        raise ValueError("all items of this log are known; there is nothing to add")
    number[new] = len(state.items) + torch.arange(len(new))
    if log.items.textual != state.items.textual:
        kind = "text" if state.items.textual else "whole numbers"
        raise ValueError(f"the item ids are {kind}, those to add are not; convert them")
    items = state.items.extended(Ids.of(log.items.take(new)))
    users, history = _merged_users(state, log, number, len(items))
    size = {"users": len(users), "items": len(items), "pairs": history.pairs}
    attributes = state.attributes
    extended = replace(
        state,
        fitted=state.fitted.recipe.extended(state.fitted, history),
        items=items,
        trained_items=torch.cat([state.trained_items, torch.ones(len(new), dtype=torch.bool)]),
        attributes=None if attributes is None else attributes.extended(len(new)),
        data={**state.data, "after": size, "items added later": len(new)},
    )
    if state.history is None:  # saved without users
        return extended
    return replace(extended, users=users, history=history)


def _merged_users(
    state: RecommenderState, log: Log, number: Tensor, items: int
) -> tuple[Ids, Interactions]:
    """Merge a log into the users and histories; its items have these numbers among `items`."""
    row, ids = log.interactions.row, number[log.interactions.ids]
    users, history = state.users, state.history
    if users is None or history is None:
        return log.users, Interactions.from_pairs(row, ids, shape=(len(log.users), items))
    who = users.find(log.users.tolist())
    new = (who < 0).nonzero().squeeze(1)
    who[new] = len(users) + torch.arange(len(new))
    everybody = users.extended(Ids.of(log.users.take(new))) if len(new) else users
    row, ids = torch.cat([history.row, who[row]]), torch.cat([history.ids, ids])
    merged = Interactions.from_pairs(row, ids, shape=(len(everybody), items))
    return everybody, _with_dislikes(merged, history, log.interactions, who, number)


def _with_dislikes(
    merged: Interactions, history: Interactions, log: Interactions, who: Tensor, number: Tensor
) -> Interactions:
    """Add the dislikes of both, unless a pair is liked by now."""
    rows, items = [], []
    if history.dislikes is not None:
        rows.append(history.dislikes.row)
        items.append(history.dislikes.ids)
    if log.dislikes is not None:
        rows.append(who[log.dislikes.row])
        items.append(number[log.dislikes.ids])
    if not rows:
        return merged
    shape = (merged.users, merged.items)
    both = Interactions.from_pairs(torch.cat(rows), torch.cat(items), shape=shape)
    return merged.with_values(dislikes=both.keep(~both.jagged.isin(merged.jagged)))
