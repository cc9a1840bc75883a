"""Candidates of a choice after whole trainings: single models, and blends of two."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from fewfold.recommender.evaluation.paired_interval import paired_interval
from fewfold.recommender.models.blend import Blend, blended
from fewfold.recommender.models.model import Model
from fewfold.recommender.selection.trials import DEPTH, Trial, Validation, per_user

__all__ = ["Candidate", "best_blend", "single"]

_WEIGHTS = (0.2, 0.35, 0.5, 0.65, 0.8)  # of the second model of a blend
_WORTH = 0.002  # least relative gain for which two models are fitted instead of one


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model with whole training, or a blend of two.

    Attributes:
        model: to fit if it is chosen.
        per_user: (users,) NDCG@10.
        bytes: size of its tensors.
        cost: multiply-adds to score one item for one user.
        seconds: time of its trials.
        parts: its trials.
    """

    model: Model
    per_user: Tensor
    bytes: int
    cost: float
    seconds: float
    parts: tuple[Trial, ...]

    @property
    def mean(self) -> float:
        """Mean NDCG@10."""
        return float(self.per_user.mean())


def single(trial: Trial) -> Candidate:
    """A model alone; after a whole training it keeps what that chose on held-out pairs."""
    model = trial.model.reusing(trial.reusable) if trial.effort == 1 else trial.model
    return Candidate(model, trial.per_user, trial.bytes, trial.cost, trial.seconds, (trial,))


def best_blend(
    found: Sequence[Candidate], best: Candidate, validation: Validation
) -> Candidate | None:
    """The blend that is significantly better than the best single model, or None.

    The gain is tested on each half of the users with the pair and weight that are best on the
    other half; the blend is the one that is best on all of them.
    """
    blends = [
        _blend(one, other, weight, validation)
        for one, other in combinations(found, 2)
        if one.parts[0].ranking is not None and other.parts[0].ranking is not None
        for weight in _WEIGHTS
    ]
    if not blends:
        return None
    values = torch.stack([one.per_user for one in blends])
    even = torch.arange(values.shape[1]) % 2 == 0
    crossed = torch.where(
        even,
        values[values[:, ~even].mean(1).argmax()],
        values[values[:, even].mean(1).argmax()],
    )
    gain = paired_interval(crossed, best.per_user)
    enough = gain.mean > _WORTH * best.mean
    return blends[int(values.mean(1).argmax())] if gain.low > 0 and enough else None


def _blend(one: Candidate, other: Candidate, weight: float, validation: Validation) -> Candidate:
    """A blend of two models with this weight of the second."""
    first, second = one.parts[0], other.parts[0]
    assert first.ranking is not None
    assert second.ranking is not None
    ranking = blended(first.ranking, second.ranking, weight, 10)
    depth = min(DEPTH, validation.histories.items)
    return Candidate(
        Blend(one.model, other.model, weight, depth),
        per_user(ranking, validation.hidden),
        one.bytes + other.bytes,
        one.cost + other.cost,
        one.seconds + other.seconds,
        (first, second),
    )
