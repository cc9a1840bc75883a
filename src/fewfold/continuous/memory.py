"""Unbounded memory compressed to a signal of fixed size."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores, positive_number, whole_number
from fewfold._random import multinomial
from fewfold.continuous.basis import Basis, RectangularBasis
from fewfold.continuous.density import LineDensity
from fewfold.continuous.signal import (
    Signal,
    cached_matrix,
    cell_centres,
    check_basis,
    ridge_matrix,
    solution,
)

__all__ = ["ContinuousMemory", "Sticky"]


@dataclass(frozen=True)
class Sticky:
    """Sticky memories: sample the old signal in proportion to past attention.

    Args:
        bins: number of bins of the attention histogram.
    """

    bins: int = 128

    def __post_init__(self) -> None:
        whole_number(self.bins, "bins")


class ContinuousMemory:
    """All vectors seen so far as one signal over [0, 1], with the newest at the end.

    Each update contracts the old signal to `[0, tau]`, places the new vectors in the rest, and fits
    a signal to samples of the old one and the new vectors. The size stays fixed, and old content
    loses resolution. Gradients reach only the vectors of the last update.

    Args:
        basis: basis functions on the line.
        tau: fraction of the line that the old signal is contracted to, between 0 and 1.
        samples: number of samples of the old signal.
        ridge: penalty of the regression.
        sticky: `Sticky()` to sample in proportion to past attention; default: evenly.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = ff.ContinuousMemory(ff.continuous.GaussianBasis.grid(32, [0.02]), ridge=0.1)
        >>> for step in range(101):
        ...     signal = memory.update(torch.full((8, 1), (-1.0) ** step))
        >>> signal.coefficients.shape, [round(x, 3) for x in memory.interval(2)]
        (torch.Size([32, 1]), [0.422, 0.562])
        >>> signal(torch.tensor([0.875, 0.65, 0.5])).round()
        tensor([[ 1.],
                [-1.],
                [ 1.]])

    Reference: Martins, Marinho and Martins, "Infinity-former: infinite memory transformer", 2022.
    """

    def __init__(
        self,
        basis: Basis,
        tau: float = 0.75,
        samples: int = 512,
        ridge: float = 1.0,
        sticky: Sticky | None = None,
    ) -> None:
        check_basis(basis)
        if basis.dim != 1:
            raise ValueError(
                f"basis must be of the line, got {basis}; write GaussianBasis.grid(64)"
            )
        if not 0 < positive_number(tau, "tau") < 1:
            raise ValueError(f"tau must be between 0 and 1, got {tau}")
        if sticky is not None and not isinstance(sticky, Sticky):
            raise TypeError(f"sticky must be a value such as Sticky(), or None, got {sticky!r}")
        self.basis, self.tau = basis, tau
        self.samples = whole_number(samples, "samples")
        self.ridge, self.sticky = positive_number(ridge, "ridge"), sticky
        self.signal: Signal | None = None
        self.updates = 0

    def update(
        self,
        vectors: Tensor,
        attended: LineDensity | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """Add vectors `(..., L, d)`, of the same batch and size in every update.

        Args:
            attended: densities `(..., heads, m)` of the last attention to the memory, for
                `Sticky()`; without them samples are evenly spaced.
            generator: random number generator of the samples.
        """
        check_scores(vectors, "vectors")
        if vectors.dim() < 2 or vectors.shape[-2] == 0:
            raise ValueError(f"vectors must be (..., L, d) with L >= 1, got {tuple(vectors.shape)}")
        length = vectors.shape[-2]
        if self.signal is None:
            self.signal = Signal.fit(vectors, self.basis, ridge=self.ridge)
            self.updates = 1
            return self.signal
        past = self.signal.detach()
        expected = (*past.coefficients.shape[:-2], length, past.coefficients.shape[-1])
        if vectors.shape != expected:
            raise ValueError(
                f"vectors must be {expected}, as those before, got {tuple(vectors.shape)}; write "
                "memory.forget() before another batch"
            )
        places = self._places(vectors, attended, generator)
        both = torch.cat([past(places), vectors], -2)
        matrix = cached_matrix(self.basis, self._key(length), vectors, lambda: self._matrix(length))
        self.signal = Signal(solution(matrix, both), self.basis)
        self.updates += 1
        return self.signal

    def forget(self) -> None:
        """Reset the memory to empty."""
        self.signal, self.updates = None, 0

    def interval(self, age: int) -> tuple[float, float]:
        """Interval of the vectors added `age` updates ago, for evenly spaced samples.

        The interval of the first update starts at 0.
        """
        if whole_number(age, "age", least=0) >= self.updates:
            raise ValueError(f"age must be below the number of updates {self.updates}, got {age}")
        first = age == self.updates - 1
        return 0.0 if first else self.tau ** (age + 1), self.tau**age

    def _key(self, length: int) -> tuple[object, ...]:
        return "memory", self.samples, length, self.tau, self.ridge

    def _matrix(self, length: int) -> Tensor:
        """G, `(samples + L, n)`, for even samples in `[0, tau]` followed by the new vectors."""
        old = self.tau * cell_centres(self.samples)
        new = self.tau + (1 - self.tau) * cell_centres(length)
        features = self.basis(torch.cat([old, new]))
        return ridge_matrix(features, features[:0], self.ridge)

    def _places(
        self, vectors: Tensor, attended: LineDensity | None, generator: torch.Generator | None
    ) -> Tensor:
        """Sorted positions `(samples,)` or `(..., samples)` at which the old signal is sampled."""
        if self.sticky is None or attended is None:
            return cell_centres(self.samples).to(vectors.device)
        bins = self.sticky.bins
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        batch = vectors.shape[:-2]
        with torch.no_grad():
            mass = RectangularBasis(edges).expect(attended).clamp(min=0).float()
            if mass.shape[: len(batch)] != batch:
                raise ValueError(
                    f"attended must be densities ({', '.join(map(str, batch))}, ...), got "
                    f"{tuple(mass.shape[:-1])}"
                )
            mass = mass.reshape(*batch, -1, bins).sum(-2).reshape(-1, bins)
            nothing = mass.sum(-1, keepdim=True) <= 0  # all attention lies outside [0, 1]
            drawn = multinomial(mass + nothing, self.samples, replacement=True, generator=generator)
        places = (drawn.sort(-1).values.double() + 0.5) / bins
        return places.view(*batch, self.samples)
