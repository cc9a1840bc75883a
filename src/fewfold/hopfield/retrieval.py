"""Retrieval from an associative memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import non_negative_number, whole_number
from fewfold._torch import untransformed
from fewfold.attention.shapes import joint_batch
from fewfold.hopfield.energies import Energy, FenchelYoung, check_memory

__all__ = ["Retrieval", "hopfield_retrieve"]


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Result of `hopfield_retrieve`.

    Attributes:
        state: `(..., m, d)` final states of the queries.
        steps: `(..., m)` int64, number of steps until each query converged.
        converged: `(..., m)` bool, whether the last step moved the query by at most `tol`.
        energy: `(..., m)` energy of the final states.
    """

    state: Tensor
    steps: Tensor
    converged: Tensor
    energy: Tensor


def hopfield_retrieve(
    query: Tensor,
    memory: Tensor,
    energy: Energy | None = None,
    *,
    mask: Tensor | None = None,
    max_steps: int = 128,
    tol: float = 1e-6,
) -> Retrieval:
    """Minimise the energy of queries by fixed-point iteration until convergence.

    Args:
        query: `(..., m, d)`.
        memory: `(..., n, d)` patterns.
        energy: `FenchelYoung(omega, beta)`, `Classical()`, `DenseAssociative()` or
            `Exponential()`; default: `FenchelYoung()`.
        mask: boolean `(..., m, n)`, True = keep; patterns available to each query.
        max_steps: maximum number of steps.
        tol: a query has converged once a step moves it by at most this distance.

    Returns:
        `Retrieval`, whose state is differentiable through all steps. Under transforms of torch,
        where convergence cannot be observed, all `max_steps` are performed.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> query = torch.tensor([[0.6, 0.5], [0.4, 0.7]])
        >>> found = ff.hopfield_retrieve(query, memory, ff.FenchelYoung(ff.Gini(), beta=4.0))
        >>> found.state, found.steps
        (tensor([[1., 0.],
                [0., 1.]]), tensor([3, 2]))
    """
    energy = FenchelYoung() if energy is None else energy
    if not isinstance(energy, Energy):
        raise TypeError(
            f"energy must be a value such as ff.FenchelYoung(ff.Gini(), beta=4.0), got {energy!r}"
        )
    check_memory(query, memory)
    whole_number(max_steps, "max_steps")
    non_negative_number(tol, "tol")
    batch = joint_batch(query, memory)
    state = query.expand(*batch, *query.shape[-2:])
    steps = torch.zeros(state.shape[:-1], dtype=torch.int64, device=state.device)
    moving = torch.ones_like(steps, dtype=torch.bool)
    for _ in range(max_steps):
        after = energy.step(state, memory, mask=mask)
        after = torch.where(moving.unsqueeze(-1), after, state)
        rests = (after.detach() - state.detach()).norm(dim=-1) <= tol  # False for NaN
        steps = steps + moving
        state, moving = after, moving & ~rests
        if untransformed(state, memory) and not bool(moving.any()):
            break  # under a transform, continue until `max_steps`
    return Retrieval(state, steps, ~moving, energy.value(state, memory, mask=mask))
