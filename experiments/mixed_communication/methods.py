"""Messages that are points of the simplex of symbols, and the players who send them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.signalling_game.data import Batch
from experiments.signalling_game.model import Agents

STRETCH = 1.1
Message = Callable[[Tensor, int, torch.Generator], Tensor]


def temperature(step: int) -> float:
    """Falls to a half."""
    return ff.expectation.annealed(step, rate=1e-5, every=1000)


def gumbel_softmax(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """Every symbol has a share."""
    return ff.distributions.Concrete(scores, temperature(step)).rsample(generator=generator)


def straight_through(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """One symbol, with the gradient of shares."""
    soft = gumbel_softmax(scores, step, generator)
    hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft)
    return hard + soft - soft.detach()


def hard_concrete(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """Shares that are stretched and cut: some are 0."""
    return ff.HardConcrete(scores, temperature(step), STRETCH).rsample(generator=generator)


def gaussian_sparsemax(scale: float) -> Message:
    """Scores with noise of this deviation, projected: most shares are 0."""

    def message(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
        return ff.GaussianSparsemax(scores, scale).rsample(generator=generator)

    return message


@dataclass(frozen=True)
class Method:
    """What a message is, and how fast to learn with it."""

    message: Message
    lr: float = 1e-3

    def players(self, dim: int, **sizes: int) -> "Players":
        """Before training, for images of this dimension."""
        return Players(self.message, dim, **sizes)


METHODS = {
    "Gumbel-softmax": Method(gumbel_softmax),
    "straight-through": Method(straight_through),
    "hard concrete": Method(hard_concrete),
    "Gaussian-sparsemax": Method(gaussian_sparsemax(1.0)),
    "Gaussian-sparsemax, 1/2": Method(gaussian_sparsemax(0.5)),
    "Gaussian-sparsemax, 0.45": Method(gaussian_sparsemax(0.45)),
    "Gaussian-sparsemax, 1/4": Method(gaussian_sparsemax(0.25)),
}


class Players(nn.Module):
    """A sender whose scores make a message, and a receiver that hears the mix of its symbols."""

    def __init__(self, message: Message, dim: int, **sizes: int) -> None:
        super().__init__()
        self.message = message
        self.agents = Agents(dim, relaxed=True, **sizes)

    def play(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The loss to follow, and the symbols in each message."""
        message = self.message(self.agents.sender(batch.shown), step, generator)
        return F.cross_entropy(self._answer(message, batch), batch.target), _symbols(message)

    @torch.no_grad()
    def success(
        self, batch: Batch, step: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Per game: whether it is won with a message; with the best symbol; symbols in it."""
        scores = self.agents.sender(batch.shown)
        message = self.message(scores, step, generator)
        best = F.one_hot(scores.argmax(1), scores.shape[1]).to(scores)
        won, alone = (self._answer(x, batch).argmax(1) == batch.target for x in (message, best))
        return won, alone, _symbols(message)

    def _answer(self, message: Tensor, batch: Batch) -> Tensor:
        """(games, candidates) scores."""
        found: Tensor = self.agents.receiver(message, torch.arange(len(message)), batch.candidates)
        return found


def _symbols(message: Tensor) -> Tensor:
    """(games,) how many have a share."""
    return (message.detach() > 0).sum(-1)
