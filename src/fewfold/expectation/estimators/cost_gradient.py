"""Gradients of the cost with respect to atoms, for estimators that expand or model it."""

import torch
from torch import Tensor

from fewfold._torch import under_transform

__all__ = ["cost_needs", "differentiate", "refuse_transforms"]


def refuse_transforms(name: str) -> None:
    """Raise inside torch.func, for an estimator that differentiates the cost by autograd."""
    if under_transform():
        raise RuntimeError(
            f"{name} differentiates the cost by autograd, which does not work inside a transform "
            "of torch.func; call backward, or use ScoreFunction() or, for categories and bits, "
            "ff.expectation.REBAR()"
        )


def differentiate(values: Tensor, at: Tensor, needs: str, *, create: bool = False) -> Tensor:
    """Gradient of the sum of `values`; raise ValueError(needs) if they are no function of `at`.

    The graph of the values is kept. `create` adds a graph of the gradient.
    """
    found = None
    if values.requires_grad:
        (found,) = torch.autograd.grad(
            values.sum(), at, retain_graph=True, create_graph=create, allow_unused=True
        )
    if found is None:
        raise ValueError(needs)
    return found


def cost_needs(name: str) -> str:
    """Message for a cost that an estimator cannot differentiate."""
    return (
        f"{name} needs the gradient of the cost with respect to the atoms, and the cost does not "
        "depend on them by differentiable operations; write "
        "ff.expectation.embed_atoms(atoms, table) in the cost, or use ScoreFunction()"
    )
