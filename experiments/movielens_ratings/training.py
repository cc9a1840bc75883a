"""Training of rating models: with the L1 penalty, then without it on the remaining entries."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fewfold as ff
from experiments.movielens_ratings.models import Factors
from experiments.movielens_ratings.ratings import Ratings, Split
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.embeddings.sparsify.proximal import proximal
from fewfold.embeddings.sparsify.schedules import Schedule, Warmup

_BLOCK = 50_000  # ratings predicted at once when measuring


@dataclass(frozen=True)
class Growing:
    """Settings of the epochs that select the number of anchors."""

    l1: float
    per_anchor: float
    start: int = 2
    most: int = 40
    epochs: int = 10


@dataclass(frozen=True)
class Recipe:
    """Training settings of a model."""

    epochs: int = 12
    after: int = 5
    """epochs without the penalty, on the non-zeros that are left"""
    batch: int = 16_384
    lr: float = 0.03
    lr_after: float = 0.01
    l1: float = 0.0
    warmup: int = 3
    """epochs without the penalty at first, and as many in which it rises"""
    subgradient: bool = False
    """the penalty as a part of the loss instead of the proximal step"""
    keep: int = 0
    """numbers left after the penalty, the largest entries of both transforms; 0: all that are"""
    anchor_decay: float = 1e-4
    row_decay: float = 0.0
    yogi: bool = False


@dataclass(frozen=True)
class Epoch:
    """Metrics after one epoch."""

    valid: float
    test: float
    size: int


@torch.no_grad()
def mse(model: Factors, ratings: Ratings) -> float:
    """Return the mean squared error in stars."""
    errors = [(model(p.users, p.items) - p.stars).square().sum() for p in _parts(ratings, _BLOCK)]
    return float(torch.stack(errors).sum()) / len(ratings)


def train(
    model: Factors, split: Split, recipe: Recipe, *, seed: int
) -> tuple[list[Epoch], list[Epoch]]:
    """Train with the penalty, if any, then the epochs to select from, with fixed non-zeros."""
    order = torch.Generator().manual_seed(seed)
    steps = -(-len(split.train) // recipe.batch)
    optimizer = _optimizer(model, recipe, recipe.lr, _penalty(recipe, steps))
    extra = (lambda: recipe.l1 * _absolute(model)) if recipe.subgradient else None
    first = _phase(
        model, split, optimizer, recipe, recipe.epochs, _falling, order,
        extra=extra,
    )  # fmt: skip
    if not recipe.after:
        return [], first
    if recipe.keep:
        _drop(model, recipe.keep)
    hooks = [table.transform.register_hook(_only(table.transform)) for table in model.tables]
    optimizer = _optimizer(model, recipe, recipe.lr_after, 0.0)
    last = _phase(
        model, split, optimizer, recipe, recipe.after,
        lambda share: (1 + math.cos(math.pi * share)) / 2, order,
    )  # fmt: skip
    for hook in hooks:
        hook.remove()
    return first, last


def grow(
    model: Factors, split: Split, recipe: Recipe, growing: Growing, *, seed: int
) -> AnchorGrowth:
    """Train without a penalty while the number of anchors follows the objective."""
    growth = AnchorGrowth(
        model.tables, l1=growing.l1, per_anchor=growing.per_anchor, start=growing.start
    )
    optimizer = _optimizer(model, recipe, recipe.lr, 0.0)
    order = torch.Generator().manual_seed(seed)
    _phase(model, split, optimizer, recipe, growing.epochs, _falling, order, growth=growth)
    return growth


def _falling(share: float) -> float:
    return 1 - 0.9 * share


def _phase(
    model: Factors,
    split: Split,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    epochs: int,
    rate: Callable[[float], float],
    order: torch.Generator,
    *,
    extra: Callable[[], Tensor] | None = None,
    growth: AnchorGrowth | None = None,
) -> list[Epoch]:
    total, steps, lr = epochs * -(-len(split.train) // recipe.batch), 0, optimizer.defaults["lr"]
    seen = []
    for _ in range(epochs):
        for part in _parts(split.train, recipe.batch, order):
            for group in optimizer.param_groups:
                group["lr"] = lr * rate(steps / total)
            loss = (model(part.users, part.items) - part.stars).square().mean()
            if extra is not None:
                loss = loss + extra()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        valid = mse(model, split.valid)
        test = valid if split.test is split.valid else mse(model, split.test)
        seen.append(Epoch(valid, test, model.size()))
        if growth is not None:
            growth.epoch(valid)
    return seen


def _penalty(recipe: Recipe, steps: int) -> Schedule | float:
    """Return the schedule of the penalty, given the steps per epoch."""
    if recipe.subgradient:
        return 0.0
    return Warmup(recipe.l1, after=recipe.warmup * steps, over=recipe.warmup * steps)


def _optimizer(
    model: Factors, recipe: Recipe, lr: float, penalty: Schedule | float
) -> torch.optim.Optimizer:
    tables = model.tables
    anchors = [table.anchors for table in tables if table.anchors.requires_grad]
    rest = [model.bias, *model.offsets]
    known = {id(param) for param in (*anchors, *rest)}
    rows = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": anchors, "weight_decay": recipe.anchor_decay},
        {"params": rows, "weight_decay": 0.0 if tables and penalty else recipe.row_decay},
        {"params": rest},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.yogi:
        # The place of eps with which the row of the plain recipe was measured.
        inner: torch.optim.Optimizer = ff.optim.Yogi(groups, lr=lr, adam_eps=True)
    else:
        inner = torch.optim.Adam(groups, lr=lr, fused=True)
    return proximal(inner, tables, l1=penalty) if tables else inner


def _parts(ratings: Ratings, size: int, order: torch.Generator | None = None) -> Iterator[Ratings]:
    if order is not None:
        ratings = ratings[torch.randperm(len(ratings), generator=order)]
    for start in range(0, len(ratings), size):
        yield ratings[start : start + size]


def _only(transform: Tensor) -> Callable[[Tensor], Tensor]:
    """Mask gradients to the entries that are currently non-zero."""
    nonzero = transform.detach() != 0
    return lambda gradient: gradient * nonzero


def _absolute(model: Factors) -> Tensor:
    return torch.stack([table.transform.abs().sum() for table in model.tables]).sum()


@torch.no_grad()
def _drop(model: Factors, keep: int) -> None:
    """Set the smallest entries of the transforms to zero, leaving `keep` parameters."""
    every = torch.cat([table.transform.abs().flatten() for table in model.tables])
    others = model.size() - sum(table.nonzeros() for table in model.tables)
    least = every.topk(min(keep - others, len(every))).values[-1]
    for table in model.tables:
        table.transform.masked_fill_(table.transform.abs() < least, 0)
