"""Update a fitted recommender with a later log, without training."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold._resources import ResourceUsage, resource_usage
from fewfold.recommender.ids import Ids
from fewfold.recommender.merged_histories import Additions, merged_history
from fewfold.recommender.reading.log import Log
from fewfold.recommender.reading.summary import Size
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["UpdateReport", "updated_state"]

_SHOWN = 5  # ids named in a message


@dataclass(frozen=True)
class UpdateReport:
    """What an update added; printing it gives a summary.

    Attributes:
        model: name of the model.
        pairs: pairs of a user and an item that are new.
        users: users that are new.
        items: items that are new, and placed among the others.
        left_out: ids of new items that the model cannot place without training.
        unusable: users and items whose ids are not of the type of the model's.
        how: what became of the model itself, as a sentence.
        cost: time and memory.
    """

    model: str
    pairs: int
    users: int
    items: int
    left_out: list[Any] = field(default_factory=list)
    unusable: int = 0
    how: str = ""
    cost: ResourceUsage = field(default_factory=ResourceUsage)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "model": self.model, "pairs": self.pairs, "users": self.users, "items": self.items,
            "left out": self.left_out, "unusable": self.unusable, "how": self.how,
            "seconds": self.cost.seconds, "peak memory bytes": self.cost.memory,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"added: {Size(self.users, self.items, self.pairs)}",
            f"{self.model}: {self.how}; {self.cost}",
        ]
        if self.left_out:
            shown = ", ".join(map(str, self.left_out[:_SHOWN]))
            more = len(self.left_out) - _SHOWN
            lines.append(
                f"left out: {len(self.left_out):,} new items, which {self.model} cannot place "
                f"without training: {shown}{f' and {more:,} more' if more > 0 else ''}; "
                "fit it again to have them recommended"
            )
        if self.unusable:
            lines.append(f"left out: {self.unusable:,} ids that are not whole numbers, as others")
        return "\n".join(lines)


def updated_state(state: RecommenderState, log: Log) -> tuple[RecommenderState, UpdateReport]:
    """Return the recommender with the users, events and items of a later log, and what was added.

    Events of the log count as newer than those of the histories. Without stored histories only the
    items are added.
    """
    recipe = state.fitted.recipe
    with resource_usage() as cost, phase("updating the model"):
        number, new_items = _numbers(state.items, log.items)
        left_out: list[Any] = []
        if len(new_items) and not recipe.extendable:
            left_out = new_items
            number[number >= len(state.items)] = -1
            new_items = []
        items = state.items.extended(Ids.of(new_items)) if new_items else state.items
        who, new_users = _numbers(state.users or log.users, log.users)
        users = state.users or log.users
        if new_users:
            users = users.extended(Ids.of(new_users))
        before = state.history if state.users is not None else None
        shape = (len(users), len(items))
        history, added = merged_history(before, Additions(log.interactions, who, number), shape)
        if added.pairs == 0 and not new_items:
            fitted = state.fitted
        else:
            fitted = recipe.updated(state.fitted, history, added)
    size = {"users": len(users), "items": len(items), "pairs": history.pairs}
    if before is None:  # saved without users, who are not known now either
        size = {**state.data.get("after", {}), "items": len(items)}
    attributes, profiles = state.attributes, state.profiles
    found = replace(
        state,
        fitted=fitted,
        items=items,
        trained_items=torch.cat([state.trained_items, torch.ones(len(new_items)).bool()]),
        attributes=None if attributes is None else attributes.extended(len(new_items)),
        profiles=None if profiles is None else profiles.with_items(len(items)),
        data=_data(state, log, size, len(new_items), added.pairs),
    )
    if before is not None:
        found = replace(found, users=users, history=history)
    unusable = int((number < 0).sum()) - len(left_out) + int((who < 0).sum())
    known = recipe.update_note if added.pairs or new_items else "there is nothing new"
    return found, UpdateReport(
        recipe.name, added.pairs, len(new_users) if before is not None else 0, len(new_items),
        left_out, unusable, known, cost,
    )  # fmt: skip


def _numbers(known: Ids, ids: Ids) -> tuple[Tensor, list[Any]]:
    """Return numbers of ids among the known ones and then the new ones, and the new ones.

    An id that cannot be of the type of the known ones has the number -1.
    """
    listed = ids.tolist()
    number = known.find(listed)
    new: list[Any] = []
    for place in (number < 0).nonzero().squeeze(1).tolist():
        value = known.convert(listed[place])
        if value is not None:
            number[place] = len(known) + len(new)
            new.append(value)
    return number, new


def _data(
    state: RecommenderState, log: Log, size: dict[str, int], items: int, pairs: int
) -> dict[str, Any]:
    """Return the summary of the data with what was added later."""
    data = state.data
    newest = [one for one in (data.get("newest"), log.summary.newest) if one is not None]
    return {
        **data, "after": size, "newest": max(newest, default=None),
        "items added later": data.get("items added later", 0) + items,
        "pairs added later": data.get("pairs added later", 0) + pairs,
    }  # fmt: skip
