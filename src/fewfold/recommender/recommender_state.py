"""State of a fitted recommender: the model, ids, histories, and the data they come from."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewfold.recommender.attributes import Attributes
from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model import Fitted, Model
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.selection.half_life import Recency
from fewfold.recommender.training.train_options import CurvePoint, Training
from fewfold.recommender.user_profiles import UserProfiles
from fewfold.recommender.warm_vectors import WarmSettings

__all__ = ["RecommenderState"]


@dataclass(frozen=True, eq=False)
class RecommenderState:
    """All that a fitted `Recommender` holds, and a saved one stores.

    Attributes:
        model: the model with its settings.
        training: settings of the training.
        seed: of all random numbers.
        fitted: the fitted model.
        items: item ids.
        trained_items: (items,) mask of the items with interactions in the training data.
        users: user ids, or None if they were not saved.
        history: items of each user, or None likewise.
        attributes: attributes of the items, if there are any.
        evaluation: on held-out interactions; of a loaded model the content of `metrics.json`.
        data: summary of the log, as in `config.json`.
        learned_from: size of the training data, as in `config.json`.
        choice: how the model was chosen, if it was not named.
        warm: how item vectors were completed from attributes, if they were.
        recency: how interactions count by their age, if that was asked.
        profiles: what users with certain attributes like, if attributes of users are known.
        curve: loss and validation of each epoch of the training, if there was one.
        comparison: results of a comparison with other models, as in `config.json`.
    """

    model: Model
    training: Training
    seed: int
    fitted: Fitted
    items: Ids
    trained_items: Tensor
    users: Ids | None = None
    history: Interactions | None = None
    attributes: Attributes | None = None
    evaluation: Evaluation | dict[str, Any] | None = None
    data: dict[str, Any] = field(default_factory=dict)
    learned_from: dict[str, Any] = field(default_factory=dict)
    choice: Choice | None = None
    warm: WarmSettings | None = None
    recency: Recency | None = None
    profiles: UserProfiles | None = None
    curve: tuple[CurvePoint, ...] = ()
    comparison: dict[str, Any] | None = None
