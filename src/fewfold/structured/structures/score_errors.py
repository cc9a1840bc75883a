"""Errors about scores for which no structure can be computed."""

from torch import Tensor

from fewfold._torch import has_values

__all__ = ["raise_infeasible", "raise_invalid_scores"]


def raise_infeasible(infeasible: Tensor, structure: object) -> None:
    """Raise a ValueError naming the first infeasible instance, if the values can be read."""
    if has_values(infeasible) and bool(infeasible.any()):
        first = int(infeasible.nonzero()[0, 0])
        raise ValueError(
            f"instance {first} has no structure of {structure}: its mask, or scores of -inf, "
            "leave nothing to choose from"
        )


def raise_invalid_scores(invalid: Tensor, structure: object) -> None:
    """Raise a ValueError naming the first instance with a score of NaN or +inf."""
    if has_values(invalid) and bool(invalid.any()):
        raise ValueError(
            f"instance {int(invalid.nonzero()[0, 0])} has a score of nan or inf, which defines no "
            f"distribution to sample from; scores of {structure} must be finite, or -inf where a "
            "part cannot be used"
        )
