"""Messages as points of the simplex of symbols, and the agents that send them."""

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
    """Return the temperature, annealed to 0.5."""
    return ff.expectation.annealed(step, rate=1e-5, every=1000)


def gumbel_softmax(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """Sample a dense message by Gumbel-softmax."""
    return ff.distributions.Concrete(scores, temperature(step)).rsample(generator=generator)


def straight_through(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """Sample a one-hot message with the straight-through gradient."""
    soft = gumbel_softmax(scores, step, generator)
    hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft)
    return hard + soft - soft.detach()


def hard_concrete(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
    """Sample a message with exact zeros from the hard concrete distribution."""
    return ff.HardConcrete(scores, temperature(step), STRETCH).rsample(generator=generator)


def gaussian_sparsemax(scale: float) -> Message:
    """Return a sampler of Gaussian-sparsemax messages with this standard deviation."""

    def message(scores: Tensor, step: int, generator: torch.Generator) -> Tensor:
        return ff.GaussianSparsemax(scores, scale).rsample(generator=generator)

    return message


@dataclass(frozen=True)
class Method:
    """Distribution of the messages, and its learning rate."""

    message: Message
    lr: float = 1e-3

    def players(self, dim: int, **sizes: int) -> "Players":
        """Return untrained agents for images of this dimension."""
        return Players(self.message, dim, **sizes)


METHODS = {
    "Gumbel-softmax": Method(gumbel_softmax),
    "straight-through": Method(straight_through),
    "hard concrete": Method(hard_concrete),
    "Gaussian-sparsemax": Method(gaussian_sparsemax(1.0)),
    "Gaussian-sparsemax, 1/2": Method(gaussian_sparsemax(0.5)),
    "Gaussian-sparsemax, 1/4": Method(gaussian_sparsemax(0.25)),
}


class Players(nn.Module):
    """Sender that maps images to messages, and receiver of the mixed symbol embeddings."""

    def __init__(self, message: Message, dim: int, **sizes: int) -> None:
        super().__init__()
        self.message = message
        self.agents = Agents(dim, relaxed=True, **sizes)

    def play(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the training loss, and the number of symbols in each message."""
        message = self.message(self.agents.sender(batch.shown), step, generator)
        return F.cross_entropy(self._answer(message, batch), batch.target), _symbols(message)

    @torch.no_grad()
    def success(
        self, batch: Batch, step: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return per game: success with a sample, success with the best symbol, support size."""
        scores = self.agents.sender(batch.shown)
        message = self.message(scores, step, generator)
        best = F.one_hot(scores.argmax(1), scores.shape[1]).to(scores)
        won, alone = (self._answer(x, batch).argmax(1) == batch.target for x in (message, best))
        return won, alone, _symbols(message)

    def _answer(self, message: Tensor, batch: Batch) -> Tensor:
        """Return the scores of the candidates (games, candidates)."""
        found: Tensor = self.agents.receiver(message, torch.arange(len(message)), batch.candidates)
        return found


def _symbols(message: Tensor) -> Tensor:
    """Return the number of symbols with positive weight (games,)."""
    return (message.detach() > 0).sum(-1)
