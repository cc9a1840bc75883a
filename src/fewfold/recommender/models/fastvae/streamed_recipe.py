"""Training of a `VAE` with its shortcut on a log that is streamed from disk."""

from dataclasses import astuple, dataclass, replace

import torch

from fewfold._progress import phase, silence
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.fastvae.objectives import SampledSoftmax
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.fastvae.shortcut import BLOCK, Directions
from fewfold.recommender.models.fastvae.shortcut_weight import Trial, Weight, tuned_weight
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions
from fewfold.recommender.training.run import TrainingRun
from fewfold.recommender.training.streamed_run import StreamedRun
from fewfold.recommender.training.train import run_training
from fewfold.recommender.training.train_options import Epoch
from fewfold.sampling.multi_index import MultiIndex

__all__ = ["StreamedVAE", "learn_streamed"]

_LENGTH, _SAMPLED = 5, 6000  # items and number of users of whom `Trial.of` chooses a quarter


@dataclass(frozen=True, eq=False)
class StreamedVAE:
    """Result of `learn_streamed`.

    Attributes:
        fitted: the fitted model.
        log: what it was fitted to.
        epochs: of the training.
        weight: of the shortcut, if there is one.
    """

    fitted: FittedVAE
    log: StreamedInteractions
    epochs: list[Epoch]
    weight: Weight | None


def learn_streamed(
    recipe: VAE, log: StreamedInteractions, options: FitOptions, weight: Weight | None = None
) -> StreamedVAE:
    """Train as `VAE.learn` does, without holding the log.

    All processes that read the log call this together.

    Args:
        recipe: the model, without anchors.
        log: the users and their items.
        options: of the training.
        weight: of the shortcut; None chooses it on hidden pairs of users of the first window.
    """
    if recipe.anchors is not None:
        raise ValueError(
            "tables of anchors need the log in memory; drop anchors (--anchors), or stream "
            "(--stream)"
        )
    seed, progress = options.seed, options.progress
    with silence(not progress), phase("preparing the model"):
        model, rank, trial = recipe.network(log.items, seed), recipe.rank(log.items), None
        if rank and weight is None:
            log, trial = _with_trial(log, seed)
    training = options.limited_training()
    if training.time_budget is not None:
        (budget,) = log.group.agree(training.time_budget)
        training = replace(training, time_budget=budget)
    train_options = training.options(log.users, seed)
    words = max(1, min(16, log.items))
    objective = SampledSoftmax(MultiIndex(words, within="popularity"))

    def prepare() -> TrainingRun:
        return StreamedRun(model, log, objective, train_options, progress)

    model.to(options.device)
    epochs = run_training(prepare, options.checkpoint, progress=progress)
    model.cpu()
    if rank:
        with silence(not progress):
            directions = Directions.of_blocks(
                lambda: log.blocks(BLOCK), log.counts(), log.users, rank, seed=seed, group=log.group
            )
            if trial is not None:
                weight = tuned_weight(model, directions, trial, seed=seed, users=log.users)
            weight = Weight(*log.group.agree(*astuple(weight or Weight())))
            with phase("computing the shortcut"):
                model.shortcut = weight.of(directions, log.users)
    with silence(not progress), phase("finishing the tables"):
        model.finalize()
    return StreamedVAE(FittedVAE(recipe, model), log, epochs, weight)


def _with_trial(log: StreamedInteractions, seed: int) -> tuple[StreamedInteractions, Trial | None]:
    """Hide pairs of users of the first window, which are hashed and so drawn at random."""
    eligible = (log.lengths(0) >= _LENGTH).nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(eligible), generator=generator)[:_SAMPLED].sort().values
    users = eligible[chosen]
    first = log.sample(0, users)
    trial = Trial.of(first, seed=seed)
    if trial is None:
        return log, None
    gone = trial.rest.jagged.lengths == 0  # nothing could be learned from them
    most = first.items
    kept = torch.isin(
        first.row * most + first.ids, trial.rest.row * most + trial.rest.ids
    ) | gone[first.row]  # fmt: skip
    return log.without(0, first.keep(~kept), users), trial
