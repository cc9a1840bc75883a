"""Fitting a recommender: read the log, hold out, train, evaluate, perhaps train on everything."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fewfold._progress import notes, phase, silence
from fewfold._resources import ResourceUsage, resource_usage
from fewfold.recommender.attributes import Attributes, read_attributes, read_catalogue
from fewfold.recommender.evaluation.dense_comparison import DenseComparison
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.model_evaluation import (
    MINUTE,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.item_features import ItemFeatures, item_features
from fewfold.recommender.models.auto import Auto
from fewfold.recommender.models.fastvae.objectives import training_work
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.model import FitOptions, Learned, Model
from fewfold.recommender.models.warm import Warm
from fewfold.recommender.reading.log import Log, read_log
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.saved_model import model_as_json
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.training.checkpoint import Checkpoint
from fewfold.recommender.training.train import Epoch
from fewfold.recommender.training.train_options import Deadline, Training
from fewfold.recommender.warm_vectors import WarmSettings

__all__ = ["CatalogueTable", "FitJob", "FitReport"]


@dataclass(frozen=True, eq=False)
class FitReport:
    """Report of a fit; printing it gives a summary.

    Attributes:
        log: the log that was read.
        recipe: the model with its settings.
        evaluation: on the held-out interactions, if there are any.
        epochs: of the training, if there was one.
        cost: time and memory.
        dense_comparison: a model with anchors compared with dense tables, if it was.
        tables: how the tables of anchors were trained, if there are any.
        choice: how the model was chosen, if it was not named.
        attributes: how item vectors were completed from attributes, if they were.
        features: what the attributes were used as, likewise.
    """

    log: Log
    recipe: Model
    evaluation: Evaluation | None
    epochs: list[Epoch]
    cost: ResourceUsage
    dense_comparison: DenseComparison | None = None
    tables: str | None = None
    choice: Choice | None = None
    attributes: WarmSettings | None = None
    features: ItemFeatures | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        comparison = self.dense_comparison
        return {
            "data": self.log.summary.as_dict(),
            "recipe": model_as_json(self.recipe),
            "evaluation": None if self.evaluation is None else self.evaluation.as_dict(),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "seconds": self.cost.seconds,
            "peak memory bytes": self.cost.memory,
            "anchors": None if comparison is None else comparison.as_dict(),
            "tables": self.tables,
            "choice": None if self.choice is None else self.choice.as_dict(),
            "neighbouring events at one time": self._tied_share(),
            "attributes": None if self.attributes is None else asdict(self.attributes),
            "features": None if self.features is None else self.features.columns,
        }

    def _tied_share(self) -> float | None:
        """Share of neighbouring events of a user with the same time; None if order is not used."""
        log = self.log.interactions
        if not self.recipe.ordered or log.times is None:
            return None
        neighbours = log.pairs - len(log.jagged.lengths.nonzero())
        return log.tied_neighbours() / max(neighbours, 1)

    def __str__(self) -> str:
        lines = [] if self.choice is None else [str(self.choice), ""]
        lines += [] if self.evaluation is None else [str(self.evaluation), ""]
        if self.dense_comparison is not None:
            lines += [str(self.dense_comparison), ""]
        count = len(self.epochs)
        passes = f"{count} epoch{'s' if count > 1 else ''}, " if count else ""
        lines.append(f"{self.recipe.name}: {passes}{self.cost}")
        if self.tables is not None:
            lines.append(f"tables: {self.tables}")
        lines += [] if self.features is None else [f"attributes: {self.features}"]
        lines += [] if self.attributes is None else [str(self.attributes)]
        tied = self._tied_share()
        if tied:
            lines.append(
                f"{tied:.1%} of neighbouring events of a user have the same time; their order is "
                "arbitrary"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class CatalogueTable:
    """A table of item attributes for a fit.

    Attributes:
        source: the table.
        key: its column of items; None for the one that fits.
        use: complete the item vectors from attributes; otherwise they are shown in answers only.
    """

    source: Any
    key: str | None = None
    use: bool = False

    def read(self, log: Log) -> tuple[Log, Attributes]:
        """Return the log, with the other items of the table if attributes are used, and these."""
        with phase("reading the items table"):
            if not self.use:
                return log, read_attributes(self.source, log.items, self.key)
            items, attributes = read_catalogue(self.source, log.items, self.key)
            pairs = replace(log.interactions, items=len(items))
            return replace(log, interactions=pairs, items=items), attributes


@dataclass(frozen=True, eq=False)
class FitJob:
    """A fit of a model to a log; see `Recommender.fit`.

    Attributes:
        model: the model with its settings.
        training: settings of the training.
        seed: of all random numbers.
        test: share of the interactions to hold out.
        split: how to hold out; see `hold_out`.
        refit: fit to the whole log after the evaluation.
        all_users: evaluate on all users instead of a sample.
        checkpoint: where to save the training.
        progress: show progress on standard error.
        time_budget: seconds for the whole job; None for no limit.
        catalogue: table of item attributes, if there is one.
    """

    model: Model
    training: Training
    seed: int
    test: float = 0.0
    split: str = "auto"
    refit: bool = False
    all_users: bool = False
    checkpoint: Checkpoint | None = None
    progress: bool = True
    time_budget: float | None = None
    catalogue: CatalogueTable | None = None

    def run(self, source: Any, reading: dict[str, Any]) -> tuple[RecommenderState, FitReport]:
        """Read the log, fit and evaluate; return the fitted recommender and the report."""
        deadline = None if self.time_budget is None else Deadline.after(self.time_budget)
        # The outermost phase is shown while no other is running, so that nothing is silent.
        with (
            resource_usage() as cost,
            notes(self.progress),
            silence(not self.progress),
            phase("fitting the model"),
        ):
            log, attributes = read_log(source, **reading), None
            if self.catalogue is not None:
                log, attributes = self.catalogue.read(log)
            model, features = self._with_attributes(attributes)
            evaluation: Evaluation | None = None
            comparison: DenseComparison | None = None
            if self.test:
                with phase("splitting the log"):
                    split, description = hold_out(
                        log.interactions, test=self.test, split=self.split, seed=self.seed
                    )
                first = deadline and deadline.share(0.4 if self.refit else 0.8)
                learned = model.learn(split.train, self._options("fit", deadline=first))
                evaluation, comparison = self._evaluate(learned, split, description, deadline)
                if self.refit:
                    options = self._options("refit", previous=learned, deadline=deadline)
                    learned = model.learn(log.interactions, options)
            else:
                options = self._options("fit", deadline=deadline)
                learned = model.learn(log.interactions, options)
        state = self._state(log, learned, evaluation, attributes)
        tables = state.learned_from.get("tables")
        report = FitReport(
            log, state.model, evaluation, learned.epochs, cost, comparison, tables,
            learned.choice, learned.attributes, features,
        )  # fmt: skip
        return state, report

    def _options(
        self,
        stage: str | None = None,
        previous: Learned | None = None,
        deadline: Deadline | None = None,
    ) -> FitOptions:
        """Return the options of one training; `stage` names its checkpoint."""
        checkpoint = self.checkpoint.stage(stage) if self.checkpoint and stage else None
        return FitOptions(
            self.training, self.seed, checkpoint, self.progress, previous, split=self.split,
            deadline=deadline,
        )  # fmt: skip

    def _evaluate(
        self, learned: Learned, split: Split, description: str, deadline: Deadline | None
    ) -> tuple[Evaluation, DenseComparison | None]:
        """Evaluate on the held-out part; compare a model with anchors with dense tables."""
        ordered = learned.fitted.recipe.ordered
        histories = split.fold_in.rows(slice(None), ordered=ordered)
        test = split.test.jagged
        users = None
        if not self.all_users:
            work = training_work(learned.log, sum(epoch.users for epoch in learned.epochs))
            if not learned.epochs:  # a model that is not trained in epochs
                work = learned.fitted.recipe.work(learned.log)
            if deadline is not None:
                work = min(work, deadline.left() / 60 * MINUTE)
            users = sample_users(learned.fitted, histories, test, training=work, seed=self.seed)
        seen = learned.log.counts() > 0
        measure = partial(assess, known=histories, test=test, seen=seen, split=description)
        evaluation = measure(learned.fitted, users=users)
        reference, dense = self.model.dense_reference(), learned.dense
        if reference is not None and dense is None:
            dense = reference.learn(split.train, self._options()).fitted
        if dense is None:
            return evaluation, None
        dense_evaluation = measure(dense, users=users)
        return evaluation, DenseComparison.of(learned.fitted, dense, evaluation, dense_evaluation)

    def _with_attributes(self, attributes: Attributes | None) -> tuple[Model, ItemFeatures | None]:
        """Return the model, which completes item vectors if attributes are used, and features."""
        if self.catalogue is None or not self.catalogue.use or attributes is None:
            return self.model, None
        features = item_features(attributes)
        if features.matrix.shape[1] == 0:
            raise ValueError(
                "the items table says nothing that two items share, so that attributes cannot be "
                "used; add columns, or leave out use_attributes (--use-attributes)"
            )
        if isinstance(self.model, Warm):  # of a loaded recommender
            return self.model.with_features(features.matrix), features
        # The choice among models may fall on one without item vectors, after a long time.
        inner = VAE() if isinstance(self.model, Auto) else self.model
        return Warm(inner).with_features(features.matrix), features

    def _state(
        self,
        log: Log,
        learned: Learned,
        evaluation: Evaluation | None,
        attributes: Attributes | None,
    ) -> RecommenderState:
        trained = learned.log
        learned_from: dict[str, Any] = {
            "users": trained.users, "items": trained.items, "pairs": trained.pairs,
            "everything": trained.pairs == log.interactions.pairs,
        }  # fmt: skip
        model = learned.fitted.recipe
        if model.without_anchors() is not None:
            learned_from["tables"] = (
                "trained as anchors from the start" if learned.dense is None
                else "trained dense, then cut to anchors"
            )  # fmt: skip
        return RecommenderState(
            model, self.training, self.seed, learned.fitted, log.items, trained.counts() > 0,
            log.users, log.interactions, attributes, evaluation=evaluation,
            data=_shareable(log.summary.as_dict()), learned_from=learned_from,
            choice=learned.choice, warm=learned.attributes,
        )  # fmt: skip


def _shareable(summary: dict[str, Any]) -> dict[str, Any]:
    """Remove folders and values of the log from its summary, since a model may be published."""
    plan = {**summary["plan"], "notes": []}  # a note may show the first row
    plan["files"] = [Path(name).name or name for name in plan["files"]]
    return {**summary, "plan": plan, "notes": []}
