"""The `Recommender`: fit to a log, recommend, evaluate, save and load."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

import torch

from fewfold._check import known_names, whole_number
from fewfold._progress import silence
from fewfold._torch import usable_device
from fewfold.recommender.artifact.folder import (
    Folder,
    is_hub_address,
    open_artifact,
    read_consistently,
)
from fewfold.recommender.artifact.hub import local_folder, push_folder
from fewfold.recommender.attribute_tables import ItemsTable, UsersTable
from fewfold.recommender.attributes import Attributes, read_attributes
from fewfold.recommender.diversity import Diversity
from fewfold.recommender.evaluation.comparison import Comparison
from fewfold.recommender.evaluation.holdout import HoldOut
from fewfold.recommender.evaluation.log_evaluation import evaluate_on_log
from fewfold.recommender.evaluation.metrics import Metric
from fewfold.recommender.evaluation.model_evaluation import METRICS, Evaluation
from fewfold.recommender.fit_job import FitJob, FitReport
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.item_conditions import Where
from fewfold.recommender.models.auto import Auto
from fewfold.recommender.models.fastvae.anchor_options import Anchors
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.model import Fitted, Model
from fewfold.recommender.prepared.streamed_interactions import StreamedLog
from fewfold.recommender.queries import (
    attribute_queries,
    history_queries,
    one_or_many,
    user_queries,
)
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.reading.fitted_rules import journal_log, read_by_fitted_rules
from fewfold.recommender.reading.read_options import ReadOptions, check_keywords
from fewfold.recommender.recommendation_files import write_recommendations
from fewfold.recommender.recommendation_parts import is_folder, write_recommendation_parts
from fewfold.recommender.recommendations import (
    RankKeywords,
    RankOptions,
    Recommendations,
    recommend,
    similar_items,
)
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.saved_model import read_state, write_state
from fewfold.recommender.streamed_fit import fit_streamed
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.train_options import CurvePoint, Training
from fewfold.recommender.updating import UpdateReport, updated_state

__all__ = ["Recommender"]


class Recommender:
    """Learns from a log of users and items; recommends to users seen and unseen.

    Args:
        model: by default `Auto()`, which tries the models that suit the log on a part of it and
            takes the best; or one of them, such as `VAE()` or `EASE()`.
        anchors: represent the tables of the `VAE` by this many anchors, tens of times smaller;
            `"auto"` finds their number; `Anchors` also sets how many of them an item combines, in
            how many bits, and whether they are trained from scratch. Otherwise dense tables are
            trained and compressed to anchors, and the report compares both. (If the number of
            anchors is to be found, or there are too many items to compress, anchors are trained in
            either case, and dense tables as well for the report.)
        training: settings of the training of a `VAE`.
        seed: the same seed gives the same model.
        device: on which a `VAE` or a `Transformer` is trained, and models with item vectors rank,
            such as "cuda". Everything else is computed on the CPU. A saved model loads anywhere.

    Attributes:
        model: the model with its settings.
        report: report of the last `fit`.
        update_report: what `update` added, if that made this recommender.

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
        device: torch.device | str = "cpu",
    ) -> None:
        if model is None:
            model = Auto() if anchors is None else VAE()
        if not isinstance(model, Model):
            raise TypeError(f"model must be a model such as EASE(), got {model!r}")
        self.model: Model = model if anchors is None else model.with_anchors(anchors)
        self.training = training or Training()
        self.seed = whole_number(seed, "seed", least=0)
        self.device = usable_device(device)
        self.report: FitReport | None = None
        self.update_report: UpdateReport | None = None
        self._fitted_state: RecommenderState | None = None

    @classmethod
    def _of(cls, state: RecommenderState, device: torch.device | str = "cpu") -> "Recommender":
        recommender = cls(state.model, training=state.training, seed=state.seed, device=device)
        recommender._fitted_state = state
        state.fitted.to(recommender.device)
        return recommender

    @property
    def _state(self) -> RecommenderState:
        if self._fitted_state is None:
            raise ValueError(
                "this recommender is not fitted; call fit(log) first, or Recommender.load(folder)"
            )
        return self._fitted_state

    @property
    def state(self) -> RecommenderState:
        """All that was fitted."""
        return self._state

    @property
    def items(self) -> Ids:
        """Item ids, spelled as in the log."""
        return self._state.items

    @property
    def fitted(self) -> Fitted:
        """The fitted model, which identifies items by number."""
        return self._state.fitted

    @property
    def users(self) -> Ids | None:
        """User ids; None if the model was saved without them."""
        return None if self._fitted_state is None else self._fitted_state.users

    @property
    def history(self) -> Interactions | None:
        """Items of each user; None if the model was saved without them."""
        return None if self._fitted_state is None else self._fitted_state.history

    @property
    def evaluation(self) -> Evaluation | dict[str, Any] | None:
        """Metrics on the held-out interactions, if any were; a dict in a loaded model."""
        return None if self._fitted_state is None else self._fitted_state.evaluation

    @property
    def attributes(self) -> Attributes | None:
        """Attributes of the items; see `attach`."""
        return None if self._fitted_state is None else self._fitted_state.attributes

    @attributes.setter
    def attributes(self, attributes: Attributes | None) -> None:
        self._fitted_state = replace(self._state, attributes=attributes)

    @property
    def curve(self) -> Sequence[CurvePoint]:
        """Loss of each epoch of the training, and NDCG@50 if it was validated."""
        return () if self._fitted_state is None else self._fitted_state.curve

    @property
    def comparison(self) -> dict[str, Any] | None:
        """Results of a comparison with other models, as `Comparison.as_dict` returns them.

        Assign the result of `compare` to keep it in the model.
        """
        return None if self._fitted_state is None else self._fitted_state.comparison

    @comparison.setter
    def comparison(self, comparison: Comparison | None) -> None:
        found = None if comparison is None else comparison.as_dict()
        self._fitted_state = replace(self._state, comparison=found)

    def __repr__(self) -> str:
        model = self.model if self._fitted_state is None else self.fitted.recipe
        known = "" if self._fitted_state is None else f", {len(self.items):,} items"
        if self.users is not None:
            known += f", {len(self.users):,} users"
        return f"Recommender({model!r}{known})"

    def fit(
        self,
        source: Any,
        *,
        test: float | HoldOut = 0.0,
        refit: bool = False,
        items_table: Any = None,
        users_table: Any = None,
        half_life: float | str | None = None,
        checkpoint: Checkpoint | None = None,
        time_budget: float | None = None,
        progress: bool = True,
        **reading: Unpack[ReadOptions],
    ) -> Self:
        """Fit to a log.

        Args:
            source: a file, folder or glob of CSV, TSV, JSON lines, Parquet or Feather, a frame of
                pandas, polars or arrow, a scipy sparse matrix, `Interactions`, a `Log`, or a folder
                that `prepare` wrote; see `read_log`. A `StreamedLog` is not held in memory.
            test: share of the interactions to hold out and evaluate on, or a `HoldOut`, which also
                says how. The model is not trained on them.
            refit: fit again, to the whole log, after the evaluation. Without it a `VAE` holds out
                a few pairs on which it chooses the weight of its shortcut.
            items_table: table of item attributes, shown in every recommendation; see `attach`. An
                `ItemsTable` also says which of its columns has the ids, and whether to learn from
                the others.
            users_table: table of user attributes: its users without interactions get what users
                with the same attributes like, and `recommend_from_attributes` works. A `UsersTable`
                also says which of its columns has the ids.
            half_life: days in which the weight of an interaction halves, relative to the newest;
                `"auto"` chooses on a part of the log, `"none"` weighs all ages alike. By default
                auto for `Auto` if the log has times, and none for a named model.
            checkpoint: where trials and trainings are saved, so that they can be resumed.
            time_budget: seconds for everything: reading, choosing a model, training and
                evaluation. Fewer models are tried and trainings are shortened to fit.
            progress: show progress on standard error.
            reading: columns, conditions and formats of the log, as user="customer", item="sku";
                see `ReadOptions`.
        """
        check_keywords(reading, Recommender.fit)
        job = FitJob(
            self.model, self.training, self.seed, HoldOut.of(test), refit, checkpoint, progress,
            time_budget, ItemsTable.of(items_table), UsersTable.of(users_table), half_life,
            self.device,
        )  # fmt: skip
        if isinstance(source, StreamedLog):
            self._fitted_state, self.report = fit_streamed(job, source, reading)
        else:
            self._fitted_state, self.report = job.run(source, reading)
        return self

    def recommend(
        self,
        users: Any,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        filter_items: Any = None,
        items: Any = None,
        search: Search | None = None,
        explain: bool = False,
        where: Where | None = None,
        diversity: float | Diversity | None = None,
    ) -> Recommendations:
        """Recommend items to one or several users of the log.

        Args:
            users: an id, or several; also of users of the users table who are not in the log.
            k: number of items; fewer if there are no more candidates.
            exclude_seen: leave out the items of the user's history.
            filter_items: ids never to recommend.
            items: ids of the candidates; all items by default.
            search: an approximate search, as `index` builds; exact by default.
            explain: also find the items of the history that contributed most to each item, and how
                much; see `Recommendations.because`.
            where: conditions on item attributes that the candidates meet, as {"section":
                "libdevel"}, {"section": ["a", "b"]}, {"year": {"min": 1990, "max": 2000}} or
                {"section": {"not": "games"}}. An item whose value is missing never meets one.
            diversity: how much the items must differ from each other, from 0 to 1; a `Diversity`
                also says by which attribute, and how many items may have the same value. Scores
                stay those of the model, and no longer fall from item to item.
        """
        options = RankOptions(
            k, exclude_seen, filter_items, items, search, explain, where, diversity
        )
        return recommend(user_queries(users, self._state), self._state, options)

    def recommend_from_history(
        self,
        histories: Any,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        filter_items: Any = None,
        items: Any = None,
        search: Search | None = None,
        explain: bool = False,
        where: Where | None = None,
        diversity: float | Diversity | None = None,
    ) -> Recommendations:
        """Recommend items to users with these histories, whether they were in the log or not.

        Args:
            histories: a list of item ids, a list of such lists, a mapping from names to such
                lists, or a scipy sparse matrix (users, items). Unknown ids are ignored, and listed
                in `unknown`. For an empty history the most popular items are recommended.
            k, exclude_seen, filter_items, items, search, explain, where, diversity: as in
                `recommend`.
        """
        options = RankOptions(
            k, exclude_seen, filter_items, items, search, explain, where, diversity
        )
        ordered = self.fitted.recipe.ordered
        queries = history_queries(histories, self.items, ordered=ordered)
        return recommend(queries, self._state, options)

    def recommend_from_attributes(
        self,
        attributes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        k: int = 10,
        *,
        filter_items: Any = None,
        items: Any = None,
        where: Where | None = None,
        diversity: float | Diversity | None = None,
    ) -> Recommendations:
        """Recommend items to one or several users of whom only attributes are known.

        Args:
            attributes: values by column of the users table, as {"age": 25, "country": "NZ"}.
                Missing and unknown values are ignored.
            k, filter_items, items, where, diversity: as in `recommend`.
        """
        options = RankOptions(k, False, filter_items, items, where=where, diversity=diversity)
        return recommend(attribute_queries(attributes, self._state), self._state, options)

    def recommend_all(
        self,
        file: str | os.PathLike[str],
        k: int = 10,
        *,
        overwrite: bool = False,
        progress: bool = True,
        **ranking: Unpack[RankKeywords],
    ) -> int:
        """Write recommendations to all users to a file or folder; return the number of its rows.

        The columns are user, rank, item and score. Users of the log come in its order, then those
        of the users table alone. The file appears when it is complete, and is written in blocks:
        memory does not grow with the number of users.

        Args:
            file: its name ends in .parquet, .csv or .jsonl, which says what is written. A folder,
                as recs/, gets the same rows in several Parquet files; a call after an interruption
                computes the missing ones, and in a process group each process writes some.
            k: number of items for each user.
            overwrite: replace an existing file.
            progress: show progress on standard error.
            ranking: exclude_seen, filter_items, items, search, where and diversity, as in
                `recommend`.
        """
        known_names(ranking, tuple(RankKeywords.__annotations__), "recommend_all")
        with silence(not progress):
            options = RankOptions(k, **ranking)
            write = write_recommendation_parts if is_folder(file) else write_recommendations
            return write(self._state, file, options, overwrite=overwrite)

    def rank_items(self, users: Any, items: Any) -> Recommendations:
        """Rank these items for one or several users."""
        candidates = one_or_many(items)[0]
        return self.recommend(users, max(1, len(candidates)), exclude_seen=False, items=candidates)

    def similar_items(
        self, items: Any, k: int = 10, *, filter_items: Any = None, where: Where | None = None
    ) -> Recommendations:
        """Rank the items most similar to one or several items; arguments as in `recommend`."""
        options = RankOptions(k, filter_items=filter_items, where=where)
        return similar_items(items, self._state, options)

    def prepare(self) -> Self:
        """Precompute a quantised copy of the item vectors for faster ranking.

        It takes 25 % more memory, and pays for a server with many items; rankings stay exact. See
        `Catalogue`.
        """
        self.fitted.prepare()
        return self

    def index(self, *, recall: float = 0.95, k: int = 10, seed: int = 0) -> Search:
        """Build an approximate search over the item vectors with this recall; see `Search`."""
        return Search.build(self.fitted, self.history, recall=recall, k=k, seed=seed)

    def evaluate(
        self,
        source: Any,
        *,
        split: str = "auto",
        metrics: Sequence[Metric] = METRICS,
        all_users: bool = False,
        **reading: Unpack[ReadOptions],
    ) -> Evaluation:
        """Evaluate on another log; items that users had in training are excluded from rankings.

        Args:
            source: a log of interactions the model was not fitted to. It is read by the rules of
                the training log: its threshold of ratings, conditions and formats.
            split: `"all"` tests every interaction, and users the model does not know count as
                users without a history. `"last"` tests each user's last item and `"random"` some
                of their items, given the others. `"auto"` is all, or, if the model knows nothing
                of most users, last if there are times and else random.
            metrics: metrics to compute.
            all_users: rank all users, not a sample where that would take long.
            reading: as in `fit`.
        """
        check_keywords(reading, Recommender.evaluate)
        log = read_by_fitted_rules(source, self._state.data, reading)
        return evaluate_on_log(self._state, log, split=split, metrics=metrics, all_users=all_users)

    def attach(self, table: Any, *, key: str | None = None) -> Self:
        """Attach a table of item attributes, such as names, shown in every recommendation.

        Args:
            table: CSV, TSV, JSON lines, Parquet, Feather or a frame.
            key: its column of item ids; by default the one with the most known items.
        """
        self.attributes = read_attributes(table, self.items, key)
        return self

    def add_items(self, source: Any, **reading: Unpack[ReadOptions]) -> "Recommender":
        """Return a recommender that also knows the new items of a log, without training.

        The vector of a new item is a mean of those its users have; a handful of interactions is
        enough. The log's interactions are added to the histories, its new users to the users.
        """
        check_keywords(reading, Recommender.add_items)
        if not self.fitted.recipe.extendable:
            raise ValueError(
                f"a {type(self.model).__name__} cannot be extended by items; fit it again"
            )
        extended = self.update(source, **reading)
        if extended.update_report is None or extended.update_report.items == 0:
            raise ValueError("all items of this log are known; there is nothing to add")
        return extended

    def update(self, source: Any = None, **reading: Unpack[ReadOptions]) -> "Recommender":
        """Return a recommender that also knows the users, events and items of a later log.

        Nothing is trained. Histories are continued, for every model; how new items are added
        depends on the model, and `update_report` says it, with those that were left out.

        Args:
            source: a log as in `fit`, read by the rules of the training log, whose events count as
                newer than those known; None for the events of a journal alone.
            reading: as in `fit`; `journal` names journals to add.
        """
        check_keywords(reading, Recommender.update)
        state = self._state
        if source is None:
            log = journal_log(reading, users=state.users, items=state.items)
        else:
            log = read_by_fitted_rules(source, state.data, reading)
        found, update_report = updated_state(state, log)
        recommender = self._of(found, self.device)
        recommender.report, recommender.update_report = self.report, update_report
        return recommender

    def save(
        self, folder: str | os.PathLike[str], *, users: bool = True, overwrite: bool = False
    ) -> Path:
        """Write a model folder; without `users`, only `recommend_from_history` works after it."""
        return write_state(self._state, folder, users=users, overwrite=overwrite)

    def push(
        self,
        address: str,
        *,
        users: bool = False,
        private: bool = True,
        message: str = "Upload a model of fewfold",
    ) -> str:
        """Upload the model to the Hugging Face Hub; return its address with the commit.

        Args:
            address: ``hf://owner/name``, with ``@branch`` for another branch than main. A
                repository or branch that is not there is created; earlier commits stay.
            users: also upload the users and their histories.
            private: whether a repository that is created is private.
            message: of the commit.
        """
        with tempfile.TemporaryDirectory(prefix="fewfold-") as place:
            folder = self.save(Path(place) / "model", users=users)
            return push_folder(folder, address, private=private, message=message)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: torch.device | str = "cpu"
    ) -> "Recommender":
        """Read a model folder, or a model of the Hugging Face Hub.

        Of the Hub, write ``"hf://owner/name"``, or ``"hf://owner/name@revision"`` to pin a branch,
        a tag or a commit. A folder that is damaged, inconsistent or newer than this program is
        refused with an `ArtifactError`; one that is replaced meanwhile is read before or after
        that.

        Args:
            folder: that `save` wrote, on any device, or an address.
            device: on which models with item vectors rank.
        """
        root = local_folder(folder) if is_hub_address(folder) else folder
        return read_consistently(root, lambda found: cls.opened(open_artifact(found), device))

    @classmethod
    def opened(cls, folder: Folder, device: torch.device | str = "cpu") -> "Recommender":
        """Read the recommender of an opened model folder."""
        return cls._of(read_state(folder), device)
