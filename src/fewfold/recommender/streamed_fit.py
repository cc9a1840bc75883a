"""Fitting a recommender to a prepared log without holding it in memory."""

from typing import Any

import torch
from torch import Tensor

from fewfold._progress import notes, phase, silence
from fewfold._resources import resource_usage
from fewfold.distributed.group import Group
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.model_evaluation import Evaluation, assess
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.fit_job import FitJob, FitReport, shareable
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.fastvae.streamed_recipe import StreamedVAE, learn_streamed
from fewfold.recommender.prepared.prepared_log import PreparedLog
from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions, StreamedLog
from fewfold.recommender.reading.log import Log
from fewfold.recommender.reading.read_options import READ_DEFAULTS, ReadOptions
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.training.train_options import Deadline

__all__ = ["fit_streamed"]

_TESTED = 10_000  # most users that are tested


def fit_streamed(
    job: FitJob, source: StreamedLog, reading: ReadOptions
) -> tuple[RecommenderState, FitReport]:
    """Train and evaluate on a prepared log that is read part by part.

    In several processes all of them call this, each reads some of the parts, the first reports.
    Some users of the first window are tested, given a part of their items. The recommender knows
    no users of the log: it recommends from histories.
    """
    group = Group.current()
    if group.world > 1:
        job = job.for_group(group)
    deadline = None if job.time_budget is None else Deadline.after(job.time_budget)
    with (
        resource_usage() as cost,
        notes(job.progress),
        silence(not job.progress),
        phase("fitting the model"),
    ):
        log = StreamedInteractions.open(source, group)
        model = _checked(job, log.log, reading)
        options = job.options("fit", deadline=deadline)
        evaluation = None
        if job.held_out.test:
            split, description, users = _held_out(job, log)
            learned = learn_streamed(model, log.without(0, split.test, users), options)
            learned.fitted.to(job.device)
            evaluation = _evaluated(learned, split, description)
            if job.refit:
                options = job.options("refit", deadline=deadline)
                learned = learn_streamed(model, log, options, learned.weight)
        else:
            learned = learn_streamed(model, log, options)
    return _result(job, log.log, learned, evaluation, cost)


def _checked(job: FitJob, folder: PreparedLog, reading: ReadOptions) -> VAE:
    """Return the model; raise for what needs the log in memory."""
    if not isinstance(job.model, VAE):
        raise ValueError(
            f"only fastvae is trained on a streamed log, got {job.model.name}; write "
            "VAE() (--model fastvae), or read the log into memory"
        )
    unsupported = {
        "items_table (--items-table)": job.catalogue, "users_table (--users-table)": job.people,
        "half_life (--half-life)": None if job.half_life == "none" else job.half_life,
        "weights of the prepared log": folder.manifest.weights or None,
        **{
            name: value for name, value in reading.items()
            if value != READ_DEFAULTS[name]  # type: ignore[literal-required]
        },
    }  # fmt: skip
    wrong = [name for name, value in unsupported.items() if value is not None]
    if job.held_out.split == "temporal":
        wrong.append("split='temporal' (--split temporal)")
    if wrong:
        raise ValueError(
            f"a streamed log cannot be used with {', '.join(wrong)}; leave it out, or read the log "
            "into memory (without --stream)"
        )
    return job.model


def _held_out(job: FitJob, log: StreamedInteractions) -> tuple[Split, str, Tensor]:
    """Hold out pairs of some users of the first window; also return the users."""
    count, generator = log.starts[1], torch.Generator().manual_seed(job.seed)
    users = torch.randperm(count, generator=generator)[:_TESTED].sort().values
    chosen, way = log.sample(0, users, timed=True), job.held_out.split
    if way == "auto":
        way = "last" if chosen.times is not None else "random"
    try:
        split, words = hold_out(chosen, test=job.held_out.test, split=way, seed=job.seed)
    except ValueError:
        if job.held_out.split != "auto":
            raise
        split, words = hold_out(chosen, test=job.held_out.test, split="random", seed=job.seed)
    return split, f"{words}; of {len(users):,} users", users


def _evaluated(learned: StreamedVAE, split: Split, description: str) -> Evaluation:
    return assess(
        learned.fitted, split.fold_in.jagged, split.test.jagged, learned.log.counts() > 0,
        split=description,
    )  # fmt: skip


def _result(
    job: FitJob, folder: PreparedLog, learned: StreamedVAE, evaluation: Evaluation | None, cost: Any
) -> tuple[RecommenderState, FitReport]:
    log, manifest = learned.log, folder.manifest
    summary = folder.summary
    learned_from = {
        "users": log.users, "items": log.items, "pairs": log.pairs,
        "everything": log.pairs == manifest.pairs,
    }  # fmt: skip
    state = RecommenderState(
        job.model, job.training, job.seed, learned.fitted, folder.items, log.counts() > 0,
        evaluation=evaluation, data=shareable(summary.as_dict()), learned_from=learned_from,
        curve=tuple(epoch.point for epoch in learned.epochs),
    )  # fmt: skip
    none = Interactions.from_pairs([], [], shape=(0, log.items))  # the pairs are not held
    held = Log(none, Ids.of([]), folder.items, summary)
    report = FitReport(held, state.model, evaluation, learned.epochs, cost)
    return state, report
