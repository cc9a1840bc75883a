"""How much work ranking and training are, counted and not timed: the same on every machine.

The unit is a multiply-add of a product of matrices. Where something else is done, such as visiting
rows of tables, it is counted as the multiply-adds that take as long, measured on two cores.
"""

from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.objectives import SampledSoftmax
from fewfold.recommender.models.fitted import Fitted, FittedVAE

__all__ = ["MINUTE", "ranking_work", "training_work"]

MINUTE = 1e12  # multiply-adds that a machine with two cores does in about a minute
_SCAN = 16  # to compare the score of an item with the best so far
_ROW = 40_000  # to read a row of a table in training and to move it by its gradient


def ranking_work(fitted: Fitted, known: Jagged, users: int) -> float:
    """Multiply-adds to rank all items for so many users.

    Args:
        fitted: an item costs a model with vectors their width, others the mean length of `known`.
        known: what is known of users.
    """
    if isinstance(fitted, FittedVAE):
        items, width = fitted.vectors.shape
        return float(users) * items * (width + _SCAN)
    items = getattr(fitted.recipe, "items", 0)
    return float(users) * items * (len(known.values) / max(len(known.lengths), 1) + _SCAN)


def training_work(log: Interactions, passes: int) -> float:
    """Multiply-adds of so many passes over a log in training.

    A user's step visits the rows of their items in two tables, and those of the items drawn.
    """
    users = int((log.jagged.lengths > 0).sum())
    return float(passes) * (2 * log.pairs + SampledSoftmax.samples * users) * _ROW
