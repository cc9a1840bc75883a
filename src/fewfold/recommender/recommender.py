"""The recommender: a log in, recommendations out, and a folder to ship it in."""

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from fewfold._check import whole_number
from fewfold._progress import notes, phase, silence
from fewfold._resources import resource_usage
from fewfold.recommender.answers import Recommendations
from fewfold.recommender.artifact.card import model_card, versions
from fewfold.recommender.artifact.config import Config, Metrics
from fewfold.recommender.artifact.folder import Folder, open_artifact, steadily, write_artifact
from fewfold.recommender.artifact.packing import (
    expect_items,
    expect_users,
    pack_items,
    pack_users,
    unpack_items,
    unpack_users,
)
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.attributes import Attributes, read_attributes
from fewfold.recommender.errors import DataError
from fewfold.recommender.evaluation.dense_comparison import Beside
from fewfold.recommender.evaluation.holdout import hold_out, kept, questions
from fewfold.recommender.evaluation.metrics import Metric
from fewfold.recommender.evaluation.model_evaluation import (
    METRICS,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.evaluation.ranking_cost import training_work
from fewfold.recommender.fit_report import FitReport
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.model import FitOptions, Fitted, Model
from fewfold.recommender.models.new_items import merged
from fewfold.recommender.models.stored import described, expect, recipe_of, restore
from fewfold.recommender.questions import allowed_items, histories_of, known, one_or_many
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.reading.conditions import Condition
from fewfold.recommender.reading.log import Log, LogPlan, plan_log, read_log
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.training import Training

__all__ = ["Recommender"]

_LEARN = "call fit(log) first, or Recommender.load(folder)"


class Recommender:
    """Learns from who touched what; recommends to users seen and unseen.

    Args:
        model: `VAE()`, for any number of items, or a baseline such as `EASE()`, hard to beat while
            there are few.
        anchors: make the tables of the `VAE` of so many anchors, tens of times smaller; `"auto"` of
            as many as are worth it; or `Anchors`, which also says how few of them an item mixes,
            in how many bits, and whether they are trained from scratch. Otherwise dense tables are
            trained and cut to anchors, and the report shows both. (If the number of anchors is to
            be found, or there are too many items to cut, anchors are trained in either case, and
            dense tables as well for the report.)
        training: of the `VAE`.
        seed: the same seed gives the same model.

    Attributes:
        items: ids of the items, as they were written.
        users: ids of the users, or None where the artifact was written without them.
        history: what each user touched, or None likewise.
        attributes: what was attached to the items.
        evaluation: how good it is on what was held out, if anything was.

    Example:
        >>> import fewfold as ff
        >>> log = {"user": ["ann", "ann", "bob", "bob", "cy", "cy"],
        ...        "item": ["tea", "milk", "tea", "milk", "nuts", "beer"]}
        >>> rec = ff.Recommender(ff.recommender.EASE(l2=1.0)).fit(log)
        >>> rec.recommend_from_history(["tea"], k=1).items
        ['milk']
        >>> rec.recommend(["ann", "cy"], k=1, exclude_seen=False).items
        [['milk'], ['beer']]
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        anchors: int | str | Anchors | None = None,
        training: Training | None = None,
        seed: int = 0,
    ) -> None:
        model = VAE() if model is None else model
        self.model: Model = model if anchors is None else model.with_anchors(anchors)
        self.training = training or Training()
        self.seed = whole_number(seed, "seed", least=0)
        self._fitted: Fitted | None = None
        self._data: dict[str, Any] = {}
        self._learned_from: dict[str, Any] = {}
        self._items: Ids | None = None
        self._learned = torch.empty(0, dtype=torch.bool)  # (items,), what the model has seen
        self.users: Ids | None = None
        self.history: Interactions | None = None
        self.attributes: Attributes | None = None
        self.evaluation: Evaluation | dict[str, Any] | None = None
        self.report: FitReport | None = None

    def fit(
        self,
        source: Any,
        *,
        test: float = 0.0,
        split: str = "auto",
        refit: bool = False,
        checkpoint: Checkpoint | None = None,
        all_users: bool = False,
        progress: bool = True,
        **reading: Any,
    ) -> Self:
        """Learn from a log.

        Args:
            source: a file, folder or glob of CSV, TSV, JSON lines, Parquet or Feather, a frame of
                pandas, polars or arrow, a scipy sparse matrix, `Interactions`, or a `Log`; see
                `read_log`.
            test: share of the interactions to hold out and evaluate on. The model then has not
                learned from them.
            split: how: `"temporal"`, those after one moment; `"last"`, each user's last item;
                `"random"`, of each user at random; or `"auto"`, the first of these that asks what
                the log can answer: temporal where there are times and most of the tested users
                have earlier interactions, last where they have not, random without times.
            refit: learn again, from everything, after the evaluation. Without it a `VAE` leaves
                out a few pairs on which it tries how much its shortcut should weigh.
            checkpoint: where training is kept, so that it can be resumed; of the `VAE` alone.
            all_users: evaluate on all users. Otherwise a sample of them is ranked where all would
                be more work than training; the report says so.
            progress: tell on standard error.
            reading: passed to `read_log`, as user="customer", item="sku".
        """
        # The outermost phase is shown where no other is under way, so that nothing is silent.
        with (
            resource_usage() as cost,
            notes(progress),
            silence(not progress),
            phase("fitting the model"),
        ):
            log = read_log(source, **reading)
            learn, held, how = log.interactions, None, ""
            if test:
                with phase("splitting the log"):
                    held, how = hold_out(learn, test=test, split=split, seed=self.seed)
                learn = held.train
            options = partial(FitOptions, self.training, seed=self.seed, progress=progress)
            stage = checkpoint and checkpoint.stage("fit")
            found = self.model.learn(learn, options(checkpoint=stage))
            evaluation = beside = None
            if held is not None:
                asked = held.fold_in.jagged, held.test.jagged
                users = None
                if not all_users:
                    work = training_work(found.log, found.epochs)
                    users = sample_users(found.fitted, *asked, training=work, seed=self.seed)
                measure = partial(assess, known=asked[0], test=asked[1], split=how, users=users)
                evaluation = measure(found.fitted, seen=found.log.counts() > 0)
                whole, dense = self.model.dense_reference(), found.dense
                if whole is not None and dense is None:
                    dense = whole.learn(learn, options()).fitted
                if dense is not None:
                    their = measure(dense, seen=found.log.counts() > 0)
                    beside = Beside.of(found.fitted, dense, evaluation, their)
                if refit:
                    stage = checkpoint and checkpoint.stage("refit")
                    again = options(checkpoint=stage, previous=found)
                    found = self.model.learn(log.interactions, again)
        self._fitted, learned = found.fitted, found.log
        self._items, self.users, self.history = log.items, log.users, log.interactions
        self._learned = learned.counts() > 0
        self._data = _shareable(log.summary.as_dict())
        self._learned_from = {
            "users": learned.users, "items": learned.items, "pairs": learned.pairs,
            "everything": learned.pairs == log.interactions.pairs,
        }  # fmt: skip
        if self.model.without_anchors() is not None:
            self._learned_from["tables"] = (
                "trained as anchors from the start" if found.dense is None
                else "trained dense, then cut to anchors"
            )  # fmt: skip
        self.attributes, self.evaluation = None, evaluation
        tables = self._learned_from.get("tables")
        self.report = FitReport(log, self.model, evaluation, found.epochs, cost, beside, tables)
        return self

    def __repr__(self) -> str:
        known = "" if self._items is None else f", {len(self._items):,} items"
        if self.users is not None:
            known += f", {len(self.users):,} users"
        return f"Recommender({self.model!r}{known})"

    @property
    def items(self) -> Ids:
        """Ids of the items, as they were written."""
        if self._items is None:
            raise ValueError(f"this recommender has learned nothing yet; {_LEARN}")
        return self._items

    @property
    def fitted(self) -> Fitted:
        """The model itself, which speaks of items by number."""
        if self._fitted is None:
            raise ValueError(f"this recommender has learned nothing yet; {_LEARN}")
        return self._fitted

    def recommend(
        self,
        users: Any,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        filter_items: Any = None,
        items: Any = None,
        search: Search | None = None,
    ) -> Recommendations:
        """The best items for users of the log, one or many.

        Args:
            users: an id, or several.
            k: how many; fewer come where nothing more is left.
            exclude_seen: not what the user touched already.
            filter_items: ids never to answer with.
            items: ids to choose from; all by default.
            search: an approximate search, as `index` makes; exact by default.
        """
        asked, single = one_or_many(users)
        history, known_as = self._histories(asked)
        return self._ranked(
            history, k, known_as, single, exclude_seen, filter_items, items, search=search
        )

    def recommend_from_history(
        self,
        histories: Any,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        filter_items: Any = None,
        items: Any = None,
        search: Search | None = None,
        of: list[Any] | None = None,
    ) -> Recommendations:
        """The best items for somebody who touched these items, whether they were in the log or not.

        Args:
            histories: a list of item ids, a list of such lists, or a scipy sparse matrix (users,
                items). Ids that are not known are passed over, and listed in `unknown`. An empty
                history gets what suits everybody.
            of: what to call each history in the answer.
            others: as in `recommend`.
        """
        history, unknown, single = histories_of(histories, self.items)
        named: list[Any] = [None] * len(unknown) if of is None else list(of)
        return self._ranked(
            history, k, named, single, exclude_seen, filter_items, items, unknown, search
        )

    def rank_items(self, users: Any, items: Any) -> Recommendations:
        """These items in the order in which they would suit a user, one or many."""
        wanted = one_or_many(items)[0]
        return self.recommend(users, max(1, len(wanted)), exclude_seen=False, items=wanted)

    def similar_items(
        self, items: Any, k: int = 10, *, filter_items: Any = None
    ) -> Recommendations:
        """The items most like an item, one or many, best first."""
        asked, single = one_or_many(items)
        numbers = known(asked, self.items, "item", "see `items` for those there are")
        allowed = allowed_items(None, filter_items, self.items)
        count = min(whole_number(k, "k"), len(self.items))
        found = self.fitted.similar(numbers, count, allowed=allowed)
        answer = Recommendations.read(found, self.items, self.items.take(numbers), self.attributes)
        return answer.first() if single else answer

    def _ranked(
        self,
        history: Jagged,
        k: int,
        asked: list[Any],
        single: bool,
        exclude_seen: bool,
        filter_items: Any,
        items: Any,
        unknown: list[Any] | None = None,
        search: Search | None = None,
    ) -> Recommendations:
        allowed = allowed_items(items, filter_items, self.items)
        if search is not None and search.fitted is not self.fitted:
            raise ValueError("this index is of another model; make one with index()")
        if len(asked) != len(history.offsets) - 1:
            raise ValueError(f"of must name each of {len(history.offsets) - 1} histories")
        rank = self.fitted.rank if search is None else search.rank
        exclude = history if exclude_seen else None
        count = min(whole_number(k, "k"), len(self.items))
        found = rank(history, count, exclude=exclude, allowed=allowed)
        answer = Recommendations.read(found, self.items, asked, self.attributes, unknown)
        return answer.first() if single else answer

    def _histories(self, asked: list[Any]) -> tuple[Jagged, list[Any]]:
        """What these users touched, and their ids as they were written."""
        if self.users is None or self.history is None:
            _ = self.items  # which says so if nothing was learned at all
            raise ValueError(
                "this model was written without its users; tell what they touched: "
                "recommend_from_history([...])"
            )
        instead = "for somebody new call recommend_from_history([...]) (--history)"
        numbers = known(asked, self.users, "user", instead)
        return self.history.rows(numbers), self.users.take(numbers)

    def prepare(self) -> Self:
        """Spend a moment and a quarter of the vectors' memory now, to answer single users sooner.

        Worth it for a server with many items; answers stay exact. See `Catalogue`.
        """
        self.fitted.prepare()
        return self

    def index(self, *, recall: float = 0.95, k: int = 10, seed: int = 0) -> Search:
        """An approximate search over the item vectors, as exact as asked for; see `Search`."""
        return Search.build(self.fitted, self.history, recall=recall, k=k, seed=seed)

    def evaluate(
        self,
        source: Any,
        *,
        split: str = "auto",
        metrics: Sequence[Metric] = METRICS,
        all_users: bool = False,
        **reading: Any,
    ) -> Evaluation:
        """How well held-out interactions are found; what users touched in training is masked.

        Args:
            source: a log of interactions the model has not learned from.
            split: `"all"` asks for every interaction, and users the model does not know count as
                users without a history. `"last"` asks for each user's last item and `"random"` for
                some of their items, and the model is told the others. `"auto"` is all, or, where
                the model knows nothing of most users, last if times are known and else random.
            metrics: which.
            all_users: rank all users, not a sample where that would take long.
            reading: passed to `read_log`.
        """
        log = self._read(source, reading)
        who = self.users.find(log.users.tolist()) if self.users is not None else None
        if who is None or self.history is None:
            raise ValueError(
                "this model was written without its users, so what they touched in training "
                "cannot be masked; fit it with them, or evaluate in the same process"
            )
        told = self.history.rows(who.clamp(min=0))
        told = kept(told, (who >= 0)[told.row])
        number = self.items.find(log.items.tolist())
        number = number.where(number >= 0, len(self.items) + torch.arange(len(number)))
        asked = questions(
            log.interactions, told, number, len(self.items), split=split, seed=self.seed
        )
        if asked.repeated == log.interactions.pairs:
            raise DataError(
                f"all {asked.repeated:,} interactions of {log.summary.plan.files[0]} are in the "
                "log the model was made from; evaluate on others"
            )
        how = f"{', '.join(log.summary.plan.files)}, {log.interactions.pairs:,} interactions"
        if asked.repeated:
            how += f", {asked.repeated:,} of which are in the log of the model and do not count"
        how += f"; {asked.words}"
        users = None
        if not all_users:
            users = sample_users(
                self.fitted, asked.known, asked.test, metric=metrics[0], seed=self.seed
            )
        return assess(
            self.fitted, asked.known, asked.test, self._learned, split=how, metrics=metrics,
            users=users,
        )  # fmt: skip

    def _read(self, source: Any, reading: dict[str, Any]) -> Log:
        """A log, read as the one the model was fitted to.

        Where it has ratings, the same threshold counts. The same conditions on rows are applied,
        and their columns must be there. Ids and times are read in the same way.
        """
        if not isinstance(source, (Log, Interactions)) and not hasattr(source, "tocsr"):
            usual = {"strip_ids": True, "time_format": None}  # need not be said
            reading = {
                **{n: v for n, u in usual.items() if (v := self._data.get(n, u)) != u},
                **reading,
            }
        least, where = self._data.get("min_rating"), self._data.get("where") or []
        asked = (least is not None and "min_rating" not in reading) or (
            where and "where" not in reading
        )
        if not asked or isinstance(source, Log):
            return read_log(source, **reading)
        rules = ("core", "skip_bad_rows", "time_format", "strip_ids")
        plan = plan_log(source, **{n: v for n, v in reading.items() if n not in rules})
        rated = plan.columns is not None and (plan.columns.rating or plan.columns.idle_rating)
        if least is not None and rated:
            reading = {"min_rating": least, **reading}
        if where and plan.columns is not None:
            _check_where(where, plan)
            reading = {"where": where, **reading}
        return read_log(source, **reading)

    def attach(self, table: Any, *, key: str | None = None) -> Self:
        """Keep a table keyed by item, such as names, and show it in every answer.

        Args:
            table: CSV, TSV, JSON lines, Parquet, Feather or a frame.
            key: its column of item ids; by default the one that names the most items.
        """
        self.attributes = read_attributes(table, self.items, key)
        return self

    def add_items(self, source: Any, **reading: Any) -> "Recommender":
        """A recommender that also knows the new items of a log, without training again.

        Each new item takes its place between the items its users touched; a handful of
        interactions is enough. Users of the log that are known keep their history and gain what
        is new; others are added.
        """
        if not self.fitted.recipe.extendable:
            raise ValueError(
                f"a {type(self.model).__name__} learns from everything at once; fit it again"
            )
        log = self._read(source, reading)
        number = self.items.find(log.items.tolist())
        new = (number < 0).nonzero().squeeze(1)
        if len(new) == 0:
            raise ValueError("all items of this log are known; there is nothing to add")
        number[new] = len(self.items) + torch.arange(len(new))
        if log.items.textual != self.items.textual:
            kind = "text" if self.items.textual else "whole numbers"
            raise ValueError(f"the ids of the items are {kind}, those to add are not; make them so")
        more = copy.copy(self)
        more._items = self.items.extended(Ids.of(log.items.take(new)))
        users, history = merged(self.users, self.history, log, number, len(more._items))
        more._fitted = self.fitted.recipe.extended(self.fitted, history)
        more._learned = torch.cat([self._learned, torch.ones(len(new), dtype=torch.bool)])
        if self.history is not None:
            more.users, more.history = users, history
        size = {"users": len(users), "items": len(more._items), "pairs": history.pairs}
        more._data = {**self._data, "after": size, "items added later": len(new)}
        if self.attributes is not None:
            more.attributes = self.attributes.extended(len(new))
        return more

    def save(
        self, folder: str | os.PathLike[str], *, users: bool = True, overwrite: bool = False
    ) -> Path:
        """Write the artifact; without users, histories are given by whoever asks."""
        config = {
            "model": described(self.fitted.recipe),
            "training": asdict(self.training),
            "seed": self.seed,
            "data": self._data,
            "learned from": self._learned_from,
            "versions": versions(),
        }
        evaluation = self.evaluation
        metrics = evaluation.as_dict() if isinstance(evaluation, Evaluation) else evaluation or {}
        with phase("writing the model"):
            parts = {
                "config.json": config,
                "metrics.json": metrics,
                "model.safetensors": {**self.fitted.state(), "learned": self._learned},
                "items.safetensors": pack_items(self.items, self.attributes),
            }
            if users and self.users is not None and self.history is not None:
                parts["users.safetensors"] = pack_users(self.users, self.history)
            return write_artifact(folder, parts, model_card(config, metrics), overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Recommender":
        """Read an artifact.

        One that is damaged, inconsistent or newer than this program is refused with an
        `ArtifactError`; a folder that is replaced meanwhile is read before or after that.
        """
        return steadily(folder, lambda root: cls.opened(open_artifact(root)))

    @classmethod
    def opened(cls, folder: Folder) -> "Recommender":
        """The recommender of an artifact that has been opened."""
        source = Source(folder.root / "config.json")
        config = check(Config, folder.config, source, exact=False)
        training = check(Training, config.training, source, "training", exact=True)
        model = recipe_of(config.model, source)
        if folder.metrics != {}:
            check(Metrics, folder.metrics, Source(folder.root / "metrics.json"), exact=False)
        part, about = folder.parts["model.safetensors"], folder.parts["items.safetensors"]
        users = folder.parts.get("users.safetensors")
        items = expect_items(about)  # by the headers alone, before anything large is read
        expect(model, part, items)
        if users is not None:
            expect_users(users, items)
        folder.verify()
        rec = cls(model, training=training, seed=config.seed)
        rec._data = {**folder.config["data"], **config.data.as_dict()}
        rec._learned_from = folder.config["learned from"]
        rec._fitted, rec._learned = restore(model, part, items)
        rec._items, rec.attributes = unpack_items(about)
        if users is not None:
            rec.users, rec.history = unpack_users(users, items)
        rec.evaluation = folder.metrics or None
        return rec


def _check_where(where: Sequence[str], plan: LogPlan) -> None:
    """Raise unless a log has the columns of the conditions a model was fitted with."""
    for text in where:
        if Condition.column_of(text, plan.names) is None:
            listed = ", ".join(repr(column) for column in plan.names[:30])
            raise DataError(
                f"{plan.files[0]}: there is no column for where={text!r}, with which the model was "
                f"fitted; the columns are {listed}. If all rows are to count, write where=[] "
                "(--where ''), or say which: where='COLUMN=VALUE' (--where COLUMN=VALUE)"
            )


def _shareable(summary: dict[str, Any]) -> dict[str, Any]:
    """What was read without folders and values of the log, which concern nobody else."""
    plan = {**summary["plan"], "notes": []}  # a note may show the first row
    plan["files"] = [Path(name).name or name for name in plan["files"]]
    return {**summary, "plan": plan, "notes": []}
