"""Choice of a shortcut's penalty and strength on hidden items of a sample of users."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._progress import phase
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.splits import last_out_split
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fastvae.shortcut import L2_PER_USER, Directions, Shortcut

__all__ = ["Trial", "Weight", "tuned_weight"]

_USERS, _ITEMS = 1500, 10_000  # largest sample of users and of items
_L2 = (0.0, 0.05, 0.2, 1.0, 4.0, 16.0)  # times the default
_STRENGTHS = (30.0, 130.0, 400.0)
_FINER_L2 = (0.5, 2.0)  # times the best of the coarse grid
_FINER_STRENGTHS = (0.6, 1.0, 1.7)
_LEAST_L2 = 0.02  # in the finer grid, if the best of the coarse one is 0


@dataclass(frozen=True)
class Weight:
    """Penalty and strength of a shortcut that is added to another model.

    Attributes:
        l2: the penalty per user of the log.
        strength: weight of its scores; 0 for no shortcut.
    """

    l2: float = L2_PER_USER
    strength: float = 30.0

    def of(self, directions: Directions, users: int) -> Shortcut | None:
        """Return the shortcut for a log of as many users."""
        return directions.shortcut(self.l2 * users, self.strength) if self.strength else None


@dataclass(frozen=True, eq=False)
class Trial:
    """A log without the hidden pairs of a sample of users, and those pairs.

    Attributes:
        rest: the log without the hidden pairs.
        visible: items of the sampled users that are in `rest`.
        hidden: items of the sampled users that are not.
    """

    rest: Interactions
    visible: Jagged
    hidden: Jagged

    @classmethod
    def last_out(cls, log: Interactions, *, seed: int = 0) -> "Trial | None":
        """Hide the last item of a sample of users with three or more; histories are by time.

        Return None if times order the items of fewer than a hundred such users.
        """
        last = last_out_split(log).test.jagged
        eligible = ((last.lengths > 0) & (log.jagged.lengths >= 3)).nonzero().squeeze(1)
        if len(eligible) < 100:
            return None
        generator = torch.Generator().manual_seed(seed)
        chosen = eligible[torch.randperm(len(eligible), generator=generator)]
        chosen = chosen[: min(_USERS, len(eligible) // 4)].sort().values
        hidden = last.rows(chosen)
        most = max(log.items, 1)
        hide = torch.isin(log.row * most + log.ids, chosen[hidden.row] * most + hidden.values)
        rest = log.keep(~hide)
        return cls(rest, rest.rows(chosen, ordered=True), hidden)

    @classmethod
    def of(cls, log: Interactions, *, seed: int = 0) -> "Trial | None":
        """Hide a fifth of the items of a sample of users with five or more.

        Return None if there are fewer than a hundred such users.
        """
        generator = torch.Generator().manual_seed(seed)
        eligible = (log.jagged.lengths >= 5).nonzero().squeeze(1)
        if len(eligible) < 100:
            return None
        chosen = eligible[torch.randperm(len(eligible), generator=generator)]
        chosen = chosen[: min(_USERS, len(eligible) // 4)].sort().values
        _, positions = log.jagged.positions(chosen)
        hide = torch.rand(len(positions), generator=generator) < 0.2
        visible = torch.ones(log.pairs, dtype=torch.bool)
        visible[positions[hide]] = False
        rest = log.keep(visible)
        return cls(rest, rest.rows(chosen), log.keep(~visible).rows(chosen))


def tuned_weight(
    model: FastVAE, directions: Directions, trial: Trial, *, seed: int = 0, users: int | None = None
) -> Weight:
    """Return the weight with the best NDCG@50 of the hidden items, added to the model's scores.

    A coarse grid is searched first, then a finer one around its best. Ranks all items, or, if there
    are more than 10,000, a sample of them and all hidden ones. `users` is the number of users of
    the log, by default those of the trial.
    """
    users = trial.rest.users if users is None else users
    items = model.count
    required = trial.hidden.values.unique()
    sample = torch.randperm(items, generator=torch.Generator().manual_seed(seed))[:_ITEMS]
    chosen = torch.cat([required, sample]).unique()
    place = torch.full((items,), -1).index_copy(0, chosen, torch.arange(len(chosen)))
    needed = torch.cat([chosen, trial.visible.values]).unique()
    columns = torch.searchsorted(needed, chosen)
    among = Jagged(torch.searchsorted(needed, trial.visible.values), trial.visible.offsets)
    with phase("weighing the shortcut", total=len(_L2) + 1 + len(_FINER_L2)) as weighing:
        base = model.queries(trial.visible) @ model.tables.output_vectors(chosen).T
        visible = place[trial.visible.values]
        base[trial.visible.row[visible >= 0], visible[visible >= 0]] = -torch.inf
        hidden = Jagged(place[trial.hidden.values], trial.hidden.offsets)
        best, best_score = Weight(strength=0.0), _ndcg(base, hidden)
        directions = directions.of_items(needed)

        def search(penalties: Iterable[float], strengths: Sequence[float]) -> None:
            nonlocal best, best_score
            for l2 in penalties:
                shortcut = directions.shortcut(l2 * users, 1.0)
                linear = shortcut.queries(among) @ shortcut.vectors[columns].T
                for strength in strengths:
                    score = _ndcg(torch.add(base, linear, alpha=strength), hidden)
                    if score > best_score:
                        best, best_score = Weight(l2, strength), score
                weighing.advance(weighing.done + 1)

        search([l2 * L2_PER_USER for l2 in _L2], _STRENGTHS)
        if best.strength:
            l2 = [factor * (best.l2 or _LEAST_L2 * L2_PER_USER) for factor in _FINER_L2]
            search([best.l2, *l2], [factor * best.strength for factor in _FINER_STRENGTHS])
    return best


def _ndcg(scores: Tensor, hidden: Jagged) -> float:
    top = scores.topk(min(50, scores.shape[1])).indices
    return evaluate(top, hidden, (NDCG(50),), resamples=0)[NDCG(50)].mean
