"""Modules, where a map has state or stands inside nn.Sequential."""

import torch
from torch import Tensor, nn

from fewfold.maps.entmax import entmax
from fewfold.maps.omega import Omega

__all__ = ["AdaptiveEntmax", "Map"]


class Map(nn.Module):
    """The map of a regulariser, for nn.Sequential."""

    def __init__(self, omega: Omega, dim: int = -1) -> None:
        super().__init__()
        self.omega = omega
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.omega.argmax(scores, self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"{self.omega}, dim={self.dim}"


class AdaptiveEntmax(nn.Module):
    """Entmax whose alpha is learnt, in (1, 2), one per head."""

    def __init__(self, shape: tuple[int, ...] = (), dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.raw = nn.Parameter(torch.zeros(shape))

    @property
    def alpha(self) -> Tensor:
        return 1 + torch.sigmoid(self.raw)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, self.dim, mask=mask)
