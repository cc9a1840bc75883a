"""Training FastVAE: epochs over users, two optimisers, a proposal that follows the items."""

import math
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold import optim
from fewfold._check import non_negative_number, whole_number
from fewfold._progress import line, over, silence
from fewfold.recommender.fastvae import FastVAE, Objective, SampledSoftmax
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.metrics import NDCG, evaluate
from fewfold.recommender.splits import Split
from fewfold.sampling.multi_index import MultiIndex

__all__ = ["Epoch", "train"]

_WARM = 100  # steps over which the learning rate rises
_LEAST = 0.02  # of the learning rate at the end


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: mean loss per user, seconds, and NDCG@50 on the validation set."""

    number: int
    loss: float
    seconds: float
    users_per_second: float
    ndcg: float | None


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
) -> list[Epoch]:
    """Train the model on users' items, in place.

    The learning rate rises over the first steps and falls along a cosine to the end. Rows of the
    tables are moved by `fewfold.optim.Adam` when they have been touched, with a step size per row
    and no momentum, so that training needs hardly more memory than the model; everything else is
    moved by torch's.

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

    Returns:
        An `Epoch` for each pass.
    """
    _check(model, interactions, epochs, batch, refresh_every)
    for value, name in ((lr, "lr"), (beta, "beta"), (annealing, "annealing")):
        non_negative_number(value, name)
    chosen = default_objective(interactions) if objective is None else objective
    generator = torch.Generator().manual_seed(seed)
    counts = interactions.counts()
    tables = optim.Adam(model.tables, lr=lr, betas=(0.0, 0.99), by_row=True)
    others = [p for p in model.parameters() if all(p is not t for t in model.tables)]
    dense = torch.optim.Adam(others, lr=lr, betas=(0.9, 0.99), fused=True)
    users = interactions.jagged.lengths.nonzero().squeeze(1)
    usual = interactions.jagged.lengths[users].double().mean().item()
    steps = max(1, epochs * math.ceil(len(users) / batch))
    step, log, best = 0, [], _Best(patience)
    model.train()
    for number in range(1, epochs + 1):
        began, total = time.perf_counter(), 0.0
        if isinstance(chosen, SampledSoftmax) and (number - 1) % refresh_every == 0:
            if progress:
                line("fitting the proposal to the items")
            _follow(chosen, model.items.detach(), counts, first=number == 1)
        parts = users[torch.randperm(len(users), generator=generator)].split(batch)
        for part in over(f"epoch {number}/{epochs}", parts) if progress else parts:
            for optimizer in (tables, dense):
                optimizer.param_groups[0]["lr"] = lr * _pace(step, steps)
            history = interactions.rows(part)
            weight = beta * min(1.0, step / (annealing * steps)) if annealing else beta
            weights = weight * history.lengths / usual if beta_by_length else weight
            loss = model.loss(history, chosen, beta=weights, generator=generator)
            loss.backward()
            for optimizer in (tables, dense):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            total += loss.item() * len(part)
            step += 1
        seconds = time.perf_counter() - began
        with silence(not progress):
            ndcg = None if validation is None else _ndcg(model, validation)
        log.append(Epoch(number, total / len(users), seconds, len(users) / seconds, ndcg))
        if progress:
            _tell(log, epochs)
        if best.enough(model, ndcg):
            break
    best.restore(model)
    model.eval()
    return log


def default_objective(interactions: Interactions) -> SampledSoftmax:
    """Draws from a multi-index by popularity, as many codewords as the catalogue bears."""
    words = max(1, min(16, interactions.items))
    return SampledSoftmax(MultiIndex(words, within="popularity"))


def _follow(objective: SampledSoftmax, items: Tensor, counts: Tensor, first: bool) -> None:
    if first:
        # Plus one: also what nobody has touched may be a positive of somebody new.
        objective.proposal.fit(items, (counts + 1).log1p())
    else:
        objective.proposal.refresh(items)


def _pace(step: int, steps: int) -> float:
    fall = (1 + math.cos(math.pi * step / steps)) / 2
    return min(1.0, (step + 1) / _WARM) * (fall * (1 - _LEAST) + _LEAST)


def _ndcg(model: FastVAE, validation: Split) -> float:
    top = model.recommend(validation.fold_in, 50)
    return evaluate(top, validation.test, (NDCG(50),), resamples=1)[NDCG(50)].mean


class _Best:
    """The best weights so far, kept where stopping early was asked for."""

    def __init__(self, patience: int | None) -> None:
        self._patience, self._score, self._since = patience, -math.inf, 0
        self._state: dict[str, Tensor] | None = None

    def enough(self, model: FastVAE, score: float | None) -> bool:
        if self._patience is None or score is None:
            return False
        self._since += 1
        if score > self._score:
            self._score, self._since = score, 0
            self._state = {name: value.clone() for name, value in model.state_dict().items()}
        return self._since >= self._patience

    def restore(self, model: FastVAE) -> None:
        if self._state is not None:
            model.load_state_dict(self._state)


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


def _check(
    model: FastVAE, interactions: Interactions, epochs: int, batch: int, refresh_every: int
) -> None:
    for value, name in ((epochs, "epochs"), (batch, "batch"), (refresh_every, "refresh_every")):
        whole_number(value, name)
    if len(model.items) != interactions.items:
        raise ValueError(
            f"the model has {len(model.items)} items, the interactions {interactions.items}; "
            f"write FastVAE(items={interactions.items})"
        )
    if interactions.pairs == 0:
        raise ValueError("there is nothing to learn from: the interactions are empty")
