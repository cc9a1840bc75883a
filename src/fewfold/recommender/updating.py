"""Update a fitted recommender with a later log, without training."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold._resources import ResourceUsage, resource_usage
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
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
    before = None if state.users is None else state.history
    with resource_usage() as cost, phase("updating the model"):
        names = _names(state, log)
        history, added = merged_history(before, names.additions, names.shape)
        fitted = state.fitted
        if added.pairs:
            fitted = recipe.updated(fitted, history, added)
    found = replace(
        state,
        fitted=fitted,
        items=names.items,
        trained_items=torch.cat([state.trained_items, torch.ones(names.new_items).bool()]),
        attributes=state.attributes and state.attributes.extended(names.new_items),
        profiles=state.profiles and state.profiles.with_items(len(names.items)),
        data=_data(state, log, names, history if before is not None else None, added.pairs),
    )
    if before is not None:
        found = replace(found, users=names.users, history=history)
    return found, UpdateReport(
        recipe.name, added.pairs, names.new_users if before is not None else 0, names.new_items,
        names.left_out, names.unusable,
        recipe.update_note if added.pairs else "there is nothing new", cost,
    )  # fmt: skip


class _Names(NamedTuple):
    """Users and items of a model, continued by those of a log, and the log by their numbers."""

    users: Ids
    items: Ids
    additions: Additions
    new_users: int
    new_items: int
    left_out: list[Any]
    unusable: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.users), len(self.items)


def _names(state: RecommenderState, log: Log) -> _Names:
    """Number the users and items of a log; those without a pair that counts are left out."""
    extendable, pairs = state.fitted.recipe.extendable, log.interactions
    before = log.users if state.users is None else state.users
    users, items = _Numbers.of(before, log.users), _Numbers.of(state.items, log.items)
    counted = items.possible if extendable else items.number >= 0
    both = users.possible[pairs.row] & counted[pairs.ids]
    who, everybody = users.extended(torch.bincount(pairs.row[both], minlength=pairs.users) > 0)
    what, everything = items.extended(torch.bincount(pairs.ids[both], minlength=pairs.items) > 0)
    left_out = items.possible & ~counted
    unusable = int((~users.possible).sum()) + int((~items.possible).sum())
    return _Names(
        everybody, everything, Additions(pairs, who, what), len(everybody) - len(before),
        len(everything) - len(state.items), log.items.take(left_out.nonzero().squeeze(1)), unusable,
    )  # fmt: skip


class _Numbers(NamedTuple):
    """Ids of a log among those of a model.

    Attributes:
        known: ids of the model.
        ids: ids of the log as ids of the model's type, None where that is impossible.
        number: (ids,) their numbers, -1 for those that are new.
        possible: (ids,) whether they can be ids of the model.
    """

    known: Ids
    ids: list[Any]
    number: Tensor
    possible: Tensor

    @classmethod
    def of(cls, known: Ids, ids: Ids) -> "_Numbers":
        listed = [known.convert(one) for one in ids.tolist()]
        possible = torch.tensor([one is not None for one in listed], dtype=torch.bool)
        return cls(known, listed, known.find(listed), possible)

    def extended(self, wanted: Tensor) -> tuple[Tensor, Ids]:
        """Return the numbers of the ids, -1 for those new ones that are not wanted, and all ids."""
        new = ((self.number < 0) & wanted).nonzero().squeeze(1)
        if len(new) == 0:
            return self.number, self.known
        number = self.number.clone()
        number[new] = len(self.known) + torch.arange(len(new))
        more = Ids.of([self.ids[place] for place in new.tolist()])
        return number, self.known.extended(more)


def _data(
    state: RecommenderState, log: Log, names: _Names, history: Interactions | None, pairs: int
) -> dict[str, Any]:
    """Return the summary of the data with what was added later; None for unknown histories."""
    data = state.data
    newest = [one for one in (data.get("newest"), log.summary.newest) if one is not None]
    size = {**data.get("after", {}), "items": len(names.items)}
    if history is not None:
        size |= {"users": history.users, "pairs": history.pairs}
    return {
        **data, "after": size, "newest": max(newest, default=None),
        "items added later": data.get("items added later", 0) + names.new_items,
        "pairs added later": data.get("pairs added later", 0) + pairs,
    }  # fmt: skip
