"""Locators: modules that compute attention densities from queries."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.continuous.basis import Basis
from fewfold.continuous.continuous_attention import density_of
from fewfold.continuous.density import (
    LEAST_VARIANCE,
    Density,
    LineDensity,
    moments_exist,
    working,
)
from fewfold.continuous.plane_density import PlaneDensity, two_by_two
from fewfold.continuous.signal import Signal, cell_centres, masked_positions
from fewfold.maps.entropies import Shannon
from fewfold.maps.omega import Omega
from fewfold.structured.omega_module import OmegaModule

__all__ = ["AttentionMoments", "Locator", "LocatorSpec", "QueryHeads", "SignalHeads"]


@dataclass(frozen=True)
class LocatorSpec:
    """Configuration of a locator: size of the vectors, number of heads, basis and alpha.

    Parameters are created on `device` with `dtype`, as by `linear`.
    """

    dim: int
    heads: int
    basis: Basis
    alpha: float
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
        """Return a linear layer on the device and with the dtype of the module."""
        return nn.Linear(inputs, outputs, bias=bias, device=self.device, dtype=self.dtype)

    def split(self, vectors: Tensor) -> Tensor:
        """Reshape `(..., n, heads width)` to `(..., heads, n, width)`."""
        parts: Tensor = vectors.unflatten(-1, (self.heads, -1))
        return parts.transpose(-3, -2)

    def density(self, raw: Tensor, components: int) -> Density:
        """Densities from unconstrained parameters `(..., components x parameters)`."""
        raw = working(raw)
        raw = raw.unflatten(-1, (components, -1)) if components > 1 else raw
        size = self.basis.dim
        mu, spread = raw[..., :size].sigmoid(), raw[..., size : size + size * (size + 1) // 2]
        sigma_sq = F.softplus(spread) + LEAST_VARIANCE
        if size == 1:
            mu, sigma_sq = mu.squeeze(-1), sigma_sq.squeeze(-1)
        else:
            sigma_sq = _covariance(sigma_sq[..., :2], spread[..., 2])
        weights = raw[..., -1].softmax(-1) if components > 1 else None
        return density_of(self.basis, mu, sigma_sq, self.alpha, weights)

    def parameters(self, components: int) -> int:
        """Number of parameters of a density with this many components."""
        size = self.basis.dim
        each = size + size * (size + 1) // 2
        return components * (each + (components > 1))


def _covariance(diagonal: Tensor, below: Tensor) -> Tensor:
    """`L L^T + c I`, `(..., 2, 2)`, from the squared diagonal of L and its off-diagonal entry."""
    root = diagonal.sqrt()
    off = root[..., 0] * below
    entries = [
        diagonal[..., 0] + LEAST_VARIANCE,
        off,
        off,
        diagonal[..., 1] + below**2 + LEAST_VARIANCE,
    ]
    return two_by_two(*entries)


class Locator(ABC):
    """Base class of the ways to compute densities from queries."""

    @abstractmethod
    def build(self, places: LocatorSpec) -> nn.Module:
        """Build a module `(query, memory, signal, mask)` -> densities `(..., heads, m)`."""


@dataclass(frozen=True)
class QueryHeads(Locator):
    """Densities from a linear layer of the query: `mu = sigmoid(.)`, `sigma_sq = softplus(.)`.

    Args:
        components: number of mixture components, with softmax weights; 1 for a single density.
    """

    components: int = 1

    def __post_init__(self) -> None:
        whole_number(self.components, "components")

    def build(self, places: LocatorSpec) -> nn.Module:
        return _FromQuery(places, self.components)


@dataclass(frozen=True)
class SignalHeads(Locator):
    """Densities from a linear layer of the scores `K q / sqrt(d)`, with K projected from B.

    Args:
        components: number of mixture components, with softmax weights; 1 for a single density.
    """

    components: int = 1

    def __post_init__(self) -> None:
        whole_number(self.components, "components")

    def build(self, places: LocatorSpec) -> nn.Module:
        return _FromSignal(places, self.components)


@dataclass(frozen=True)
class AttentionMoments(Locator):
    """Densities with the mean and variance of discrete attention over the positions of values.

    Args:
        omega: regulariser of the map from scores to weights; default: softmax.
    """

    omega: Omega = Shannon()  # noqa: RUF009  (an immutable value)

    def build(self, places: LocatorSpec) -> nn.Module:
        if places.alpha < 1:
            moments_exist(places.basis.dim, places.alpha)
        return _FromAttention(places, self.omega)


class _FromQuery(nn.Module):
    def __init__(self, places: LocatorSpec, components: int) -> None:
        super().__init__()
        self.places, self.components = places, components
        self.head = places.linear(places.dim, places.heads * places.parameters(components))

    def forward(
        self, query: Tensor, memory: Tensor | None, signal: Signal, mask: Tensor | None
    ) -> Density:
        return self.places.density(self.places.split(self.head(query)), self.components)


class _FromSignal(nn.Module):
    def __init__(self, places: LocatorSpec, components: int) -> None:
        super().__init__()
        self.places, self.components = places, components
        self.query, self.key = (places.linear(places.dim, places.dim) for _ in range(2))
        self.head = places.linear(len(places.basis), places.parameters(components))

    def forward(
        self, query: Tensor, memory: Tensor | None, signal: Signal, mask: Tensor | None
    ) -> Density:
        rows = self.places.split(self.query(query))
        keys = self.places.split(self.key(signal.coefficients))
        scores = rows @ keys.mT / math.sqrt(rows.shape[-1])
        return self.places.density(self.head(scores), self.components)


class _FromAttention(nn.Module):
    def __init__(self, places: LocatorSpec, omega: Omega) -> None:
        super().__init__()
        self.places, self.omega = places, OmegaModule(omega)
        self.query, self.key = (places.linear(places.dim, places.dim) for _ in range(2))

    def forward(
        self, query: Tensor, memory: Tensor | None, signal: Signal, mask: Tensor | None
    ) -> Density:
        if memory is None:
            raise ValueError(
                "AttentionMoments needs vectors to attend to, got a Signal; write SignalHeads()"
            )
        plane = self.places.basis.dim == 2
        points = _positions(memory, mask, plane)
        flat = memory.flatten(-3, -2) if plane else memory
        rows, keys = (self.places.split(x) for x in (self.query(query), self.key(flat)))
        scores = rows @ keys.mT / math.sqrt(rows.shape[-1])
        if mask is not None:
            keep = (mask.flatten(-2) if plane else mask)[..., None, None, :]
            scores = scores.masked_fill(~keep, -math.inf)
        probs = working(self.omega.value.argmax(scores))
        kind = PlaneDensity if plane else LineDensity
        return kind.from_attention(probs, points.to(probs), self.places.alpha)


def _positions(memory: Tensor, mask: Tensor | None, plane: bool) -> Tensor:
    """Positions of grid cells, `(H W, 2)`, or of unmasked sequence entries, `(..., 1, 1, L)`."""
    if plane:
        lines = [cell_centres(size).to(memory.device) for size in memory.shape[-3:-1]]
        return torch.cartesian_prod(*lines)
    if mask is None:
        return cell_centres(memory.shape[-2]).to(memory.device)
    return masked_positions(mask, torch.float64)[..., None, None, :]
