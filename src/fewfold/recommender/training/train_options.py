"""Settings of training, of a recommender and of a call of `train`; the result of an epoch."""

import time
from dataclasses import dataclass

from fewfold._check import non_negative_number, positive_number, whole_number

__all__ = ["Deadline", "DenseAdam", "Epoch", "TrainOptions", "Training"]

_STEPS = 600  # least number of steps of a small log, by default


@dataclass(frozen=True)
class DenseAdam:
    """Torch's Adam on all parameters, with a learning rate that falls in steps.

    Each step moves every row of the tables, also those without a gradient: by momentum, and by the
    penalty, which Adam normalises, so that rare items fall to zero about as fast as others learn.

    Attributes:
        weight_decay: L2 penalty; `weight_decay * w` is added to the gradient of the mean loss of
            the users of a step. Of a loss that is their sum, .01 is .01 / users here.
        factor: by which the learning rate falls.
        every: after as many epochs.
    """

    weight_decay: float = 0.0
    factor: float = 0.95
    every: int = 5

    def __post_init__(self) -> None:
        non_negative_number(self.weight_decay, "weight_decay")
        positive_number(self.factor, "factor")
        whole_number(self.every, "every")

    def relative_rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, numbered from 0, relative to the first."""
        return self.factor ** (epoch // self.every)


@dataclass(frozen=True)
class TrainOptions:
    """Options of `train`.

    Together with the model, the data and the objective they determine the result: a checkpoint is
    resumed only with the options that it was written with.

    Attributes:
        epochs: passes over the users.
        batch: users per step.
        lr: the highest learning rate.
        beta: the weight of the KL term.
        beta_by_length: weigh it for each user in proportion to the number of their items, `beta`
            being the mean.
        annealing: share of the steps over which the weight rises from 0.
        refresh_every: epochs after which the proposal is refreshed with the current items.
        draws: latents per user and step, over which the reconstruction is averaged.
        optimizer: replaces the optimisers and the learning rate that `train` describes.
        patience: stop after as many epochs without a better NDCG@50 of the validation, and restore
            the best weights.
        seed: of the order of users, the dropout, the latent and the samples.
        time_budget: seconds, those before a resume included. If fewer steps fit than the epochs
            have, the learning rate falls over these; the last epoch may then be incomplete.

    Example:
        >>> import fewfold as ff
        >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
        >>> model = ff.recommender.FastVAE(items=4, hidden=8, latent=2)
        >>> options = ff.recommender.TrainOptions(epochs=3, lr=1e-2)
        >>> len(ff.recommender.train(model, log, options, progress=False))
        3
    """

    epochs: int = 16
    batch: int = 256
    lr: float = 8e-3
    beta: float = 0.4
    beta_by_length: bool = False
    annealing: float = 0.2
    refresh_every: int = 1
    draws: int = 1
    optimizer: DenseAdam | None = None
    patience: int | None = None
    seed: int = 0
    time_budget: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "refresh_every", "draws"):
            whole_number(getattr(self, name), name)
        for name in ("lr", "beta", "annealing"):
            non_negative_number(getattr(self, name), name)
        if self.patience is not None:
            whole_number(self.patience, "patience")
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")


@dataclass(frozen=True)
class Training:
    """How a `VAE` is trained.

    Attributes:
        epochs: passes over the users; None is sixteen, or as many as a small log needs for 600
            steps.
        batch: users per step.
        lr: maximum of the learning rate.
        beta: weight of the KL term.
        time_budget: seconds; the number of steps is reduced to fit.
    """

    epochs: int | None = None
    batch: int = 256
    lr: float = 8e-3
    beta: float = 0.4
    time_budget: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            whole_number(self.epochs, "epochs")
        whole_number(self.batch, "batch")
        positive_number(self.lr, "lr")
        non_negative_number(self.beta, "beta")
        if self.time_budget is not None:
            positive_number(self.time_budget, "time_budget")

    def options(self, users: int, seed: int) -> TrainOptions:
        """Options of `train` for this many users."""
        batch = min(self.batch, max(16, users // 16))
        least = -(-_STEPS * batch // max(users, 1))
        epochs = max(16, min(least, 100)) if self.epochs is None else self.epochs
        return TrainOptions(
            epochs, batch, self.lr, self.beta, seed=seed, time_budget=self.time_budget
        )


@dataclass(frozen=True)
class Epoch:
    """Result of an epoch: mean loss per user, seconds, and NDCG@50 on the validation set."""

    number: int
    loss: float
    seconds: float
    users_per_second: float
    ndcg: float | None

    @property
    def users(self) -> int:
        """Number of users; fewer than all if the time budget ended the epoch."""
        return round(self.users_per_second * self.seconds)

    @property
    def point(self) -> "CurvePoint":
        """Its point of the training curve."""
        return CurvePoint(self.number, self.loss, self.ndcg)


@dataclass(frozen=True)
class CurvePoint:
    """A point of a training curve, which a model keeps.

    It has no times: the same seed writes the same bytes.

    Attributes:
        epoch: its number, from 1; a model of two parts has two curves, and numbers begin anew.
        loss: mean loss per user.
        ndcg: NDCG@50 on the validation set, if there is one.
    """

    epoch: int
    loss: float
    ndcg: float | None = None


@dataclass(frozen=True)
class Deadline:
    """A moment by which a computation must have ended.

    Attributes:
        ends: on the clock of `time.monotonic`.
    """

    ends: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment so many seconds from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then, 0 if it has passed."""
        return max(0.0, self.ends - time.monotonic())

    def share(self, part: float) -> "Deadline":
        """The moment at which this part of the remaining time has passed."""
        return Deadline.after(part * self.left())
