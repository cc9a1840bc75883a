"""What the API tells about a model beside rankings: searches, counts and descriptions.

Everything is computed when it is first needed, once per snapshot.
"""

import threading
from collections import Counter
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.inspect_model import describe_anchors
from fewfold.recommender.saved_model import model_as_json
from fewfold.serve.live_model import Snapshot
from fewfold.serve.schemas import (
    Anchor,
    AnchorItem,
    AnchorsAnswer,
    ListedItem,
    ListedUser,
    ModelAnswer,
)
from fewfold.serve.text_search import TextSearch

__all__ = ["ModelView"]

_VALUES = 50  # most frequent values of an attribute that are listed
_TOP = 10  # items of an anchor that are listed


class ModelView:
    """Descriptions and searches of one snapshot.

    Args:
        snapshot: the model.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._state = snapshot, snapshot.state
        self._building = threading.Lock()  # one thread builds, the others wait for the result

    def attributes(self, number: int) -> dict[str, str]:
        """Return the attributes of an item."""
        found = self._state.attributes
        return {} if found is None else found[number]

    @cached_property
    def _item_counts(self) -> np.ndarray | None:
        history = self._state.history
        return None if history is None else history.counts().numpy()

    def item_users(self, number: int) -> int | None:
        """Return how many users of the log have an item; None if the users were not saved."""
        counts = self._item_counts
        if counts is None:
            return None
        return int(counts[number]) if number < len(counts) else 0

    @cached_property
    def _item_search(self) -> TextSearch:
        count = len(self._state.items)
        columns = [_texts(self._state.items), *self._name_columns()]
        counts = self._item_counts
        if counts is None:
            return TextSearch(columns, range(count))
        users = np.zeros(count, dtype=np.int64)
        users[: len(counts)] = counts
        return TextSearch(columns, np.argsort(-users, kind="stable"))

    def _name_columns(self) -> list[list[str]]:
        """Return the columns of attributes that tell items apart, such as titles."""
        found = []
        for column in (self._state.attributes.columns if self._state.attributes else {}).values():
            texts = column.tolist()
            given = [text for text in texts if text]
            if 2 * len(set(given)) > len(given):
                found.append(texts)
        return found

    @cached_property
    def _user_search(self) -> TextSearch | None:
        users, history = self._state.users, self._state.history
        if users is None or history is None:
            return None
        lengths = history.jagged.lengths.numpy()
        return TextSearch([_texts(users)], np.argsort(-lengths, kind="stable"))

    def find_items(self, search: str, limit: int) -> list[ListedItem]:
        """Return items by a part of their id or name, the popular ones first."""
        with self._building:
            index = self._item_search
        return [
            ListedItem(self._state.items[one], self.attributes(one), self.item_users(one))
            for one in index.find(search, limit)
        ]

    def find_users(self, search: str, limit: int) -> list[ListedUser] | None:
        """Return users by a part of their id, those with most items first; None without users."""
        with self._building:
            index = self._user_search
        users, history = self._state.users, self._state.history
        if index is None or users is None or history is None:
            return None
        found = index.find(search, limit)
        counts = history.jagged.lengths[found].tolist() if found else []
        return [ListedUser(users[one], n) for one, n in zip(found, counts, strict=True)]

    def anchors(self) -> AnchorsAnswer | None:
        """Return what each anchor of the model groups; None for a model without anchors."""
        with self._building:
            return self._anchors

    @cached_property
    def _anchors(self) -> AnchorsAnswer | None:
        found = describe_anchors(self._snapshot.recommender)
        if found is None:
            return None
        ids = self._state.items
        groups = [
            Anchor(
                group.anchor,
                group.objects,
                next(iter(group.labels), None),
                [AnchorItem(ids[one.id], one.weight) for one in group.members[:_TOP]],
            )
            for group in found.groups
        ]
        stored = sum(
            tensor.nbytes
            for name, tensor in self._state.fitted.state().items()
            if name.startswith("table.")
        )
        sizes = {"dense bytes": 4 * found.rows * found.dim, "anchored bytes": stored}
        return AnchorsAnswer(groups, sizes, self._snapshot.version)

    def description(self, *, journal: bool) -> ModelAnswer:
        """Return the answer of `GET /v1/model`."""
        with self._building:
            attributes = self._attribute_values
        state, snapshot = self._state, self._snapshot
        settings = model_as_json(state.fitted.recipe)
        evaluation = state.evaluation
        metrics = evaluation.as_dict() if isinstance(evaluation, Evaluation) else evaluation
        learned = state.learned_from
        users = None if state.users is None else len(state.users)
        return ModelAnswer(
            model=snapshot.version,
            loaded=snapshot.loaded.isoformat(),
            kind=settings.pop("kind"),
            settings=settings,
            card=snapshot.card,
            metrics=metrics or {},
            sizes=dict(snapshot.sizes),
            data=state.data,
            choice=None if state.choice is None else state.choice.as_dict(),
            comparison=state.comparison,
            curve=[asdict(point) for point in state.curve] or None,
            attributes=attributes,
            counts={
                "users": learned.get("users") if users is None else users,
                "items": len(state.items),
                "pairs": learned.get("pairs") if state.history is None else state.history.pairs,
            },
            has={
                "users": users is not None,
                "anchors": state.fitted.recipe.without_anchors() is not None,
                "journal": journal,
                "explain": True,
            },
        )

    @cached_property
    def _attribute_values(self) -> dict[str, dict[str, Any]]:
        columns = self._state.attributes.columns if self._state.attributes else {}
        return {name: _described(column) for name, column in columns.items()}


def _texts(ids: Ids) -> list[str]:
    return list(map(str, ids.tolist()))


def _described(column: Texts) -> dict[str, Any]:
    """Return the range of a column of numbers, or the most frequent values of another one."""
    counts = Counter(text for text in column.tolist() if text)
    try:
        numbers = [float(text) for text in counts]
    except ValueError:
        numbers = []
    if len(numbers) > 2 and np.isfinite(numbers).all():
        return {"min": min(numbers), "max": max(numbers)}
    return {"values": [text for text, _ in counts.most_common(_VALUES)]}
