"""Training of a FastVAE in progress: batches of users, their loss, the validation."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fewfold._progress import silence
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective, smoothed_log
from fewfold.recommender.training.checkpoint_file import Saved, describe, describe_log
from fewfold.recommender.training.checkpoint_folder import Sharding
from fewfold.recommender.training.run import TrainingRun
from fewfold.recommender.training.schedule import build_optimizers
from fewfold.recommender.training.train_options import TrainOptions
from fewfold.sampling.item_rows import ItemRows

__all__ = ["VAERun"]

_HELD_OUT = 2048  # most users that are held out to find the number of anchors
_TIMED = 2048  # users whose validation is timed


class VAERun(TrainingRun):
    """A training of a FastVAE; its rows are users.

    If its tables are in several processes, all of them go through the same batches, and each
    encodes a part of the users of each.
    """

    model: FastVAE

    def __init__(
        self, model: FastVAE, interactions: Interactions, objective: Objective,
        validation: Split | None, options: TrainOptions, progress: bool,
    ) -> None:  # fmt: skip
        self.interactions, self.validation = interactions, validation
        self.group = model.tables.group
        self.users = interactions.jagged.lengths.nonzero().squeeze(1)
        self.mean_length = interactions.jagged.lengths[self.users].double().mean().item()
        generator = torch.Generator().manual_seed(options.seed)
        growth = model.tables.growth()
        if growth is not None:
            shuffled = self.users[torch.randperm(len(self.users), generator=generator)]
            size = min(_HELD_OUT, len(shuffled) // 20 + 1)
            self.held_out, self.users = shuffled[:size], shuffled[size:].sort().values
        count = math.ceil(len(self.users) / options.batch)
        steps = max(1, options.epochs * count)
        optimizers = build_optimizers(model, options, steps, interactions.counts())
        super().__init__(model, optimizers, objective, options, count, progress, generator)
        self.growth = growth

    def epoch_batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Draw the users of each step of an epoch."""
        order = self.users[torch.randperm(len(self.users), generator=generator)]
        batches: Sequence[Tensor] = order.split(self.options.batch)
        return batches

    def loss(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the mean loss of these users, and their number."""
        options, history = self.options, self.interactions.rows(rows)
        objective = self._objective(rows)
        rise = options.annealing * self.steps
        weight = options.beta * min(1.0, self.step / rise) if rise else options.beta
        weights = weight * history.lengths / self.mean_length if options.beta_by_length else weight
        draws = {} if options.draws == 1 else {"draws": options.draws}  # a subclass may take none
        draw = self.step_generator()
        loss = self.model.loss(history, objective, beta=weights, generator=draw, **draws)
        return loss, len(rows)

    def sum_gradients(self, loss: Tensor) -> float | Tensor:
        """Complete the gradients with those of other processes; return the loss of all."""
        if self.group.world == 1:
            return super().sum_gradients(loss)
        groups, rows = self.optimizers["others"].param_groups, self.optimizers["tables"]

        def move_rows() -> None:
            rows.step()
            rows.zero_grad(set_to_none=True)

        shared = [p for each in groups for p in each["params"]]
        # One number for two questions: each process that is to stop adds 1, the first 1/2 to save.
        request = float(self.interrupted()) + (0.5 if self.group.leads and self.due() else 0.0)
        numbers = torch.stack([loss.detach(), loss.new_tensor(request)])
        mean, request = self.model.tables.sum_gradients(numbers, shared, move_rows).tolist()
        self.stopping, self.saving = request >= 1, request % 1 > 0
        return float(mean)

    def _objective(self, rows: Tensor) -> Objective:
        """Return the objective with the weights of these users' items, if it takes any."""
        given = self.interactions.weights
        if given is None or not hasattr(self.objective, "weights"):
            return self.objective
        _, positions = self.interactions.jagged.positions(rows)
        objective: Any = self.objective
        return cast("Objective", replace(objective, weights=given[positions]))

    def passed(self) -> tuple[int, int]:
        """Return the number of users in this epoch so far, twice."""
        users = min(self.position * self.options.batch, len(self.users))
        return users, users

    def proposal_counts(self) -> Tensor:
        """Return the popularity of each item by the function of the objective, (items,)."""
        popularity = getattr(self.objective, "popularity", smoothed_log)
        found: Tensor = popularity(self.interactions.counts())
        return found

    def item_vectors(self) -> Tensor | ItemRows:
        """Return the decoder's item vectors, (items, latent + 1)."""
        return self.model.tables.output_rows()

    def validate(self) -> float | None:
        """Return NDCG@50 on the validation set; None if there is none."""
        if self.validation is None:
            return None
        top = self.model.recommend(self.validation.fold_in, 50)
        return evaluate(top, self.validation.test, (NDCG(50),), resamples=1)[NDCG(50)].mean

    def validation_seconds(self) -> float:
        """Estimate the seconds of a validation, from a part of its users."""
        if self.validation is None:
            return 0.0
        known = self.validation.fold_in
        users = min(_TIMED, known.users)
        began = self.time.now()
        with silence():
            self.model.recommend(known.rows(slice(0, users)), 50)
        return (self.time.now() - began) * known.users / max(users, 1)

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the mean loss per interaction of the held-out users."""
        total, generator = 0.0, torch.Generator().manual_seed(self.options.seed)
        for users in self.held_out.split(self.options.batch):
            history = self.interactions.rows(users)
            loss = self.model.loss(history, self._objective(users), beta=0.0, generator=generator)
            total += loss.item() * len(users)
        return total / max(int(self.interactions.rows(self.held_out).lengths.sum()), 1)

    def sharding(self) -> Sharding:
        """Return the rows of tables, and of their optimiser, that are divided among processes."""
        if self.group.world == 1:
            return Sharding()
        names = [f"{part}.{name}" for part in ("model", "best") for name in self._row_names()]
        return Sharding(self.group, self.model.tables.count, ("tables.", *names))

    def state(self) -> Saved:
        """Return the state for a checkpoint, in which every process has a part of each table."""
        saved = super().state()
        if self.group.world == 1:
            return saved
        for index, table in enumerate(self.model.tables.row_parameters):
            known = f"tables.{index}.step" in saved.tensors
            if not self.group.every(not known) and not known:  # no row was updated here so far
                saved.tensors[f"tables.{index}.step"] = torch.zeros(len(table), dtype=torch.int32)
                saved.tensors[f"tables.{index}.square"] = table.new_zeros(len(table))
        return saved

    def settings(self) -> dict[str, Any]:
        """Return what must be equal to resume, which does not depend on the number of processes."""
        found = super().settings()
        if self.group.world > 1:
            state, count = self.model.state_dict(), self.model.tables.count
            for name in self._row_names():
                shape = (count, *state[name].shape[1:])
                found[f"model.{name}"] = f"{shape} {state[name].dtype}"
        return found

    def _row_names(self) -> list[str]:
        """Return the names of parameters with a row per item, in the state of the model."""
        rows = {each.data_ptr() for each in self.model.tables.row_parameters}
        state = self.model.state_dict()
        return [name for name, value in state.items() if value.data_ptr() in rows]

    def changes(self) -> dict[str, Any]:
        """Return settings that are not the default, as a checkpoint of an older version has it."""
        found: dict[str, Any] = {}
        if self.model.encoder is not None:
            found["encoder"] = describe(self.model.encoder)
        popularity = getattr(self.objective, "popularity", smoothed_log)
        if popularity is not smoothed_log:
            found["popularity"] = describe(popularity)
        return found

    def data_settings(self) -> dict[str, Any]:
        """Return a description of the model, the interactions and the validation."""
        held = self.validation
        return {
            "dropout": self.model.dropout,
            **self.changes(),
            "interactions": describe_log(self.interactions),
            "validation": held and [describe_log(held.fold_in), describe_log(held.test)],
        }
