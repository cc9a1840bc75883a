"""One training of a FastVAE: where it is, its next step, and all that is needed to go on."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold import optim
from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold._progress import line, phase, silence
from fewfold._tensors import Found, Spec
from fewfold.embeddings.sparsify.proximal import Proximal
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.splits import Split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.training.checkpoint import Saved, digest
from fewfold.recommender.training.checkpoint_schema import Progress, checkpoint_layout
from fewfold.recommender.training.stopping import Best, Pace
from fewfold.sampling.proposal import Proposal

__all__ = ["Epoch", "Options", "Run"]

_WARM = 100  # steps over which the learning rate rises
_LEAST = 0.02  # of the learning rate at the end
_JUDGES = 2048  # users by whom the number of anchors is found
_GROWING = 0.5  # of the steps, during which it may change
_TRIAL = 2048  # users whose validation is timed
_SHARED = 0.1  # of the learning rate, for what all items share: every step moves all of them


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: mean loss per user, seconds, and NDCG@50 on the validation set."""

    number: int
    loss: float
    seconds: float
    users_per_second: float
    ndcg: float | None


@dataclass(frozen=True)
class Options:
    """What numbers depend on, beside the data, the model and the objective."""

    epochs: int
    batch: int
    lr: float
    beta: float
    beta_by_length: bool
    annealing: float
    refresh_every: int
    patience: int | None
    seed: int
    time_budget: float | None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "refresh_every"):
            whole_number(getattr(self, name), name)
        for name in ("lr", "beta", "annealing"):
            non_negative_number(getattr(self, name), name)
        if self.patience is not None:
            whole_number(self.patience, "patience")
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")


