"""Tables of attributes of items and of users, as `Recommender.fit` takes them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fewfold._progress import phase
from fewfold.recommender.attributes import Attributes, read_attributes, read_catalogue
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.item_features import ItemFeatures, item_features
from fewfold.recommender.models.model import Model
from fewfold.recommender.reading.log import Log
from fewfold.recommender.user_profiles import UserProfiles

__all__ = ["ItemsTable", "ReadItems", "UsersTable"]


@dataclass(frozen=True, eq=False)
class ReadItems:
    """A table of items that was read, and the log with the items of both.

    Attributes:
        log: with the other items of the table at the end, if attributes are used.
        attributes: of all items of the log.
        known: number of items that have interactions.
        features: of the attributes, if they are used.
        required: whether items without interactions must be ranked.
    """

    log: Log
    attributes: Attributes
    known: int
    features: ItemFeatures | None = None
    required: bool = False

    def warmed(self, model: Model) -> Model:
        """Return the model to fit: with item features if attributes are used."""
        if self.features is None:
            return model
        return model.warmed(self.features.matrix, known=self.known, required=self.required)

    def first(self, items: int) -> "ReadItems":
        """Return the same with the first items alone, those that a model knows."""
        if items == len(self.log.items):
            return self
        log = replace(
            self.log,
            interactions=self.log.interactions.with_items(items),
            items=self.log.items.select(np.arange(items)),
        )
        return replace(self, log=log, attributes=self.attributes.first(items), features=None)


@dataclass(frozen=True, eq=False)
class ItemsTable:
    """A table of item attributes, such as names, for `Recommender.fit`.

    Attributes:
        source: CSV, TSV, JSON lines, Parquet, Feather or a frame.
        key: its column of item ids; None is the one with the most known items.
        use: whether to learn from the attributes: items of the table that have few interactions or
            none are ranked by what they are; see `Warm`. True needs a model with item vectors, and
            lets other items lose up to 5 % of their recall in validation; `Auto` then chooses among
            such models. None, the default, learns from them if the table has items that the log
            does not have and the model has item vectors, as far as other items lose nothing. False
            only shows the attributes, in every recommendation. Learning from them fits the model
            twice.

    Example:
        >>> import fewfold as ff
        >>> log = {"user": [1, 1, 2, 2], "item": [10, 20, 10, 20]}
        >>> table = {"sku": [10, 20], "name": ["tea", "milk"]}
        >>> named = ff.recommender.ItemsTable(table, key="sku")
        >>> rec = ff.Recommender(ff.recommender.EASE(1.0)).fit(log, items_table=named)
        >>> rec.recommend_from_history([10], k=1).attributes
        [{'name': 'milk'}]
    """

    source: Any
    key: str | None = None
    use: bool | None = None

    @classmethod
    def of(cls, table: Any) -> "ItemsTable | None":
        """Wrap a source in an `ItemsTable`; None and an `ItemsTable` are returned unchanged."""
        return table if table is None or isinstance(table, ItemsTable) else cls(table)

    def read(self, log: Log, model: Model) -> ReadItems:
        """Return the table, and the log with its other items if attributes are used."""
        known = len(log.items)
        with phase("reading the items table"):
            if self.use is False or (self.use is None and not model.completable):
                return ReadItems(log, read_attributes(self.source, log.items, self.key), known)
            items, attributes = read_catalogue(self.source, log.items, self.key)
        plain = ReadItems(log, attributes.first(known), known)
        if self.use is None and len(items) == known:
            return plain
        features = item_features(attributes)
        if features.matrix.shape[1] == 0:
            if self.use is None:
                return plain
            raise ValueError(
                "the items table says nothing that two items share, so that attributes cannot be "
                "used; add columns, or leave out use=True (--use-attributes)"
            )
        pairs = log.interactions.with_items(len(items))
        whole = replace(log, interactions=pairs, items=items)
        return ReadItems(whole, attributes, known, features, self.use is True)


@dataclass(frozen=True, eq=False)
class UsersTable:
    """A table of user attributes, such as age or country, for `Recommender.fit`.

    Users of the table without interactions, and new ones whose attributes are known, then get what
    users with the same attributes like; see `UserProfiles`.

    Attributes:
        source: CSV, TSV, JSON lines, Parquet, Feather or a frame.
        key: its column of user ids; None is the one with the most known users.
    """

    source: Any
    key: str | None = None

    @classmethod
    def of(cls, table: Any) -> "UsersTable | None":
        """Return a `UsersTable` of this source; None and one that is given stay as they are."""
        return table if table is None or isinstance(table, UsersTable) else cls(table)

    def profiles(self, log: Log, train: Interactions, *, seed: int) -> UserProfiles:
        """Learn from the table.

        Args:
            log: whose users are known.
            train: its interactions that may be learned from.
            seed: of validation.
        """
        with phase("reading the users table"):
            users, attributes = read_catalogue(self.source, log.users, self.key, role="user")
        found = UserProfiles.fit(train, attributes, seed=seed)
        others = np.arange(len(log.users), len(users))
        columns = attributes.columns
        rows = [
            column.codes([columns[column.name][int(number)] for number in others])
            for column in found.settings.columns
        ]
        codes = torch.from_numpy(np.stack(rows, 1))
        return replace(found, ids=users.select(others), codes=codes)
