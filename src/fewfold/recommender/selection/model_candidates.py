"""Candidates of a choice after whole trainings: single models, and blends of two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from fewfold.recommender.evaluation.paired_interval import paired_interval
from fewfold.recommender.models.blend import Blend, MergedLists
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
        blend for one, other in combinations(found, 2) for blend in _blends(one, other, validation)
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


def _blends(one: Candidate, other: Candidate, validation: Validation) -> Iterator[Candidate]:
    """Blends of two models with several weights; none if there are no lists of one of them."""
    first, second = one.parts[0], other.parts[0]
    if first.ranking is None or second.ranking is None:
        return
    merged = MergedLists(first.ranking, second.ranking)
    depth = min(DEPTH, validation.histories.items)
    for weight in _WEIGHTS:
        yield Candidate(
            Blend(one.model, other.model, weight, depth),
            per_user(merged.blended(weight, 10), validation.hidden),
            one.bytes + other.bytes,
            one.cost + other.cost,
            one.seconds + other.seconds,
            (first, second),
        )
