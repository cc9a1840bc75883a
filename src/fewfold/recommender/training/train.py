"""Training FastVAE: epochs over users, two optimisers, a proposal that follows the items."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic

from fewfold import _native
from fewfold._progress import phase, silence
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.training.checkpoint import Checkpoint, Keeper, say
from fewfold.recommender.training.run import Epoch, Options, Run
from fewfold.sampling.multi_index import MultiIndex

__all__ = ["Epoch", "train"]


def train(
    model: FastVAE,
    interactions: Interactions,
    *,
    objective: Objective | None = None,
    validation: Split | None = None,
    epochs: int = 16,
    batch: int = 256,
    lr: float = 8e-3,
    beta: float = 0.4,
    beta_by_length: bool = False,
    annealing: float = 0.2,
    refresh_every: int = 1,
    patience: int | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: Checkpoint | None = None,
    time_budget: float | None = None,
) -> list[Epoch]:
    """Train the model on users' items, in place.

    The learning rate rises over the first steps and falls along a cosine to the end. Rows of the
    tables are moved by `fewfold.optim.Adam` when they have been touched, with a step size per row
    and no momentum, so that training needs hardly more memory than the model; everything else is
    moved by torch's.

    The same seed and number of threads give the same weights, to the last bit, also where training
    was killed and resumed from its checkpoint. Ctrl-C and SIGTERM end it after the step it is at,
    with a last checkpoint and `Interrupted`, a KeyboardInterrupt.

    Args:
        model: its items number as many as those of the interactions.
        interactions: users x items.
        objective: by default a `SampledSoftmax` from a `MultiIndex` by popularity.
        validation: tells progress, and when to stop; see `patience`.
        epochs: passes over the users.
        batch: users per step.
        lr: the highest learning rate.
        beta: the weight of the KL term.
        beta_by_length: weigh it for each user in proportion to the number of their items, `beta`
            being the mean.
        annealing: share of the steps over which the weight rises from 0.
        refresh_every: epochs after which the proposal follows the items again.
        patience: stop after as many epochs without a better NDCG@50, and keep the best model.
        seed: of the order of users, the dropout, the latent and the draws.
        progress: write a line per epoch to standard error, and on a terminal how far it is.
        checkpoint: where to keep training, and whether to go on from there.
        time_budget: seconds, those before a resume included. If fewer steps fit than the epochs
            have, the learning rate falls over these; the last epoch may then be a part of one.

    Returns:
        An `Epoch` for each pass.
    """
    options = Options(
        epochs, batch, lr, beta, beta_by_length, annealing, refresh_every, patience, seed,
        time_budget,
    )  # fmt: skip
    _check(model, interactions)
    chosen = default_objective(interactions) if objective is None else objective
    keeper = Keeper(checkpoint)
    with keeper.watch(), _repeatable(), silence(not progress):
        with phase("preparing the training"):
            run = Run(model, interactions, chosen, validation, options, progress)
            saved = keeper.saved({} if checkpoint is None else run.made(), run.layout)
            if saved is not None:
                run.restore(saved)
        if progress and checkpoint is not None and checkpoint.resume:
            say(
                f"no checkpoint at {keeper.path} yet" if saved is None else f"resumed {run.where()}"
            )
        model.train()
        while not run.finished:
            run.begin()
            parts = run.parts()
            with phase(run.epoch_name(), total=len(parts)) as epoch:
                for part in epoch.each(parts):
                    run.advance(part)
                    keeper.between(run)
                    if run.step >= run.steps:  # the time budget may have made them fewer
                        break
            run.end()
            if run.finished:
                keeper.finish(run)
    run.best.restore(model)
    model.eval()
    return run.log


def default_objective(interactions: Interactions) -> SampledSoftmax:
    """Draws from a multi-index by popularity, as many codewords as the catalogue bears."""
    words = max(1, min(16, interactions.items))
    return SampledSoftmax(MultiIndex(words, within="popularity"))


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Sums in the same order every time, as the kernels have it; plain torch has to be told."""
    if _native.instruction_set() is not None:
        yield
        return
    settings: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False  # nothing here reads what it has not written
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
