"""Multi-head continuous attention."""

from typing import Any

import torch
from torch import Tensor, nn

from fewfold._check import check_mask, whole_number
from fewfold.continuous.basis import Basis, GaussianBasis
from fewfold.continuous.density import Density, joint_shape
from fewfold.continuous.locate import Locator, LocatorSpec, QueryHeads
from fewfold.continuous.profile import checked_alpha
from fewfold.continuous.signal import Ridge, Signal, check_basis

__all__ = ["ContinuousAttention"]


class ContinuousAttention(nn.Module):
    """Continuous attention over a sequence (as a line) or an image (as a plane).

    A signal is fitted to the values by ridge regression; each head computes a density from each
    query and returns the expectation of the signal under it. The cost per query is independent of
    the number of values.

    Args:
        dim: size of the vectors.
        basis: basis functions of the signals; default: 32 Gaussians of two widths. Its dimension
            determines whether values are sequences or images.
        alpha: 1 for Gaussian densities, 2 for truncated parabolas, values between them interpolate,
            and below 1 for heavy tails, down to 0, the Cauchy densities, on the line.
        heads: number of heads; must divide `dim`.
        locator: how densities are computed: `QueryHeads()`, linear in the query; `SignalHeads()`,
            linear in the scores of query and signal; `AttentionMoments(omega)`, from the moments of
            discrete attention.
        ridge: penalty of the regression, or `Ridge(penalty, padded)`.
        device, dtype: of the parameters; a basis with parameters keeps its own.

    Example:
        >>> import torch, fewfold as ff
        >>> layer = ff.ContinuousAttention(16, heads=4)
        >>> query, values = torch.randn(2, 5, 16), torch.randn(2, 50, 16)
        >>> layer(query, values).shape, layer.density(query, values).mu.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5]))
        >>> layer = ff.ContinuousAttention(16, ff.continuous.GaussianBasis.grid(10, [0.03], dim=2))
        >>> layer(query, torch.randn(2, 14, 14, 16)).shape
        torch.Size([2, 5, 16])

    Reference: Martins et al., "Sparse and continuous attention mechanisms", 2020.
    """

    def __init__(
        self,
        dim: int,
        basis: Basis | None = None,
        alpha: float = 2.0,
        heads: int = 1,
        locator: Locator = QueryHeads(),  # noqa: B008  (an immutable value)
        ridge: float | Ridge = 0.01,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.heads = whole_number(dim, "dim"), whole_number(heads, "heads")
        if dim % heads:
            raise ValueError(f"heads must divide dim={dim}, got {heads}")
        if isinstance(locator, type) or not isinstance(locator, Locator):
            raise TypeError(f"locator must be a value such as QueryHeads(), got {locator!r}")
        self._basis = GaussianBasis.grid(16) if basis is None else basis
        check_basis(self._basis)
        self.alpha, self.ridge = checked_alpha(alpha, self._basis.dim), Ridge.of(ridge)
        for name, tensor in self._basis.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"basis_{name}", tensor)
        places = LocatorSpec(dim, heads, self._basis, self.alpha, device, dtype)
        self.locate = locator.build(places)
        # Without biases, so that a memory that is masked entirely gives zeros.
        self.value, self.out = (places.linear(dim, dim, bias=False) for _ in range(2))

    @property
    def basis(self) -> Basis:
        """Basis of the signals, with the current parameters of the module.

        `torch.func.functional_call` replaces the parameters temporarily.
        """
        own = {
            name: getattr(self, f"basis_{name}", tensor)
            for name, tensor in self._basis.tensors.items()
        }
        return self._basis.replaced(own)

    def forward(
        self, query: Tensor, memory: Tensor | Signal, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return `(..., m, dim)`.

        Args:
            query: `(..., m, dim)`.
            memory: `(..., n, dim)`, `(..., H, W, dim)` on the plane, or a `Signal` of such.
            mask: boolean, True = keep, `(..., n)` or `(..., H, W)`.
        """
        signal, density = self._signal_and_density(query, memory, mask)
        values = self.value(signal.coefficients)
        parts = values.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        found = Signal(parts, signal.basis).expect(density)
        joined: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return joined

    def density(
        self, query: Tensor, memory: Tensor | Signal, *, mask: Tensor | None = None
    ) -> Density:
        """Return the attention densities `(..., heads, m)`."""
        return self._signal_and_density(query, memory, mask)[1]

    def _signal_and_density(
        self, query: Tensor, memory: Tensor | Signal, mask: Tensor | None
    ) -> tuple[Signal, Density]:
        self._check(query, memory)
        if isinstance(memory, Signal):
            if mask is not None:
                raise ValueError("a Signal has its mask already; write none")
            return memory, self.locate(query, None, memory, None)
        if mask is not None:
            check_mask(mask, memory[..., 0])
            mask = mask.expand(memory.shape[:-1])
            memory = memory.masked_fill(~mask.unsqueeze(-1), 0.0)  # masked values may be NaN
        signal = Signal.fit(memory, self.basis, mask=mask, ridge=self.ridge)
        return signal, self.locate(query, memory, signal, mask)

    def _check(self, query: Any, memory: Any) -> None:
        shape = "n" if self.basis.dim == 1 else "H, W"
        if isinstance(memory, Signal):
            if memory.basis is not self.basis:
                raise ValueError(
                    "a Signal must have the basis of the module; write "
                    "Signal.fit(values, module.basis)"
                )
            memory, shape = memory.coefficients, "n"
        for name, one, least in (
            ("query", query, 2),
            ("memory", memory, 1 + len(shape.split(", "))),
        ):
            if not isinstance(one, Tensor) or one.dim() < least or one.shape[-1] != self.dim:
                got = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
                where = "m" if name == "query" else shape
                raise ValueError(f"{name} must be (..., {where}, {self.dim}), got {got}")
        rest = memory.shape[: -1 - len(shape.split(", "))]
        if joint_shape(query.shape[:-2], rest) is None:
            raise ValueError(
                f"query and memory must have the same batch shape, got {tuple(query.shape)} and "
                f"{tuple(memory.shape)}"
            )

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.basis}, alpha={self.alpha:g}, heads={self.heads}, {self.ridge}"
