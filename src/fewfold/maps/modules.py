"""Maps as modules: `Map` for nn.Sequential, `AdaptiveEntmax` with a learnable alpha."""

import math

import torch
from torch import Tensor, nn

from fewfold._check import check_scores, fits, normal_dim
from fewfold.maps.entmax import entmax_within
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega, check_omega

__all__ = ["AdaptiveEntmax", "Map"]


def _shape(heads: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of alpha."""
    if heads is None:
        return ()
    sizes = tuple(heads) if isinstance(heads, (tuple, list)) else (heads,)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise TypeError(
            f"heads must be an int or a shape, got {heads!r}; for a fixed alpha write "
            "ff.entmax(scores, alpha)"
        )
    if any(size < 1 for size in sizes):
        raise ValueError(f"heads must be at least 1, got {heads}")
    return sizes if isinstance(heads, (tuple, list)) else (*sizes, 1, 1)


class Map(nn.Module):
    """The map of a regulariser as a module, for nn.Sequential.

    Args:
        omega: the regulariser, such as `Gini()` for sparsemax.
        dim: the dimension that sums to 1.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Map(ff.Gini())(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])
    """

    def __init__(self, omega: Omega, dim: int = -1) -> None:
        super().__init__()
        check_omega(omega)
        self.omega = omega
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return probabilities of the shape of the scores."""
        return self.omega.argmax(scores, self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"{self.omega}, dim={self.dim}"


class AdaptiveEntmax(nn.Module):
    """Entmax with learnable alpha, by default between softmax (1) and sparsemax (2).

    `alpha = low + (high - low) sigmoid(raw)` with the parameter `raw`, initialised to 0.

    Args:
        heads: None or 1 for a single alpha; an int h for one per head of scores (..., h, m, n);
            or the shape of alpha, which must broadcast against the scores with size 1 along
            `dim`.
        dim: the dimension that sums to 1.
        low: lower bound of alpha.
        high: upper bound of alpha.
        device, dtype: of the parameter.

    Example:
        >>> import torch, fewfold as ff
        >>> attention = ff.AdaptiveEntmax(heads=4)
        >>> attention(torch.zeros(2, 4, 3, 5)).shape, attention.alpha.shape
        (torch.Size([2, 4, 3, 5]), torch.Size([4, 1, 1]))

    Reference: Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """

    def __init__(
        self,
        heads: int | tuple[int, ...] | None = None,
        dim: int = -1,
        *,
        low: float = 1.0,
        high: float = 2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("low", low), ("high", high)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {type(value).__name__}")
        if not 0 < low < high < math.inf:
            raise ValueError(
                f"low and high must satisfy 0 < low < high and be finite, got {low} and {high}"
            )
        self.dim, self.low, self.high = dim, low, high
        self.raw = nn.Parameter(torch.zeros(_shape(heads), device=device, dtype=dtype))

    @property
    def alpha(self) -> Tensor:
        """Current value of alpha."""
        return self.low + (self.high - self.low) * torch.sigmoid(self.raw)

    @property
    def value(self) -> Omega:
        """The regulariser of the map, with the current alpha."""
        return Tsallis(self.alpha)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return probabilities of the shape of the scores."""
        check_scores(scores)
        alpha = self.alpha
        if alpha.numel() == 1:
            alpha = alpha.reshape(())
        elif not self._fits(scores):
            raise ValueError(
                f"{self._expected_shape()}, got {tuple(scores.shape)}; "
                "for one alpha write AdaptiveEntmax()"
            )
        return entmax_within(scores, alpha, self.high, self.dim, mask=mask)

    def _fits(self, scores: Tensor) -> bool:
        """Return whether alpha broadcasts against the scores, with size 1 along `dim`."""
        axis = normal_dim(self.dim, scores.dim())
        rows = (*scores.shape[:axis], 1, *scores.shape[axis + 1 :])
        return fits(self.raw.shape, rows)

    def _expected_shape(self) -> str:
        """Return the first half of the error message for scores that do not fit."""
        heads, *rest = self.raw.shape
        if rest == [1, 1]:
            return f"AdaptiveEntmax({heads}) maps scores (..., {heads}, m, n)"
        return (
            f"an alpha of shape {tuple(self.raw.shape)} must broadcast against the scores with "
            f"size 1 along dim={self.dim}"
        )

    def extra_repr(self) -> str:
        return f"shape={tuple(self.raw.shape)}, dim={self.dim}, low={self.low}, high={self.high}"
