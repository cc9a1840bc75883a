"""Fitting a recommender: read the log, hold out, train, evaluate, perhaps train on everything."""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fewfold._check import positive_number
from fewfold._progress import notes, phase, silence
from fewfold._resources import ResourceUsage, resource_usage
from fewfold._torch import CPU
from fewfold.distributed.group import Group
from fewfold.recommender.attribute_tables import ItemsTable, UsersTable
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.evaluation.dense_comparison import DenseComparison
from fewfold.recommender.evaluation.holdout import HoldOut
from fewfold.recommender.evaluation.model_evaluation import (
    MINUTE,
    Evaluation,
    assess,
    sample_users,
)
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.group_agreement import check_same, log_facts
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.item_features import ItemFeatures
from fewfold.recommender.models.fastvae.objectives import training_work
from fewfold.recommender.models.model import FitOptions, Learned, Model
from fewfold.recommender.reading.log import Log, read_log
from fewfold.recommender.reading.read_options import ReadOptions
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.saved_model import model_as_json
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.selection.half_life import Recency, choose_half_life
from fewfold.recommender.training.checkpoint import Checkpoint, print_message
from fewfold.recommender.training.train import Epoch
from fewfold.recommender.training.train_options import Deadline, Training
from fewfold.recommender.user_profiles import ProfileSettings
from fewfold.recommender.warm_vectors import WarmSettings

