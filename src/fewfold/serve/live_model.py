"""A model folder that is served: its snapshots, its journal, and queries that combine them."""

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewfold._resources import release_freed_memory
from fewfold.recommender.artifact.folder import (
    CARD,
    MANIFEST,
    Folder,
    open_artifact,
    read_consistently,
)
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.ids import Id
from fewfold.recommender.journal import Event, Journal
from fewfold.recommender.queries import Queries
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.recommender import Recommender
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.shared_lookup import share_lookup
from fewfold.recommender.shared_tensors import SharedTensors
from fewfold.serve.live_queries import LiveQueries
from fewfold.serve.self_check import self_check
from fewfold.serve.user_events import UserEvents

__all__ = ["LiveModel", "Request", "Snapshot"]


class Request(NamedTuple):
    """Whom to recommend to: a user by id, or somebody with a history.

    Attributes:
        user: id of a user of the log, the journal or the users table.
        history: item ids, oldest first; if it is given, `user` is only a name.
    """

    user: Id | None = None
    history: Sequence[Id] | None = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A loaded model, which never changes.

    Attributes:
        recommender: the recommender.
        version: first 16 hexadecimal digits of the SHA-256 of its `manifest.json`.
        folder: where it was read from.
        loaded: when, in UTC.
        search: approximate search over its items, if one was asked for.
        card: the model card.
        sizes: bytes of each file of the folder.
    """

    recommender: Recommender
    version: str
    folder: Path
    loaded: datetime
    search: Search | None
    card: str = field(repr=False)
    sizes: Mapping[str, int] = field(repr=False)
    _queries: LiveQueries = field(repr=False)

    @property
    def state(self) -> RecommenderState:
        """What `recommend` and `similar_items` take."""
        return self.recommender.state


class LiveModel:
    """The model of a folder that may be replaced at any time, with the events of a journal.

    A batch of queries uses one snapshot from start to end: take `current` once and pass it on. A
    snapshot that has been replaced is freed with its last user.

    Args:
        folder: the model folder.
        journal: events that count in the histories of its users; those of all processes do.
        recall: build an approximate search with this recall; None ranks exactly.
        prepare: build what makes rankings of single users faster; see `Recommender.prepare`.
        shared: keep what is computed from the weights in files beside the folder, which all
            processes that serve it map; see `SharedTensors`.

    Attributes:
        current: the snapshot that answers.
        not_shared: why processes do not share what is computed, if they were to; otherwise None.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        journal: Journal | None = None,
        recall: float | None = None,
        prepare: bool = True,
        shared: bool = False,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.journal = journal
        self._recall, self._prepare, self._shared = recall, prepare, shared
        self.not_shared: str | None = None
        self._events = UserEvents()
        self._ingesting, self._loading = threading.Lock(), threading.Lock()
        self._seen: tuple[int, ...] | None = None  # identity of the manifest of the last attempt
        self.current = self._load()
        self._ingest()

    @property
    def events(self) -> int:
        """Number of different events of the journal."""
        return len(self._events)

    def changed(self) -> bool:
        """Return whether the folder holds another model than at the last attempt to load it."""
        identity = _identity(self.folder / MANIFEST)
        if identity is None or identity == self._seen:
            return False
        try:
            version = _version(self.folder)
        except OSError:  # it is being replaced
            return False
        if version == self.current.version:  # touched or copied
            self._seen = identity
            return False
        return True

    def reload(self) -> Snapshot:
        """Load the model in the folder, check its answers, and let it take over.

        If it cannot be loaded or its answers are wrong, an `ArtifactError` says why, and the
        current one stays. If it is the current one, nothing is loaded.
        """
        with self._loading:
            self._seen = _identity(self.folder / MANIFEST)
            if self._same():
                return self.current
            self.current = self._load()
            return self.current

    def _same(self) -> bool:
        try:
            return _version(self.folder) == self.current.version
        except OSError:  # missing or being replaced, which loading reports or waits for
            return False

    def _load(self) -> Snapshot:
        def read(root: Path) -> tuple[tuple[int, ...] | None, str, Folder, str, Recommender]:
            folder = open_artifact(root)  # reports a missing or damaged manifest
            recommender = Recommender.opened(folder)
            return _identity(root / MANIFEST), _version(root), folder, _card(root), recommender

        self._seen, version, files, card, recommender = read_consistently(self.folder, read)
        try:
            search = self._prepare_ranking(recommender, version)
            queries = LiveQueries(recommender.state, self._events)
            self_check(recommender.state, search)
        except ValueError as error:
            raise ArtifactError(f"{self.folder} cannot be served: {error}") from error
        release_freed_memory()
        now = datetime.now(UTC)
        return Snapshot(recommender, version, self.folder, now, search, card, files.sizes, queries)

    def _prepare_ranking(self, recommender: Recommender, version: str) -> Search | None:
        """Compute what rankings need, in files that processes share if they are to."""
        self.not_shared = None
        if self._shared:
            try:
                return self._share_ranking(recommender, SharedTensors(self.folder, version))
            except OSError as error:  # a folder that cannot be written, a full disk
                self.not_shared = str(error)
        if self._prepare:
            recommender.prepare()
        return None if self._recall is None else recommender.index(recall=self._recall)

    def _share_ranking(self, recommender: Recommender, files: SharedTensors) -> Search | None:
        share_lookup(recommender.state, files)
        if self._prepare:
            recommender.fitted.prepare(files)
        if self._recall is None:
            return None
        return Search.mapped(recommender.fitted, recommender.history, files, recall=self._recall)

    def knows(self, snapshot: Snapshot, user: Id) -> bool:
        """Return whether a user has a history, events or attributes to recommend from."""
        self._ingest()
        return snapshot._queries.knows(user)

    def queries(self, snapshot: Snapshot, requests: Sequence[Request]) -> Queries:
        """Return the histories to rank for: those of the model, continued by the journal.

        The history of somebody unknown is empty.
        """
        self._ingest()
        return snapshot._queries.build(requests)

    def history(self, snapshot: Snapshot, user: Id) -> list[tuple[Id, str]]:
        """Return the items of a user and where each is from: "log" or "feedback"."""
        self._ingest()
        return snapshot._queries.history(user)

    def append(self, events: Sequence[Event]) -> None:
        """Append events to the journal; they are on disk, and count, when this returns."""
        if self.journal is None:
            raise ValueError("there is no journal to append events to; serve with one")
        self.journal.append(events)

    def unknown_items(self, snapshot: Snapshot, items: Iterable[Id]) -> list[Id]:
        """Return the ids that the model does not know, each once."""
        different = list(dict.fromkeys(items))
        numbers = snapshot.state.items.find(different).numpy()
        return [different[place] for place in np.flatnonzero(numbers < 0).tolist()]

    def _ingest(self) -> None:
        """Add what was appended to the journal, by any process."""
        if self.journal is not None:
            with self._ingesting:
                for events in self.journal.new_batches():
                    self._events.add(events)


def _card(folder: Path) -> str:
    file = folder / CARD
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _version(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16]


def _identity(file: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
