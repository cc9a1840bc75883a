"""Sampling from the support of a sparse map."""

import torch
from torch import Tensor

from fewfold._random import rand
from fewfold.maps.entropies import Tsallis
from fewfold.maps.map_support import map_support
from fewfold.maps.omega import Omega
from fewfold.support import Support

__all__ = ["sample", "sample_support"]


def sample(
    scores: Tensor,
    omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
    dim: int = -1,
    *,
    samples: int = 1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw classes from ``omega.argmax(scores)``, with replacement.

    A model trained with `entmax_loss` needs no top-k or nucleus sampling and no temperature:
    classes with probability 0 are never drawn.

    Args:
        scores: any shape, classes along `dim`; -inf or False in `mask` masks a class.
        omega: a regulariser whose map gives probabilities.
        samples: number of samples per row.
        generator: source of randomness.

    Returns:
        int64 classes, the shape of the scores with `dim` removed and `samples` at the end.

    Example:
        >>> import torch
        >>> from fewfold.losses import sample
        >>> scores = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.0, -9.0]])
        >>> sample(scores, samples=6, generator=torch.Generator().manual_seed(0))
        tensor([[0, 0, 0, 0, 0, 0],
                [0, 0, 1, 0, 0, 0]])

    Reference:
        Martins, Marinho, Martins (2020). Sparse text generation. EMNLP.
    """
    support = map_support(scores, omega, dim, mask=mask)
    drawn = sample_support(support, samples, generator=generator)
    axis = dim % scores.dim()
    return drawn.view(*scores.shape[:axis], *scores.shape[axis + 1 :], samples)


def sample_support(
    support: Support, samples: int = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw atoms of every row in proportion to their weights, with replacement.

    Args:
        support: its weights must not be negative, with a positive sum in every row.
        samples: number of samples per row.
        generator: source of randomness.

    Returns:
        `(rows, samples, *event)` atoms.

    Example:
        >>> import torch
        >>> from fewfold.losses import sample_support
        >>> from fewfold.support import Support
        >>> support = Support.from_dense(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]))
        >>> sample_support(support, 4, generator=torch.Generator().manual_seed(0))
        tensor([[1, 1, 1, 1],
                [2, 2, 1, 1]])
    """
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples must be a whole number of at least 0, got {samples}")
    weights, row, atoms = support.weights.detach().double(), support.row, support.atoms
    if bool((row.diff() < 0).any()):
        order = row.argsort(stable=True)
        weights, row, atoms = weights[order], row[order], atoms[order]
    end = torch.bincount(row, minlength=support.rows).cumsum(0)
    mass = torch.cat([weights.new_zeros(1), weights.cumsum(0)])
    start = torch.cat([end.new_zeros(1), end[:-1]])
    total = mass[end] - mass[start]
    if bool((weights < 0).any()):
        raise ValueError(f"weights must be at least 0, got {float(weights.min())}")
    wrong = (~((total > 0) & total.isfinite())).nonzero()
    if len(wrong):
        raise ValueError(
            f"every row needs weights with a positive sum, got {float(total[wrong[0]])} "
            f"in row {int(wrong[0])}; drop fully masked rows before sampling"
        )
    point = rand((support.rows, samples), weights.device, dtype=torch.float64, generator=generator)
    point = mass[start].unsqueeze(1) + point * total.unsqueeze(1)
    # The first atom whose cumulative weight exceeds the point, clamped to the row against rounding.
    index = torch.searchsorted(mass[1:].contiguous(), point, right=True)
    index = torch.minimum(torch.maximum(index, start.unsqueeze(1)), end.unsqueeze(1) - 1)
    return atoms[index]