__all__ = ["FitJob", "FitReport", "shareable"]


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
        recency: how interactions count by their age, if that was asked.
        profiles: how attributes of users are used, if there are any.
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
    recency: Recency | None = None
    profiles: ProfileSettings | None = None

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
            "weights": self._weights(),
            "recency": None if self.recency is None else asdict(self.recency),
            "profiles": None if self.profiles is None else asdict(self.profiles),
        }

    def _weights(self) -> str | None:
        """Return what the model does with weights; None if there are none."""
        decays = self.recency is not None and self.recency.half_life is not None
        if self.log.interactions.weights is None and not decays:
            return None
        used = "uses them as confidence" if self.recipe.weighted else "ignores them"
        return f"{self.recipe.name} {used}"

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
        weights = self._weights()
        lines += [] if weights is None else [f"weights: {weights}"]
        lines += [] if self.recency is None else [str(self.recency)]
        lines += [] if self.profiles is None else [str(self.profiles)]
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
class FitJob:
    """A fit of a model to a log; see `Recommender.fit`.

    Attributes:
        model: the model with its settings.
        training: settings of the training.
        seed: of all random numbers.
        held_out: the part to evaluate on.
        refit: fit to the whole log after the evaluation.
        checkpoint: where to save the training.
        progress: show progress on standard error.
        time_budget: seconds for the whole job; None for no limit.
        catalogue: table of item attributes, if there is one.
        people: table of user attributes, if there is one.
        half_life: days in which the weight of an interaction halves, "auto" or "none"; None is
            auto for `Auto` and none for other models.
        device: on which networks are trained, and items are ranked.
    """

    model: Model
    training: Training
    seed: int
    held_out: HoldOut
    refit: bool = False
    checkpoint: Checkpoint | None = None
    progress: bool = True
    time_budget: float | None = None
    catalogue: ItemsTable | None = None
    people: UsersTable | None = None
    half_life: float | str | None = None
    device: torch.device = CPU

    def __post_init__(self) -> None:
        given = self.half_life
        if isinstance(given, str) and given not in ("auto", "none"):
            raise ValueError(f"half_life must be days, 'auto' or 'none', got {given!r}")
        if given is not None and not isinstance(given, str):
            positive_number(given, "half_life")

    def run(self, source: Any, reading: ReadOptions) -> tuple[RecommenderState, FitReport]:
        """Read the log, fit and evaluate; return the fitted recommender and the report.

        In several processes all of them call this, with the same log; the first reports.
        """
        group = Group.current()
        if group.world > 1:
            return self.for_group(group)._run(source, reading)
        return self._run(source, reading)

    def for_group(self, group: Group) -> "FitJob":
        """Return the job of one of several processes; ValueError if only one process can do it.

        DataError if a process has another job than the first one.
        """
        model = self.model.for_group(group)
        if self.device.type != "cpu":
            raise ValueError(
                f"several processes train on the CPU, got device {self.device}; leave device out, "
                "or start one process without torchrun"
            )
        if self.half_life == "auto":
            raise ValueError("half_life='auto' is found by one process; give days, or 'none'")
        catalogue = self.catalogue
        if catalogue is not None and catalogue.use:
            raise ValueError("item vectors are completed from attributes by one process alone")
        check_same(group, self._facts(model), "start all processes with the same options")
        if self.progress and group.leads:
            name = "" if model is self.model else f"; {model.name} is fitted, others need one"
            print_message(f"{group.world} processes fit together{name}")
        return replace(
            self, model=model, progress=self.progress and group.leads,
            half_life=self.half_life or "none",
            catalogue=None if catalogue is None else replace(catalogue, use=False),
        )  # fmt: skip

    def _facts(self, model: Model) -> dict[str, str]:
        """Return what all processes must have been given alike, as text."""
        given = {
            "time_budget": self.time_budget, "checkpoint": self.checkpoint,
            "items_table": self.catalogue, "users_table": self.people,
        }  # fmt: skip
        return {
            "set of options": ", ".join(n for n, value in given.items() if value is not None)
            or f"none of {', '.join(given)}",
            "model": json.dumps(model_as_json(model), sort_keys=True),
            "training": str(self.training),
            "seed": str(self.seed),
            "held-out part": f"{self.held_out}, refit={self.refit}",
            "half-life": str(self.half_life),
        }

    def _run(self, source: Any, reading: ReadOptions) -> tuple[RecommenderState, FitReport]:
        deadline = None if self.time_budget is None else Deadline.after(self.time_budget)
        # The outermost phase is shown while no other is running, so that nothing is silent.
        with (
            resource_usage() as cost,
            notes(self.progress),
            silence(not self.progress),
            phase("fitting the model"),
        ):
            log, table, model = read_log(source, **reading), None, self.model
            group = Group.current()
            if group.world > 1:
                with phase("comparing the logs of all processes"):
                    check_same(group, log_facts(log), "give all processes the same file")
            if self.catalogue is not None:
                table = self.catalogue.read(log, model)
                log, model = table.log, table.warmed(model)
            evaluation: Evaluation | None = None
            comparison: DenseComparison | None = None
            part = log.interactions
            if self.held_out.test:
                with phase("splitting the log"):
                    split, description = self.held_out.apply(log.interactions, self.seed)
                part = split.train
            recency = self._recency(part, deadline)
            weigh = (lambda pairs: pairs) if recency is None else recency.applied
            first = deadline and deadline.share(0.4 if self.refit else 0.8)
            limit = first if self.held_out.test else deadline
            learned = model.learn(weigh(part), self.options("fit", deadline=limit))
            learned.fitted.to(self.device)
            if self.held_out.test:
                evaluation, comparison = self._evaluate(learned, split, description, deadline)
                if self.refit:
                    part = log.interactions
                    options = self.options("refit", previous=learned, deadline=deadline)
                    learned = model.learn(weigh(part), options)
                    learned.fitted.to(self.device)
            if table is not None:  # of which a model without item vectors knows a part
                table = table.first(learned.fitted.items)
                log = table.log
            profiles = None
            if self.people is not None:
                trained = part.with_items(learned.fitted.items)
                profiles = self.people.profiles(log, trained, seed=self.seed)
        attributes = None if table is None else table.attributes
        features = None if table is None else table.features
        state = replace(
            self._state(log, learned, evaluation, attributes), recency=recency, profiles=profiles
        )
        tables = state.learned_from.get("tables")
        report = FitReport(
            log, state.model, evaluation, learned.epochs, cost, comparison, tables,
            learned.choice, learned.attributes, features, recency,
            None if profiles is None else profiles.settings,
        )  # fmt: skip
        return state, report

    def options(
        self,
        stage: str | None = None,
        previous: Learned | None = None,
        deadline: Deadline | None = None,
    ) -> FitOptions:
        """Return the options of one training; `stage` names its checkpoint."""
        checkpoint = self.checkpoint.stage(stage) if self.checkpoint and stage else None
        return FitOptions(
            self.training, self.seed, checkpoint, self.progress, previous,
            split=self.held_out.split, deadline=deadline, device=self.device,
        )  # fmt: skip

    def _evaluate(
        self, learned: Learned, split: Split, description: str, deadline: Deadline | None
    ) -> tuple[Evaluation, DenseComparison | None]:
        """Evaluate on the held-out part; compare a model with anchors with dense tables."""
        ordered = learned.fitted.recipe.ordered
        histories = split.fold_in.rows(slice(None), ordered=ordered)
        test = split.test.jagged
        users = None
        if not self.held_out.all_users:
            work = training_work(learned.log, sum(epoch.users for epoch in learned.epochs))
            if not learned.epochs:  # a model that is not trained in epochs
                work = learned.fitted.recipe.work(learned.log)
            if deadline is not None:
                (left,) = Group.current().agree(deadline.left())
                work = min(work, left / 60 * MINUTE)
            users = sample_users(learned.fitted, histories, test, training=work, seed=self.seed)
        seen = learned.log.counts() > 0
        measure = partial(
            assess, known=histories, test=test, seen=seen, split=description,
            dislikes=split.fold_in.disliked,
        )  # fmt: skip
        evaluation = measure(learned.fitted, users=users)
        reference, dense = self.model.dense_reference(), learned.dense
        if reference is not None and dense is None:
            dense = reference.learn(split.train, self.options()).fitted
        if dense is None:
            return evaluation, None
        dense_evaluation = measure(dense, users=users)
        return evaluation, DenseComparison.of(learned.fitted, dense, evaluation, dense_evaluation)

    def _recency(self, log: Interactions, deadline: Deadline | None) -> Recency | None:
        """Choose how interactions count by their age; None if nobody asked."""
        model, given = self.model, self.half_life
        if given is None and (not model.automatic or log.times is None):
            return None
        if given == "none":
            return None
        if not model.weighted:
            return Recency(None, f"{model.name} ignores weights")
        if given not in (None, "auto"):
            return Recency(float(given), "as given")
        options = self.options(deadline=deadline)
        tried = None if model.resumable else model
        return choose_half_life(log, options, tried, limited=given is None)

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
            data=shareable(log.summary.as_dict()), learned_from=learned_from,
            choice=learned.choice, warm=learned.attributes,
            curve=tuple(epoch.point for epoch in learned.epochs),
        )  # fmt: skip


def shareable(summary: dict[str, Any]) -> dict[str, Any]:
    """Remove folders and values of the log from its summary, since a model may be published."""
    plan = {**summary["plan"], "notes": []}  # a note may show the first row
    plan["files"] = [Path(name).name or name for name in plan["files"]]
    return {**summary, "plan": plan, "notes": []}
