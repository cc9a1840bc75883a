"""Sparsemax over the k best structures: a few structures by their scores alone."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores, whole_number
from fewfold.maps.entmax import sparsemax
from fewfold.structured.structures.structure import Structure, raise_infeasible
from fewfold.support import Support

__all__ = ["TopSupport", "topk_support"]


@dataclass(frozen=True, eq=False)
class TopSupport:
    """A few structures, and whether more of them would change nothing.

    Attributes:
        support: ones at the parts of each structure, and their weights.
        certified: (batch,) bool, whether this is sparsemax over *all* structures: one of the k has
            no weight, or there are no others.
    """

    support: Support
    certified: Tensor


def topk_support(
    scores: Tensor, structure: Structure, k: int, *, mask: Tensor | None = None
) -> TopSupport:
    """Sparsemax over the scores of the k best structures of each instance.

    Where `sparsemap` regularises marginals, this regularises the distribution over structures, as
    if each were a class of its own. Sparsemax over k classes is sparsemax over all as soon as one
    of the k gets nothing.

    Args:
        scores: `(..., *event)`.
        structure: one that has `k_best`.
        k: how many.
        mask: as in `sparsemap`.

    Returns:
        The support, empty and not certified for an instance with NaN or +inf.

    Raises:
        ValueError: if an instance has no structure at all.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([0.5, -0.2, 1.0, 0.1])
        >>> found = ff.structured.topk_support(scores, ff.structures.Bits(), 5)
        >>> found.support.weights, found.certified
        (tensor([0.4000, 0.3000, 0.2000, 0.1000]), tensor(True))

    Reference: Correia, Niculae, Aziz and Martins, "Efficient marginalization of discrete and
    structured latent variables via sparsity", 2020.
    """
    check_scores(scores)
    whole_number(k, "k")
    if mask is not None:
        check_mask(mask, scores)
        scores = scores.masked_fill(~mask, -math.inf)
    parts, values, event = structure.k_best_parts(scores, k)
    batch = scores.shape[: scores.dim() - structure.event_dim]
    rows = batch.numel()
    atoms = parts.view(rows, k, *event).to(scores)
    values = values.to(scores.device)
    own = torch.where(scores.detach() == -math.inf, 0.0, scores).reshape(rows, 1, event.numel())
    total = torch.bmm(own, atoms.flatten(2).mT).squeeze(1)  # columns would take four times as long
    if structure.additional:
        row = torch.arange(rows).repeat_interleave(k)
        codes = structure.codes(parts.view(rows * k, *event), event)
        extra = structure.flat(batch, event).extra(codes, row, event)
        total = total + extra.to(total).view(rows, k)
    # The gradient of these sums, and the values of the search: sums of many parts differ by less
    # than the roundings of narrow numbers.
    valid, odd = values > -math.inf, values.isnan().any(1)
    raise_infeasible(~valid.any(1) & ~odd, structure)
    weights = sparsemax(values + (total - total.detach()), mask=valid).to(scores.dtype)
    certified = (weights.detach() == 0).any(1)  # where there are fewer than k this holds as well
    support = Support.from_dense(weights)
    place = support.row * k + support.atoms
    flat = atoms.flatten(0, 1)
    support = replace(support, atoms=flat if len(place) == len(flat) else flat[place])
    every = structure_count(structure, event)
    if every is not None and k >= every:
        certified = torch.ones_like(certified)
    return TopSupport(support, (certified & ~odd).view(batch))


def structure_count(structure: Structure, event: torch.Size) -> int | None:
    """How many structures there are, if that is known."""
    try:
        return structure.count(event)
    except NotImplementedError:
        return None
