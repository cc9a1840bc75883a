"""Settings of training: epochs, batch size, learning rate, weight of the KL term, time limit."""

from dataclasses import dataclass

from fewfold._check import non_negative_number, positive_number, whole_number
from fewfold.recommender.training.train_options import TrainOptions

__all__ = ["Training"]

_STEPS = 600


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