class Run:
    """Where training is. An epoch is `begin`, `advance` with each of its parts, `end`."""

    def __init__(
        self, model: FastVAE, interactions: Interactions, objective: Objective,
        validation: Split | None, options: Options, progress: bool,
    ) -> None:  # fmt: skip
        self.model, self.interactions, self.objective = model, interactions, objective
        self.validation, self.options, self.progress = validation, options, progress
        self.users = interactions.jagged.lengths.nonzero().squeeze(1)
        self.usual = interactions.jagged.lengths[self.users].double().mean().item()
        self.generator = torch.Generator().manual_seed(options.seed)
        self.growth = model.tables.growth()
        if self.growth is not None:  # judged by users nothing is learned from
            mixed = self.users[torch.randperm(len(self.users), generator=self.generator)]
            few = min(_JUDGES, len(mixed) // 20 + 1)
            self.judges, self.users = mixed[:few], mixed[few:].sort().values
        self.at_begin = self.generator.get_state()  # of this epoch
        self.count = math.ceil(len(self.users) / options.batch)  # steps per epoch
        self.step, self.steps, self.total = 0, max(1, options.epochs * self.count), 0.0
        self.optimizers = _optimizers(model, options.lr, self.steps, interactions.counts())
        self.log: list[Epoch] = []
        self.best = Best(options.patience)
        self.finished = False
        self.pace = Pace(options.time_budget)

    @property
    def position(self) -> int:
        """Steps made of this epoch."""
        return self.step - len(self.log) * self.count

    def begin(self) -> None:
        """Let the proposal follow the items, unless the epoch had begun before a resume."""
        if self.position:
            return
        number, self.total = len(self.log) + 1, 0.0
        self.pace.begin()
        if isinstance(self.objective, SampledSoftmax) and (
            (number - 1) % self.options.refresh_every == 0
        ):
            counts = self.interactions.counts() if number == 1 else None
            with phase("fitting the proposal to the items"):
                _follow(self.objective.proposal, self.model.outputs(), counts)
            self.pace.followed(self.options.refresh_every)
        self.at_begin = self.generator.get_state()
        torch.randperm(len(self.users), generator=self.generator)  # as parts() draws it

    def parts(self) -> Sequence[Tensor]:
        """Users of each step that this epoch still has."""
        again = torch.Generator()
        again.set_state(self.at_begin)
        order = self.users[torch.randperm(len(self.users), generator=again)]
        end = self.position + self.steps - self.step
        parts: Sequence[Tensor] = order.split(self.options.batch)[self.position : end]
        return parts

    def epoch_name(self) -> str:
        """Which epoch this is, and of how many."""
        return f"epoch {len(self.log) + 1}/{self._epochs}"

    @property
    def _epochs(self) -> int:
        return math.ceil(self.steps / self.count)

    def advance(self, users: Tensor) -> None:
        """One step of both optimisers."""
        options, optimizers = self.options, self.optimizers.values()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = options.lr * group["share"] * _rate(self.step, self.steps)
        history = self.interactions.rows(users)
        rise = options.annealing * self.steps
        weight = options.beta * min(1.0, self.step / rise) if rise else options.beta
        weights = weight * history.lengths / self.usual if options.beta_by_length else weight
        loss = self.model.loss(history, self.objective, beta=weights, generator=self.generator)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.total += loss.item() * len(users)
        self.step += 1
        self.steps = self.pace.steps(self)

    def end(self) -> None:
        """Evaluate, tell, and see whether this was the last epoch."""
        seconds = max(self.pace.epoch(), 1e-9)
        users = min(self.position * self.options.batch, len(self.users))
        with silence(not self.progress):
            ndcg = None if self.validation is None else _ndcg(self.model, self.validation)
        if self.growth is not None and self.step < _GROWING * self.steps:
            with silence(not self.progress), phase("judging the number of anchors"):
                self.growth.epoch(self._judged())
        number = len(self.log) + 1
        self.log.append(Epoch(number, self.total / users, seconds, users / seconds, ndcg))
        if self.progress:
            _tell(self.log, self._epochs)
        self.finished = self.best.enough(self.model, ndcg) or self.step >= self.steps

    @torch.no_grad()
    def _judged(self) -> float:
        """The loss of an interaction of users kept out of training."""
        total, generator = 0.0, torch.Generator().manual_seed(self.options.seed)
        for users in self.judges.split(self.options.batch):
            history = self.interactions.rows(users)
            loss = self.model.loss(history, self.objective, beta=0.0, generator=generator)
            total += loss.item() * len(users)
        return total / max(int(self.interactions.rows(self.judges).lengths.sum()), 1)

    def where(self) -> str:
        """How far it is, in words."""
        number = min(self.step // self.count + 1, self._epochs)
        return f"at step {self.step} of {self.steps}, epoch {number} of {self._epochs}"

    def made(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be one of this training."""
        if isinstance(self.objective, SampledSoftmax):
            self.objective.proposal.state_dict()  # if it has none, now is the time to say so
        held = self.validation
        return {
            **asdict(self.options),
            **{
                f"model.{name}": f"{tuple(value.shape)} {value.dtype}"
                for name, value in self.model.state_dict().items()
            },
            "dropout": self.model.dropout,
            "objective": _named(self.objective),
            "interactions": _content(self.interactions),
            "validation": held and [_content(held.fold_in), _content(held.test)],
        }

    def state(self) -> Saved:
        """Everything, for a checkpoint; its tensors are not copied."""
        tensors = {"generator.now": self.generator.get_state(), "generator.begin": self.at_begin}
        parts = {"model": self.model.state_dict(), "best": self.best.state}
        for name, optimizer in self.optimizers.items():
            for index, entry in optimizer.state_dict()["state"].items():
                parts[f"{name}.{index}"] = entry
            if isinstance(optimizer, Proximal):
                parts["winners"] = {str(i): kept for i, kept in enumerate(optimizer.winners())}
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
            tensors, facts | {"log": log, "best": self.best.facts(), "pace": self.pace.facts()}
        )

    def layout(self, found: Found) -> Iterator[tuple[str, Spec]]:
        """What tensors a checkpoint of this training must hold; `found` are those it has."""
        groups = self.optimizers["others"].param_groups
        others = [each for group in groups for each in group["params"]]
        return checkpoint_layout(found, self.model, others, self.at_begin)

    def restore(self, saved: Saved) -> None:
        """Become what `state` was taken of; ArtifactError names what does not fit."""
        saved.expect(self.layout(saved.found))
        progress = Progress.of(saved, self.steps, self.count, growing=self.growth is not None)
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
                kept = [winners.get(str(i)) for i in range(len(optimizer.winners()))]
                whole["proximal"] = {"steps": progress.step, "winners": kept}
            with saved.taking(name):
                optimizer.load_state_dict(whole)
        if isinstance(self.objective, SampledSoftmax):
            proposal, kept_state = self.objective.proposal, saved.part("proposal")
            with saved.taking("proposal"):
                proposal.load_state_dict(kept_state)
            if progress.step and set(proposal.state_dict()) != set(kept_state):
                saved.fail("proposal", f"cannot be used: it has only {', '.join(kept_state)}")
        with saved.taking("generator"):
            for name in ("begin", "now"):  # which stays
                self.generator.set_state(saved.tensors[f"generator.{name}"].clone())
        self.at_begin = saved.tensors["generator.begin"].clone()
        self.step, self.steps = progress.step, progress.steps
        self.total, self.finished = progress.total, progress.finished
        self.log = [Epoch(*entry) for entry in progress.log]
        self.best.load(list(progress.best), saved.part("best"))
        self.pace.load(facts["pace"])
        if self.growth is not None:
            with saved.taking("growth"):
                self.growth.load_state_dict(facts["growth"])

    def validation_seconds(self) -> float:
        """About how long the validation at the end of an epoch will take."""
        if self.validation is None:
            return 0.0
        known = self.validation.fold_in
        few = min(_TRIAL, known.users)
        began = time.perf_counter()
        with silence():
            self.model.recommend(known.rows(slice(0, few)), 50)
        return (time.perf_counter() - began) * known.users / max(few, 1)


def _optimizers(
    model: FastVAE, lr: float, steps: int, counts: Tensor
) -> dict[str, torch.optim.Optimizer]:
    """One for the rows in use, one for all else; each group has its share of the learning rate."""
    shared = model.tables.shared_parameters
    apart = [*model.tables.row_parameters, *shared]
    others = [p for p in model.parameters() if all(p is not a for a in apart)]
    groups = [{"params": others, "share": 1.0}]
    if shared:
        groups.append({"params": shared, "share": _SHARED})
    tables = [{"params": model.tables.row_parameters, "share": 1.0}]
    rows = optim.Adam(tables, lr=lr, betas=(0.0, 0.99), by_row=True)
    return {
        "tables": model.tables.row_optimizer(rows, steps, counts),
        "others": torch.optim.Adam(groups, lr=lr, betas=(0.9, 0.99), fused=True),
    }


def _follow(proposal: Proposal, items: Tensor, counts: Tensor | None) -> None:
    """Fit the proposal if there are counts, otherwise let it follow the items."""
    if counts is None:
        proposal.refresh(items)
    else:
        # Plus one: also what nobody has touched may be a positive of somebody new.
        proposal.fit(items, (counts + 1).log1p())


def _rate(step: int, steps: int) -> float:
    fall = (1 + math.cos(math.pi * step / steps)) / 2
    return min(1.0, (step + 1) / _WARM) * (fall * (1 - _LEAST) + _LEAST)


def _ndcg(model: FastVAE, validation: Split) -> float:
    top = model.recommend(validation.fold_in, 50)
    return evaluate(top, validation.test, (NDCG(50),), resamples=1)[NDCG(50)].mean


def _named(value: Any) -> str:
    """A choice in words: what it is, and what it was made with."""
    if isinstance(value, Proposal):
        made = {name: it for name, it in vars(value).items() if not name.startswith("_")}
    elif is_dataclass(value):
        made = {each.name: getattr(value, each.name) for each in fields(value)}
    elif value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    else:
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    inside = ", ".join(f"{name}={_named(it)}" for name, it in made.items())
    return f"{type(value).__qualname__}({inside})"


def _content(log: Interactions) -> str:
    """Which interactions these are."""
    return f"{log.pairs} pairs of {log.items} items, {digest(log.offsets, log.ids)}"


def _tell(log: list[Epoch], epochs: int) -> None:
    line("")
    last = log[-1]
    left = sum(epoch.seconds for epoch in log) / len(log) * (epochs - last.number)
    score = "" if last.ndcg is None else f"  NDCG@50 {last.ndcg:.4f}"
    print(
        f"epoch {last.number}/{epochs}  loss {last.loss:.3f}{score}  "
        f"{last.users_per_second:,.0f} users/s  {left:.0f} s left",
        file=sys.stderr,
    )
