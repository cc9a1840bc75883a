"""The layperson: a linear classifier of the words of a message, without their order."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.rationales.reviews import CLASSES

DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)  # of the squared norm of the weights
STEPS = 150


@dataclass(frozen=True)
class Layperson:
    """Scores of the classes: one (words, classes) for each word, and a bias (classes,)."""

    weight: Tensor
    bias: Tensor

    def scores(self, messages: list[Tensor]) -> Tensor:
        """Return scores (n, classes); those of an empty message are the bias."""
        sizes = torch.tensor([len(message) for message in messages])
        first = sizes.cumsum(0) - sizes
        return F.embedding_bag(torch.cat(messages), self.weight, first, mode="sum") + self.bias

    def guesses(self, messages: list[Tensor]) -> Tensor:
        """Return the class (n,) of each message."""
        return self.scores(messages).argmax(1)


def fit(vocabulary: int, messages: list[Tensor], decisions: Tensor, decay: float) -> Layperson:
    """Return logistic regression of the decisions on the words of messages."""
    weight = torch.zeros(vocabulary, len(CLASSES), requires_grad=True)
    bias = torch.zeros(len(CLASSES), requires_grad=True)
    found = Layperson(weight, bias)
    optimizer = torch.optim.Adam([weight, bias], 0.1, fused=True)
    for _ in range(STEPS):
        loss = F.cross_entropy(found.scores(messages), decisions)
        loss = loss + decay * weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Layperson(weight.detach(), bias.detach())


def choose(
    vocabulary: int, train: tuple[list[Tensor], Tensor], valid: tuple[list[Tensor], Tensor]
) -> tuple[Layperson, float]:
    """Return the layperson with the decay that is best on validation messages, and the decay."""
    found = [(fit(vocabulary, *train, decay), decay) for decay in DECAYS]
    messages, decisions = valid
    return max(found, key=lambda one: float((one[0].guesses(messages) == decisions).sum()))
