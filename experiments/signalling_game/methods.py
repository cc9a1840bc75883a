"""Training methods of the two agents, with their published settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.signalling_game.data import Batch
from experiments.signalling_game.model import Agents, Expected
from fewfold.expectation.estimators.control_variates import Baseline


@dataclass(frozen=True)
class Method:
    """An estimator for the sender's symbol, and its learning rate.

    Attributes:
        lr: learning rate of Adam.
        entropy: how much an even choice is rewarded.
        estimator: from the step and, in training, a baseline.
        baseline: made once for each agent, from the dimension of the images.
        zero_one: the receiver draws its answer as well, and its cost is -1 if it is right.
        shared_critic: the receiver's baseline is that of the sender, the answer to its other
            symbol.
        relaxed: symbols are mixed.
    """

    lr: float
    entropy: float
    estimator: Callable[[int, Baseline | None], ff.expectation.Estimator]
    baseline: Callable[[int], Baseline] | None = None
    zero_one: bool = False
    shared_critic: bool = field(default=False, kw_only=True)
    relaxed: bool = field(default=False, kw_only=True)

    def players(self, dim: int, **sizes: int) -> "Players":
        """Return untrained agents for images of this dimension."""
        return Players(self, dim, **sizes)


def score_function(step: int, baseline: Baseline | None) -> ff.expectation.Estimator:
    """Return the score-function estimator with one sample."""
    return ff.ScoreFunction(baseline=baseline)


def gumbel(*, straight_through: bool) -> Callable[[int, Baseline | None], ff.expectation.Estimator]:
    """Return the Gumbel-softmax estimator with a temperature annealed to 0.5."""

    def at(step: int, baseline: Baseline | None) -> ff.expectation.Estimator:
        temperature = ff.expectation.annealed(step, rate=1e-5, every=1000)
        return ff.Gumbel(temperature, straight_through=straight_through)

    return at


def running_mean(dim: int) -> Baseline:
    """Return a running-mean baseline."""
    return ff.expectation.RunningMean()


def self_critic(dim: int) -> Baseline:
    """Return a self-critic baseline."""
    return ff.expectation.SelfCritic()


def learned(dim: int) -> Baseline:
    """Return a baseline network of the candidates."""
    return ff.expectation.Learned(Expected(dim))


class OtherSymbol(Baseline):
    """Cost of the answer to the other symbol of the same game, for the answers to two symbols.

    With it the sender and the receiver have one critic, as in the authors' code: another symbol and
    an answer to it. `SelfCritic` is another answer to the same symbol.
    """

    def forward(self, costs: Tensor, scored: int, context: Tensor | None) -> Tensor:
        """Return the costs (2 games, 1) with those of each game exchanged."""
        return costs.view(-1, 2).flip(1).reshape(-1, 1)


METHODS = {
    "sparse": Method(5e-3, 0.1, lambda step, baseline: ff.SparseMarginal()),
    "dense": Method(1e-3, 0.1, lambda step, baseline: ff.Dense()),
    "SFE (NLL)": Method(1e-3, 0.05, score_function, running_mean),
    "SFE (0/1)": Method(1e-3, 0.01, score_function, running_mean, zero_one=True),
    "SFE+ (0/1)": Method(
        1e-3, 0.05, score_function, self_critic, zero_one=True, shared_critic=True
    ),
    "SFE+ (0/1), two critics": Method(1e-3, 0.05, score_function, self_critic, zero_one=True),
    "NVIL": Method(1e-3, 0.1, score_function, learned),
    "Gumbel": Method(1e-3, 0.01, gumbel(straight_through=False), relaxed=True),
    "ST Gumbel": Method(1e-3, 0.01, gumbel(straight_through=True), relaxed=True),
}


class Players(nn.Module):
    """The agents and the baselines of their costs."""

    def __init__(self, method: Method, dim: int, **sizes: int) -> None:
        super().__init__()
        self.method = method
        self.agents = Agents(dim, relaxed=method.relaxed, **sizes)
        agents = 1 + method.zero_one
        self.baselines = nn.ModuleList(
            method.baseline(dim) for _ in range(agents) if method.baseline is not None
        )
        if method.shared_critic:
            self.baselines[1] = OtherSymbol()

    def baseline(self, agent: int) -> Baseline | None:
        """Return the baseline of the sender (0) or the receiver (1)."""
        if not self.training or not len(self.baselines):
            return None
        found = self.baselines[agent]
        assert isinstance(found, Baseline)
        return found

    def play(
        self,
        batch: Batch,
        step: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return the training loss, and the receiver calls per game."""
        method, bonus = self.method, []

        def surprise(symbols: Tensor, row: Tensor) -> Tensor:
            scores = self.agents.receiver(symbols, row, batch.candidates)
            return F.cross_entropy(scores, batch.target[row], reduction="none")

        def failure(symbols: Tensor, row: Tensor) -> Tensor:
            scores = self.agents.receiver(symbols, row, batch.candidates)
            right = batch.target[row]
            answer = ff.expect(
                lambda position, pair: -(position == right[pair]).to(scores.dtype),
                scores,
                method.estimator(step, self.baseline(1)),
                generator=generator,
            )
            # Pairs of a game are adjacent, and with a critic the first of them is the scored one.
            scored = answer.entropy.view(len(batch.target), -1)
            bonus.append((scored[:, 0] if method.shared_critic else scored).mean())
            return answer.surrogate

        out = ff.expect(
            failure if method.zero_one else surprise,
            self.agents.sender(batch.shown),
            method.estimator(step, self.baseline(0)),
            context=batch.candidates,
            generator=generator,
        )
        bonus.append(out.entropy.mean())
        return out.loss - method.entropy * torch.stack(bonus).sum(), out.calls

    @torch.no_grad()
    def success(
        self, batch: Batch, step: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return per game: probability of success, success of the best symbol, receiver calls.

        The probability is under the sender's distribution: exact for marginalisation, from one
        sample for sampling estimators, with a relaxed symbol for Gumbel. The answer is the most
        likely one, or sampled for receivers that were trained with samples.
        """
        receiver, scores = self.agents.receiver, self.agents.sender(batch.shown)

        def right(symbols: Tensor, row: Tensor, *, drawn: bool) -> Tensor:
            found = receiver(symbols, row, batch.candidates)
            if drawn:
                answers = found.softmax(1).multinomial(1, generator=generator).squeeze(1)
            else:
                answers = found.argmax(1)
            return (answers == batch.target[row]).to(scores.dtype)

        won = ff.expect(
            partial(right, drawn=self.method.zero_one),
            scores,
            self.method.estimator(step, None),
            generator=generator,
        )
        best = right(scores.argmax(1), torch.arange(len(scores)), drawn=False)
        return won.value, best, won.calls
