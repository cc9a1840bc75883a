"""Cost of ranking and of training, counted instead of timed: the same on every machine.

The unit is a multiply-add of a product of matrices. Other work, such as reading rows of tables,
counts as the multiply-adds that take as long, measured on two cores.
"""

from collections.abc import Sequence

from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.objectives import SampledSoftmax
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.training.run import Epoch

__all__ = ["MINUTE", "ranking_work", "training_work"]

MINUTE = 1e12  # multiply-adds that a machine with two cores does in about a minute
_SCAN = 16  # to compare the score of an item with the best so far
_ROW = 40_000  # to read a row of a table in training and to move it by its gradient


def ranking_work(fitted: Fitted, known: Jagged, users: int) -> float:
    """Multiply-adds to rank all items for this many users with histories as in `known`."""
    return float(users) * fitted.items * (fitted.score_cost(known) + _SCAN)


def training_work(log: Interactions, epochs: Sequence[Epoch]) -> float:
    """Multiply-adds of training on a log.

    The step of a user reads the rows of their items in two tables, and those of sampled items.
    """
    users = max(int((log.jagged.lengths > 0).sum()), 1)
    each = 2 * log.pairs / users + SampledSoftmax.samples  # rows
    return sum(epoch.users for epoch in epochs) * each * _ROW
