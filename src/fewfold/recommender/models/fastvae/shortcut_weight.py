"""How much the linear part of a model should weigh: tried on a few users, told once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import L2_PER_USER, Directions, Shortcut

__all__ = ["Trial", "Weight", "tuned_weight"]

_USERS, _ITEMS = 1500, 10_000  # at most, in a trial
_L2 = (0.05, 0.2, 1.0, 4.0, 16.0)  # times the default
_STRENGTHS = (30.0, 130.0, 400.0)


@dataclass(frozen=True)
class Weight:
    """Of a shortcut beside another model.

    Attributes:
        l2: the penalty, for each user of the log.
        strength: how much its scores weigh; 0 for no shortcut.
    """

    l2: float = L2_PER_USER
    strength: float = 30.0

    def of(self, directions: Directions, users: int) -> Shortcut | None:
        """The shortcut for a log of as many users."""
        return directions.shortcut(self.l2 * users, self.strength) if self.strength else None


@dataclass(frozen=True, eq=False)
class Trial:
    """A log without a few pairs of a few users, and those pairs.

    Attributes:
        rest: the log without them.
        told: what is left of these users, in `rest`.
        hidden: what was taken from them.
    """

    rest: Interactions
    told: Jagged
    hidden: Jagged

    @classmethod
    def of(cls, log: Interactions, *, seed: int = 0) -> "Trial | None":
        """Hide a fifth of the items of some users that have five or more.

        None where too few have.
        """
        generator = torch.Generator().manual_seed(seed)
        able = (log.jagged.lengths >= 5).nonzero().squeeze(1)
        if len(able) < 100:
            return None
        chosen = able[torch.randperm(len(able), generator=generator)]
        chosen = chosen[: min(_USERS, len(able) // 4)].sort().values
        _, positions = log.jagged.positions(chosen)
        hide = torch.rand(len(positions), generator=generator) < 0.2
        kept = torch.ones(log.pairs, dtype=torch.bool)
        kept[positions[hide]] = False
        rest = log.keep(kept)
        return cls(rest, rest.rows(chosen), log.keep(~kept).rows(chosen))


def tuned_weight(model: FastVAE, directions: Directions, trial: Trial, *, seed: int = 0) -> Weight:
    """The weight with which most of what was hidden is found, beside the model.

    Among all items, or, where there are very many, a sample of them with all that were hidden.
    """
    items = model.count
    wanted = trial.hidden.values.unique()
    some = torch.randperm(items, generator=torch.Generator().manual_seed(seed))[:_ITEMS]
    chosen = torch.cat([wanted, some]).unique()
    place = torch.full((items,), -1).index_copy(0, chosen, torch.arange(len(chosen)))
    grid = [Weight(l2 * L2_PER_USER, strength) for l2 in _L2 for strength in _STRENGTHS]
    with phase("weighing the shortcut", total=len(grid)) as weighing:
        base = model.queries(trial.told) @ model.outputs()[chosen].T
        told = place[trial.told.values]
        base[trial.told.row[told >= 0], told[told >= 0]] = -torch.inf
        hidden = Jagged(place[trial.hidden.values], trial.hidden.offsets)
        best, best_score = Weight(strength=0.0), _ndcg(base, hidden)
        for weight in weighing.each(grid):
            shortcut = directions.shortcut(weight.l2 * trial.rest.users, weight.strength)
            linear = shortcut.queries(trial.told) @ shortcut.vectors[chosen].T
            score = _ndcg(base + linear, hidden)
            if score > best_score:
                best, best_score = weight, score
    return best


def _ndcg(scores: Tensor, hidden: Jagged) -> float:
    top = scores.topk(min(50, scores.shape[1])).indices
    return evaluate(top, hidden, (NDCG(50),), resamples=0)[NDCG(50)].mean
