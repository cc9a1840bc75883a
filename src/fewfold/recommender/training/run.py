"""State of one training: its steps, its epochs, and what a checkpoint stores."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from fewfold._progress import line, phase, silence
from fewfold._random import generator_on
from fewfold._tensors import Found, Spec
from fewfold.distributed.group import Group
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.embeddings.sparsify.proximal import Proximal
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.training.checkpoint_file import Saved, describe
from fewfold.recommender.training.checkpoint_folder import Sharding
from fewfold.recommender.training.checkpoint_schema import Progress, checkpoint_layout
from fewfold.recommender.training.schedule import BestWeights, TimeBudget, relative_rate
from fewfold.recommender.training.train_options import Epoch, TrainOptions
from fewfold.sampling.item_rows import ItemRows
from fewfold.sampling.proposal import Proposal

__all__ = ["TrainingRun"]

_GROWING = 0.5  # share of the steps during which the number of anchors may change


class TrainingRun(ABC):
    """A training in progress. An epoch is `begin`, `advance` with each of its batches, `end`.

    A subclass defines the batches of an epoch, their loss, and the validation.

    Attributes:
        model: that is trained.
        optimizers: "tables", of parameters with a row per item, and "others".
        growth: what adapts the size of the tables, if there is anything.
        quiet: write no line per epoch, since it is part of a larger job that shows its progress.
        group: processes that train together, all with the same batches.
        interrupted, due: return whether this process is to stop, and whether to save.
        stopping, saving: whether the group agreed to, in the last step.
    """

    growth: AnchorGrowth | None = None
    group = Group()

    def __init__(
        self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer],
        objective: Objective, options: TrainOptions, steps_per_epoch: int, progress: bool,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.model, self.optimizers, self.objective = model, optimizers, objective
        self.options, self.progress, self.generator = options, progress, generator
        self.device_generator = generator_on(next(model.parameters()).device)
        self.quiet = self.stopping = self.saving = False
        self.interrupted: Callable[[], bool] = bool
        self.due: Callable[[], bool] = bool
        self.epoch_start = generator.get_state()
        self.steps_per_epoch = steps_per_epoch
        self.step, self.steps = 0, max(1, options.epochs * steps_per_epoch)
        self.total: float | Tensor = 0.0  # loss of this epoch, summed over its terms
        self.log: list[Epoch] = []
        self.best = BestWeights(options.patience)
        self.finished = False
        self.time = TimeBudget(options.time_budget, self.group)

    @abstractmethod
    def epoch_batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Draw the rows of each step of an epoch; the number of steps is always the same."""

    @abstractmethod
    def loss(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the mean loss of these rows, and the number of terms of the mean.

        In a group of processes each returns a part of the loss; see `sum_gradients`.
        """

    @abstractmethod
    def passed(self) -> tuple[int, int]:
        """Return the numbers of rows and of terms of the loss in this epoch so far."""

    @abstractmethod
    def proposal_counts(self) -> Tensor:
        """Return the counts of the items to which the proposal is fitted, (items,), positive."""

    @abstractmethod
    def item_vectors(self) -> Tensor | ItemRows:
        """Return the vectors of all items to which the proposal is fitted, (items, d)."""

    @abstractmethod
    def validate(self) -> float | None:
        """Return NDCG@50 on the validation set; None if there is none."""

    @abstractmethod
    def validation_seconds(self) -> float:
        """Estimate the seconds of a validation."""

    def held_out_loss(self) -> float:
        """Return the mean loss on what is held out to find the number of anchors."""
        raise NotImplementedError(f"{type(self).__name__} has no tables that grow")

    @abstractmethod
    def data_settings(self) -> dict[str, Any]:
        """Return a description of data and model beyond the shapes of its tensors."""

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
            counts = self.proposal_counts() if number == 1 else None
            with phase("fitting the proposal to the items"):
                _update_proposal(self.objective.proposal, self.item_vectors(), counts)
            self.time.proposal_updated(self.options.refresh_every)
        self.epoch_start = self.generator.get_state()
        self.epoch_batches(self.generator)  # as batches() draws them

    def batches(self) -> Sequence[Tensor]:
        """Return the rows of each remaining step of this epoch."""
        end = self.position + self.steps - self.step
        return self.all_batches()[self.position : end]

    def all_batches(self) -> Sequence[Tensor]:
        """Return the rows of each step of this epoch, those done included."""
        generator = torch.Generator()
        generator.set_state(self.epoch_start)
        return self.epoch_batches(generator)

    def epoch_name(self) -> str:
        """Return the number of this epoch and of all, as text."""
        return f"epoch {len(self.log) + 1}/{self._epochs}"

    @property
    def _epochs(self) -> int:
        return math.ceil(self.steps / self.steps_per_epoch)

    def advance(self, rows: Tensor) -> None:
        """Make one step of both optimisers with these rows."""
        options, optimizers = self.options, self.optimizers.values()
        if options.optimizer is None:
            rate = relative_rate(self.step, self.steps)
        else:
            rate = options.optimizer.relative_rate(self.step // self.steps_per_epoch)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = options.lr * group["share"] * rate
        loss, terms = self.loss(rows)
        loss.backward()
        mean = self.sum_gradients(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.total += mean * terms
        self.step += 1
        self.steps = self.time.total_steps(self)

    def step_generator(self) -> torch.Generator:
        """Return the generator of a step, of the device of the model where torch has one.

        Its seed is drawn from the generator of the training, which is on the CPU and is saved.
        """
        if self.device_generator is None:
            return self.generator
        seed = int(torch.randint(2**62, (), generator=self.generator))
        return self.device_generator.manual_seed(seed)

    def sum_gradients(self, loss: Tensor) -> float | Tensor:
        """Complete the gradients with those of other processes; return the loss of all.

        On a GPU it is a tensor that is not read, so that the next batch is prepared meanwhile.
        """
        return loss.item() if loss.is_cpu else loss.detach()

    def end(self) -> None:
        """End an epoch: evaluate, report, and decide whether training is finished."""
        users, terms = self.passed()
        mean = float(self.total) / terms  # waits for a GPU
        seconds = max(self.time.epoch_seconds(), 1e-9)
        with silence(not self.progress):
            ndcg = self.validate()
        if self.growth is not None and self.step < _GROWING * self.steps:
            with silence(not self.progress), phase("judging the number of anchors"):
                self.growth.epoch(self.held_out_loss())
        number = len(self.log) + 1
        self.log.append(Epoch(number, mean, seconds, users / seconds, ndcg))
        if self.progress and not self.quiet:
            _report_epoch(self.log, self._epochs)
        self.finished = self.best.update(self.model, ndcg) or self.step >= self.steps

    def stops(self) -> bool:
        """Return whether to stop after this step; all processes of a group do, or none."""
        return self.interrupted() if self.group.world == 1 else self.stopping

    def saves(self) -> bool:
        """Return whether to save after this step; all processes of a group do, or none."""
        return self.due() if self.group.world == 1 else self.saving

    def sharding(self) -> Sharding:
        """Return which tensors of `state` are divided among processes."""
        return Sharding()

    def where(self) -> str:
        """Return the current step and epoch, as text."""
        number = min(self.step // self.steps_per_epoch + 1, self._epochs)
        return f"at step {self.step} of {self.steps}, epoch {number} of {self._epochs}"

    def settings(self) -> dict[str, Any]:
        """Return everything that must be equal for a checkpoint to be resumed."""
        if isinstance(self.objective, SampledSoftmax):
            self.objective.proposal.state_dict()  # raises before training if it has none
        older = {"draws": 1, "optimizer": None}  # what older versions had, and did not write
        options = {
            name: value for name, value in asdict(self.options).items()
            if name not in older or value != older[name]
        }  # fmt: skip
        return {
            **options,
            **{
                f"model.{name}": f"{tuple(value.shape)} {value.dtype}"
                for name, value in self.model.state_dict().items()
            },
            "objective": describe(self.objective),
            **self.data_settings(),
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
        facts = {name: getattr(self, name) for name in names} | {"total": float(self.total)}
        if self.growth is not None:
            facts["growth"] = self.growth.state_dict()
        tensors = {name: value.cpu() for name, value in tensors.items()}
        return Saved(
            tensors, facts | {"log": log, "best": self.best.facts(), "pace": self.time.facts()}
        )

    def layout(self, found: Found) -> Iterator[tuple[str, Spec]]:
        """Return the tensors that a checkpoint of this training must have, given those `found`."""
        tables, others = (
            [each for group in self.optimizers[name].param_groups for each in group["params"]]
            for name in ("tables", "others")
        )
        return checkpoint_layout(found, self.model, tables, others, self.epoch_start)

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
            device = next(self.model.parameters()).device
            with saved.taking("proposal"):
                proposal.load_state_dict({k: v.to(device) for k, v in proposal_state.items()})
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


def _update_proposal(proposal: Proposal, items: Any, counts: Tensor | None) -> None:
    """Fit the proposal if there are counts, otherwise refresh it.

    Items in several processes are `ItemRows`, for proposals that take them.
    """
    if counts is None:
        proposal.refresh(items)
    else:
        proposal.fit(items, counts)


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
