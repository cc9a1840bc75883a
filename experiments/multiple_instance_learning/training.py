"""Training of a bag classifier with early stopping."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.multiple_instance_learning.bags import Bags
from experiments.multiple_instance_learning.model import scores


@dataclass(frozen=True)
class Settings:
    """Training settings.

    Attributes:
        lr: learning rate of AdamW, which decays by weights of 1e-4.
        gamma: what is left of it after an epoch.
        size: bags per step.
        epochs: at most.
        patience: epochs without a better validation after which to stop.
    """

    lr: float
    gamma: float = 0.98
    size: int = 1
    epochs: int = 50
    patience: int = 5


@dataclass(frozen=True)
class Fitted:
    """Result of a training run.

    Attributes:
        epoch: of the best validation, from 1.
        epochs: that were run.
        valid: what `measure` says of validation bags then.
        test: and of test bags.
    """

    epoch: int
    epochs: int
    valid: dict[str, float]
    test: dict[str, float]


def fit(
    network: nn.Module,
    parts: tuple[Bags, Bags, Bags],
    settings: Settings,
    generator: torch.Generator,
    report: Callable[[int, dict[str, float]], None] = lambda epoch, valid: None,
) -> Fitted:
    """Train on the first part, stop early by the second, and test the best epoch on the third."""
    train, valid, test = parts
    optimizer = torch.optim.AdamW(network.parameters(), settings.lr, weight_decay=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, settings.gamma)
    best, best_state, top = 0, {}, {"area": -math.inf}
    epoch = 0
    while epoch < settings.epochs and epoch - best < settings.patience:
        epoch += 1
        network.train()
        for which in torch.randperm(len(train), generator=generator).split(settings.size):
            bags = train.select(which)
            loss = F.binary_cross_entropy_with_logits(network(bags), bags.labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        found = measure(scores(network, valid), valid.labels)
        report(epoch, found)
        if found["area"] > top["area"]:
            best, top = epoch, found
            best_state = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(best_state)
    return Fitted(best, epoch, top, measure(scores(network, test), test.labels))


def measure(found: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy and AUC in per cent, and the mean loss."""
    return {
        "right": 100 * float(((found > 0) == labels.bool()).float().mean()),
        "area": 100 * area(found, labels),
        "loss": float(F.binary_cross_entropy_with_logits(found, labels)),
    }


def area(found: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve; ties count half."""
    positive, negative = found[labels.bool()].double(), found[~labels.bool()].double()
    wins = torch.searchsorted(negative.sort().values, positive).sum()
    ties = torch.searchsorted(negative.sort().values, positive, right=True).sum()
    return float(wins + ties) / (2 * len(positive) * len(negative))
