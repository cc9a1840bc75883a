"""Training of a FastVAE in progress whose users are streamed from a prepared log."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.prepared.streamed_epoch import StreamedEpoch
from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions
from fewfold.recommender.training.run import TrainingRun
from fewfold.recommender.training.schedule import build_optimizers
from fewfold.recommender.training.train_options import TrainOptions
from fewfold.recommender.training.vae_run import VAERun

__all__ = ["StreamedRun"]


class StreamedRun(VAERun):
    """A training of a FastVAE on users that are read while it runs.

    In a group of processes the histories of a batch are gathered from those that read them.
    """

    def __init__(
        self, model: FastVAE, streamed: StreamedInteractions, objective: Objective,
        options: TrainOptions, progress: bool,
    ) -> None:  # fmt: skip
        self.streamed, self.validation, self.group = streamed, None, model.tables.group
        self.interactions = streamed  # type: ignore[assignment]  # has rows() and counts()
        self.mean_length = streamed.pairs / streamed.users
        if model.tables.growth() is not None:
            raise ValueError("tables whose number of anchors is found cannot be streamed")
        count = StreamedEpoch.steps(streamed, options.batch)
        steps = max(1, options.epochs * count)
        optimizers = build_optimizers(model, options, steps, streamed.counts())
        generator = torch.Generator().manual_seed(options.seed)
        TrainingRun.__init__(
            self, model, optimizers, objective, options, count, progress, generator
        )

    def epoch_batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Draw the users of each step of an epoch."""
        return StreamedEpoch.draw(self.streamed, self.options.batch, generator)

    def _objective(self, rows: Tensor) -> Objective:
        return self.objective

    def passed(self) -> tuple[int, int]:
        """Return the number of users in this epoch so far, twice."""
        users = round(self.streamed.users * self.position / self.steps_per_epoch)
        return users, users

    def data_settings(self) -> dict[str, Any]:
        """Return the dropout, and a description of the log."""
        return {
            "dropout": self.model.dropout, **self.changes(),
            "interactions": self.streamed.describe(),
        }  # fmt: skip
