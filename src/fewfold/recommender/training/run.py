"""State of one training of a FastVAE: its steps, epochs and what a checkpoint stores."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fewfold._progress import line, phase, silence
from fewfold._tensors import Found, Spec
from fewfold.embeddings.sparsify.proximal import Proximal
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.training.checkpoint_file import Saved, describe, describe_log
from fewfold.recommender.training.checkpoint_schema import Progress, checkpoint_layout
from fewfold.recommender.training.schedule import (
    BestWeights,
    TimeBudget,
    build_optimizers,
    relative_rate,
)
from fewfold.recommender.training.train_options import Epoch, TrainOptions
from fewfold.sampling.proposal import Proposal

__all__ = ["TrainingRun"]

_HELD_OUT = 2048  # most users that are held out to find the number of anchors
_GROWING = 0.5  # share of the steps during which the number of anchors may change
_TIMED = 2048  # users whose validation is timed


class TrainingRun:
    """A training in progress. An epoch is `begin`, `advance` with each of its batches, `end`."""

    def __init__(
        self, model: FastVAE, interactions: Interactions, objective: Objective,
        validation: Split | None, options: TrainOptions, progress: bool,
    ) -> None:  # fmt: skip
        self.model, self.interactions, self.objective = model, interactions, objective
        self.validation, self.options, self.progress = validation, options, progress
        self.users = interactions.jagged.lengths.nonzero().squeeze(1)
        self.mean_length = interactions.jagged.lengths[self.users].double().mean().item()
        self.generator = torch.Generator().manual_seed(options.seed)
        self.growth = model.tables.growth()
        if self.growth is not None:
            shuffled = self.users[torch.randperm(len(self.users), generator=self.generator)]
            size = min(_HELD_OUT, len(shuffled) // 20 + 1)
            self.held_out, self.users = shuffled[:size], shuffled[size:].sort().values
        self.epoch_start = self.generator.get_state()
        self.steps_per_epoch = math.ceil(len(self.users) / options.batch)
        self.step, self.steps = 0, max(1, options.epochs * self.steps_per_epoch)
        self.total = 0.0  # loss of this epoch, summed over users
        self.optimizers = build_optimizers(model, options.lr, self.steps, interactions.counts())
        self.log: list[Epoch] = []
        self.best = BestWeights(options.patience)
        self.finished = False
        self.time = TimeBudget(options.time_budget)

    @property
    def position(self) -> int:
        """Number of steps done in this epoch."""
        return self.step - len(self.log) * self.steps_per_epoch

    def begin(self) -> None:
        """Start an epoch with an update of the proposal, unless a resumed epoch has begun."""
        if self.position:
            return
        number, self.total = len(self.log) + 1, 0.0
        self.time.start_epoch()
        if isinstance(self.objective, SampledSoftmax) and (
            (number - 1) % self.options.refresh_every == 0
        ):
            counts = self.interactions.counts() if number == 1 else None
            with phase("fitting the proposal to the items"):
                _update_proposal(self.objective.proposal, self.model.outputs(), counts)
            self.time.proposal_updated(self.options.refresh_every)
        self.epoch_start = self.generator.get_state()
        torch.randperm(len(self.users), generator=self.generator)  # as batches() draws it

    def batches(self) -> Sequence[Tensor]:
        """Return the users of each remaining step of this epoch."""
        generator = torch.Generator()
        generator.set_state(self.epoch_start)
        order = self.users[torch.randperm(len(self.users), generator=generator)]
        end = self.position + self.steps - self.step
        batches: Sequence[Tensor] = order.split(self.options.batch)[self.position : end]
        return batches

    def epoch_name(self) -> str:
        """Return the number of this epoch and of all, as text."""
        return f"epoch {len(self.log) + 1}/{self._epochs}"

    @property
    def _epochs(self) -> int:
        return math.ceil(self.steps / self.steps_per_epoch)

    def advance(self, users: Tensor) -> None:
        """Make one step of both optimisers with these users."""
        options, optimizers = self.options, self.optimizers.values()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = options.lr * group["share"] * relative_rate(self.step, self.steps)
        history = self.interactions.rows(users)
        rise = options.annealing * self.steps
        weight = options.beta * min(1.0, self.step / rise) if rise else options.beta
        weights = weight * history.lengths / self.mean_length if options.beta_by_length else weight
        loss = self.model.loss(history, self.objective, beta=weights, generator=self.generator)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.total += loss.item() * len(users)
        self.step += 1
        self.steps = self.time.total_steps(self)

    def end(self) -> None:
        """End an epoch: evaluate, report, and decide whether training is finished."""
        seconds = max(self.time.epoch_seconds(), 1e-9)
        users = min(self.position * self.options.batch, len(self.users))
        with silence(not self.progress):
            ndcg = None if self.validation is None else _ndcg(self.model, self.validation)
        if self.growth is not None and self.step < _GROWING * self.steps:
            with silence(not self.progress), phase("judging the number of anchors"):
                self.growth.epoch(self._held_out_loss())
        number = len(self.log) + 1
        self.log.append(Epoch(number, self.total / users, seconds, users / seconds, ndcg))
        if self.progress:
            _report_epoch(self.log, self._epochs)
        self.finished = self.best.update(self.model, ndcg) or self.step >= self.steps

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """Return the mean loss per interaction of the held-out users."""
        total, generator = 0.0, torch.Generator().manual_seed(self.options.seed)
        for users in self.held_out.split(self.options.batch):
            history = self.interactions.rows(users)
            loss = self.model.loss(history, self.objective, beta=0.0, generator=generator)
            total += loss.item() * len(users)
        return total / max(int(self.interactions.rows(self.held_out).lengths.sum()), 1)

    def where(self) -> str:
        """Return the current step and epoch, as text."""
        number = min(self.step // self.steps_per_epoch + 1, self._epochs)
        return f"at step {self.step} of {self.steps}, epoch {number} of {self._epochs}"

    def settings(self) -> dict[str, Any]:
        """Return everything that must be equal for a checkpoint to be resumed."""
        if isinstance(self.objective, SampledSoftmax):
            self.objective.proposal.state_dict()  # raises before training if it has none
        held = self.validation
        return {
            **asdict(self.options),
            **{
                f"model.{name}": f"{tuple(value.shape)} {value.dtype}"
                for name, value in self.model.state_dict().items()
            },
            "dropout": self.model.dropout,
            "objective": describe(self.objective),
            "interactions": describe_log(self.interactions),
            "validation": held and [describe_log(held.fold_in), describe_log(held.test)],
        }

    def state(self) -> Saved:
        """Return the state for a checkpoint; its tensors are not copied."""
        tensors = {"generator.now": self.generator.get_state(), "generator.begin": self.epoch_start}
        parts = {"model": self.model.state_dict(), "best": self.best.state}
        for name, optimizer in self.optimizers.items():
            for index, entry in optimizer.state_dict()["state"].items():
                parts[f"{name}.{index}"] = entry
            if isinstance(optimizer, Proximal):
                parts["winners"] = {str(i): each for i, each in enumerate(optimizer.winners())}
        if isinstance(self.objective, SampledSoftmax):
            parts["proposal"] = self.objective.proposal.state_dict()
        for part, entry in parts.items():
            tensors |= {
                f"{part}.{name}": value for name, value in entry.items() if value is not None
            }
        log = [list(asdict(epoch).values()) for epoch in self.log]
        names = ("step", "steps", "total", "finished")
        facts = {name: getattr(self, name) for name in names}
        if self.growth is not None:
            facts["growth"] = self.growth.state_dict()
        return Saved(
            tensors, facts | {"log": log, "best": self.best.facts(), "pace": self.time.facts()}
        )

    def layout(self, found: Found) -> Iterator[tuple[str, Spec]]:
        """Return the tensors that a checkpoint of this training must have, given those `found`."""
        groups = self.optimizers["others"].param_groups
        others = [each for group in groups for each in group["params"]]
        return checkpoint_layout(found, self.model, others, self.epoch_start)

    def restore(self, saved: Saved) -> None:
        """Restore what `state` returned; ArtifactError names what does not fit."""
        saved.expect(self.layout(saved.found))
        progress = Progress.of(
            saved, self.steps, self.steps_per_epoch, growing=self.growth is not None
        )
        facts = saved.facts
        with saved.taking("model"):
            self.model.load_state_dict(saved.part("model"))
        for name, optimizer in self.optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in saved.part(name).items():
                index, _, entry = key.partition(".")
                state.setdefault(int(index), {})[entry] = value.clone()
            whole = {**optimizer.state_dict(), "state": state}
            if isinstance(optimizer, Proximal):
                winners = saved.part("winners")
                stored = [winners.get(str(i)) for i in range(len(optimizer.winners()))]
                whole["proximal"] = {"steps": progress.step, "winners": stored}
            with saved.taking(name):
                optimizer.load_state_dict(whole)
        if isinstance(self.objective, SampledSoftmax):
            proposal, proposal_state = self.objective.proposal, saved.part("proposal")
            with saved.taking("proposal"):
                proposal.load_state_dict(proposal_state)
            if progress.step and set(proposal.state_dict()) != set(proposal_state):
                saved.fail("proposal", f"cannot be used: it has only {', '.join(proposal_state)}")
        with saved.taking("generator"):
            for name in ("begin", "now"):  # both are checked, the last stays
                self.generator.set_state(saved.tensors[f"generator.{name}"].clone())
        self.epoch_start = saved.tensors["generator.begin"].clone()
        self.step, self.steps = progress.step, progress.steps
        self.total, self.finished = progress.total, progress.finished
        self.log = [Epoch(*entry) for entry in progress.log]
        self.best.load(list(progress.best), saved.part("best"))
        self.time.load(facts["pace"])
        if self.growth is not None:
            with saved.taking("growth"):
                self.growth.load_state_dict(facts["growth"])

    def validation_seconds(self) -> float:
        """Estimate the seconds of a validation, from a part of its users."""
        if self.validation is None:
            return 0.0
        known = self.validation.fold_in
        users = min(_TIMED, known.users)
        began = time.perf_counter()
        with silence():
            self.model.recommend(known.rows(slice(0, users)), 50)
        return (time.perf_counter() - began) * known.users / max(users, 1)


def _update_proposal(proposal: Proposal, items: Tensor, counts: Tensor | None) -> None:
    """Fit the proposal if there are counts, otherwise refresh it."""
    if counts is None:
        proposal.refresh(items)
    else:
        # Plus one: an item without interactions may be a positive of a new user.
        proposal.fit(items, (counts + 1).log1p())


def _ndcg(model: FastVAE, validation: Split) -> float:
    top = model.recommend(validation.fold_in, 50)
    return evaluate(top, validation.test, (NDCG(50),), resamples=1)[NDCG(50)].mean


def _report_epoch(log: list[Epoch], epochs: int) -> None:
    """Print the last epoch to standard error."""
    line("")
    last = log[-1]
    left = sum(epoch.seconds for epoch in log) / len(log) * (epochs - last.number)
    score = "" if last.ndcg is None else f"  NDCG@50 {last.ndcg:.4f}"
    print(
        f"epoch {last.number}/{epochs}  loss {last.loss:.3f}{score}  "
        f"{last.users_per_second:,.0f} users/s  {left:.0f} s left",
        file=sys.stderr,
    )
