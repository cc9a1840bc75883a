"""Training of a FastVAE."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
import torch.utils.deterministic

from fewfold._check import known_names
from fewfold._native import dispatch
from fewfold._progress import inside_phase, phase, silence
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.training.checkpoint import Checkpoint, CheckpointWriter, print_message
from fewfold.recommender.training.run import TrainingRun
from fewfold.recommender.training.train_options import Epoch, TrainOptions
from fewfold.recommender.training.vae_run import VAERun
from fewfold.sampling.multi_index import MultiIndex

__all__ = ["Epoch", "TrainOptions", "run_training", "train"]


def train(
    model: FastVAE,
    interactions: Interactions,
    options: TrainOptions | None = None,
    *,
    objective: Objective | None = None,
    validation: Split | None = None,
    checkpoint: Checkpoint | None = None,
    progress: bool = True,
    **changes: Any,
) -> list[Epoch]:
    """Train the model on users' items, in place.

    The learning rate rises over the first steps and falls along a cosine to the end. Rows of the
    tables are updated by `fewfold.optim.Adam` in the steps that touch them, with a step size per
    row and no momentum, so that training needs hardly more memory than the model; all other
    parameters are updated by torch's Adam.

    The same seed and number of threads give the same weights, to the last bit, also where training
    was killed and resumed from its checkpoint. Ctrl-C and SIGTERM end it after the current step,
    with a last checkpoint and `Interrupted`, a KeyboardInterrupt.

    Args:
        model: with as many items as the interactions.
        interactions: users x items.
        options: number of epochs, learning rate, seed and more; see `TrainOptions`.
        objective: by default a `SampledSoftmax` from a `MultiIndex` by popularity.
        validation: evaluated after each epoch; see `TrainOptions.patience`.
        checkpoint: where to save training, and whether to resume it.
        progress: write a line per epoch to standard error, and on a terminal a progress bar.
        changes: fields of `TrainOptions` that differ from `options`, as in
            ``train(model, log, epochs=3, lr=1e-2)``.

    Returns:
        An `Epoch` for each pass.
    """
    options = _changed(options or TrainOptions(), changes)
    _check(model, interactions)
    objective = default_objective(interactions) if objective is None else objective

    def prepare() -> TrainingRun:
        return VAERun(model, interactions, objective, validation, options, progress)

    return run_training(prepare, checkpoint, progress=progress)


def run_training(
    prepare: Callable[[], TrainingRun], checkpoint: Checkpoint | None, *, progress: bool
) -> list[Epoch]:
    """Run a training to its end, with checkpoints; return an `Epoch` for each pass.

    Args:
        prepare: returns the training at its first step.
        checkpoint: where to save it, and whether to resume it.
        progress: write a line per epoch to standard error.
    """
    writer = CheckpointWriter(checkpoint)
    with writer.defer_signals(), _repeatable(), silence(not progress):
        with phase("preparing the training"):
            run = prepare()
            run.interrupted, run.due = writer.signalled, writer.due
            settings = {} if checkpoint is None else run.settings()
            saved = writer.load(settings, run.layout, run.sharding())
            if saved is not None:
                run.restore(saved)
        run.quiet = inside_phase()
        if progress and checkpoint is not None and checkpoint.resume:
            if saved is not None:
                print_message(f"resumed {run.where()}")
            elif not run.quiet:
                print_message(f"no checkpoint at {writer.path} yet")
        run.model.train()
        with phase("training", total=run.steps) if run.quiet else contextlib.nullcontext() as whole:
            while not run.finished:
                if whole is not None:
                    whole.total, whole.part = run.steps, run.steps_per_epoch
                    whole.advance(run.step)
                _run_epoch(run, writer)
    run.best.restore(run.model)
    run.model.eval()
    return run.log


def _run_epoch(run: TrainingRun, writer: CheckpointWriter) -> None:
    """Take the remaining steps of an epoch, and save the training after those that are due."""
    run.begin()
    batches = run.batches()
    with phase(run.epoch_name(), total=len(batches)) as epoch:
        for rows in epoch.each(batches):
            run.advance(rows)
            writer.after_step(run)
            if run.step >= run.steps:  # the time budget may have reduced them
                break
    run.end()
    if run.finished:
        writer.finish(run)


def _changed(options: TrainOptions, changes: dict[str, Any]) -> TrainOptions:
    """Return the options with these fields replaced."""
    known_names(changes, [field.name for field in fields(TrainOptions)], "train")
    return replace(options, **changes)


def default_objective(interactions: Interactions) -> SampledSoftmax:
    """Return a sampled softmax from a multi-index by popularity, with at most 16 codewords."""
    words = max(1, min(16, interactions.items))
    return SampledSoftmax(MultiIndex(words, within="popularity"))


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Make sums deterministic. The kernels are; plain torch needs a setting."""
    if dispatch.instruction_set() is not None:
        yield
        return
    settings: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False  # nothing here reads uninitialized memory
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = fill


def _check(model: FastVAE, interactions: Interactions) -> None:
    if model.count != interactions.items:
        raise ValueError(
            f"the model has {model.count} items, the interactions {interactions.items}; "
            f"write FastVAE(items={interactions.items})"
        )
    if interactions.pairs == 0:
        raise ValueError("there is nothing to learn from: the interactions are empty")
