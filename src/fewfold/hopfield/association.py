"""Base class of the Hopfield modules: projections and retrieval steps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewfold._check import fraction, positive_number, whole_number
from fewfold._torch import has_values, untransformed
from fewfold.attention.shapes import Layout, check_vectors, joint_batch
from fewfold.attention.sparse_attention import drop_weights, sparse_attention
from fewfold.attention.watch import is_watched, note
from fewfold.hopfield.energies import check_rowwise
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega
from fewfold.structured.omega_module import OmegaModule
from fewfold.support import Support

__all__ = [
    "Association",
    "Heads",
    "check_pattern_mask",
]

_SPARSE = 8  # values are computed for the support alone if it is below 1 / 8 of the patterns


@dataclass(frozen=True)
class Heads:
    """Heads of a Hopfield module.

    Args:
        count: number of heads.
        size: size of the projected vectors per head; default: `dim / count`.
        dropout: probability that a pattern weight is dropped during training.
    """

    count: int = 1
    size: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        whole_number(self.count, "count")
        if self.size is not None:
            whole_number(self.size, "size")
        fraction(self.dropout, "dropout")

    def width(self, dim: int) -> int:
        """Size of each head in a module for vectors of size `dim`."""
        if self.size is None and dim % self.count:
            raise ValueError(
                f"dim={dim} cannot be divided among {self.count} heads; write "
                f"Heads({self.count}, size={dim // self.count + 1})"
            )
        return dim // self.count if self.size is None else self.size


class Association(nn.Module):
    """Projections of queries and patterns, and the retrieval steps between them."""

    def __init__(
        self,
        dim: int,
        omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
        beta: float | Tensor | None = None,
        heads: int | Heads = 1,
        steps: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rowwise(omega)
        self.dim = whole_number(dim, "dim")
        self.heads = heads if isinstance(heads, Heads) else Heads(heads)
        self.steps = whole_number(steps, "steps")
        self.omega = OmegaModule(omega)
        width = self.heads.width(dim)
        self.beta: float | Tensor
        beta = _checked_beta(1 / math.sqrt(width) if beta is None else beta, self.heads.count)
        if isinstance(beta, Tensor) and not isinstance(beta, nn.Parameter):
            self.register_buffer("beta", beta.to(device=device, dtype=dtype))
        else:
            self.beta = beta
        inner = width * self.heads.count
        self.state_norm, self.stored_norm, self.value_norm = (
            nn.LayerNorm(dim, device=device, dtype=dtype) for _ in range(3)
        )
        self.query, self.key, self.value = (
            nn.Linear(dim, inner, device=device, dtype=dtype) for _ in range(3)
        )
        self.out = nn.Linear(inner, dim, device=device, dtype=dtype)

    def associate(self, state: Tensor, stored: Tensor, mask: Tensor | None) -> Tensor:
        """Retrieve `(..., m, dim)` for queries `(..., m, dim)` and patterns `(..., n, dim)`."""
        check_vectors(state, "query", self.dim)
        check_vectors(stored, "memory", self.dim)
        joint_batch(state, stored)
        query = self._split(self.query(self.state_norm(state)))
        key = self._split(self.key(self.stored_norm(stored)))
        if mask is not None:
            check_pattern_mask(mask, state, stored)
            # A mask of patterns, or of queries and patterns, is shared by all heads.
            mask = mask.unsqueeze(-2) if mask.shape == stored.shape[:-1] else mask
            mask = mask.unsqueeze(-3)
        scaled = key
        if isinstance(self.beta, Tensor):
            scaled = key * self.beta.to(key.dtype).view(-1, 1, 1)
        beta = 1.0 if isinstance(self.beta, Tensor) else self.beta
        omega = self.omega.value.for_size(stored.shape[-2])
        for _ in range(self.steps - 1):
            query = sparse_attention(query, scaled, key, omega, mask=mask, scale=beta)
        layout = Layout.of(query, scaled, scaled, mask, False, beta, False)
        if self._may_be_sparse(layout, omega, query, stored):
            found = self._by_support(layout, omega, query, scaled, stored)
        else:
            found = sparse_attention(
                query, scaled, self._values(stored), omega,
                mask=mask, scale=beta, dropout_p=self._drop,
            )  # fmt: skip
        joined: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return joined

    def _may_be_sparse(self, layout: Layout, omega: Omega, query: Tensor, stored: Tensor) -> bool:
        """Whether there are so few queries that most patterns may be outside all supports."""
        if not untransformed(query, stored) or omega.dense or not layout.small:
            return False
        each = layout.heads * layout.queries // max(stored.shape[:-2].numel(), 1)
        own = stored.shape[:-2] in (layout.batch[:-1], ())  # each row determines its memory
        return own and _SPARSE * each <= layout.keys

    def _by_support(
        self, layout: Layout, omega: Omega, query: Tensor, key: Tensor, stored: Tensor
    ) -> Tensor:
        """Output `(..., heads, m, width)` from the patterns in the support alone.

        The value projection is linear, so that patterns are mixed first and projected afterwards.
        """
        probs = omega.argmax(layout.scores(query, key))
        if is_watched():
            note(Support.from_dense(probs.detach()), layout)
        if self._drop:
            probs = drop_weights(probs, self._drop, None)
        support = Support.from_dense(probs)
        if _SPARSE * len(support.weights) > stored.shape[:-1].numel():
            return probs @ self._values(stored)
        bag = support.row // (layout.heads * layout.queries // max(stored.shape[:-2].numel(), 1))
        used = stored.reshape(-1, self.dim)[bag * layout.keys + support.atoms]
        mixed = support.reduce(self.value_norm(used)).view(*layout.shape[:-1], self.dim)
        total = probs.sum(-1, keepdim=True)
        weight = self.value.weight.view(self.heads.count, -1, self.dim)
        bias = self.value.bias.view(self.heads.count, 1, -1)
        return mixed @ weight.mT + total * bias

    @property
    def _drop(self) -> float:
        return self.heads.dropout if self.training else 0.0

    def _values(self, stored: Tensor) -> Tensor:
        return self._split(self.value(self.value_norm(stored)))

    def _split(self, values: Tensor) -> Tensor:
        """Reshape `(..., m, heads * width)` to `(..., heads, m, width)`."""
        parts: Tensor = values.unflatten(-1, (self.heads.count, -1))
        return parts.transpose(-3, -2)

    def extra_repr(self) -> str:
        beta = "learnt" if isinstance(self.beta, nn.Parameter) else self.beta
        return f"dim={self.dim}, beta={beta}, {self.heads}, steps={self.steps}"


def _checked_beta(beta: float | Tensor, heads: int) -> float | Tensor:
    if not isinstance(beta, Tensor):
        return positive_number(beta, "beta")
    if beta.shape != (heads,):
        raise ValueError(f"beta must be a number or a tensor ({heads},), got {tuple(beta.shape)}")
    if has_values(beta) and not bool(((beta > 0) & (beta < math.inf)).all()):
        raise ValueError(f"beta must be finite and greater than 0, got {beta.tolist()}")
    return beta


def check_pattern_mask(mask: Tensor, state: Tensor, stored: Tensor) -> None:
    """Raise unless the mask is boolean, of patterns or of queries and patterns."""
    pairs = (*joint_batch(state, stored), state.shape[-2], stored.shape[-2])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = keep), got {got}")
    if mask.shape not in (stored.shape[:-1], pairs):
        raise ValueError(
            f"mask must be {tuple(stored.shape[:-1])}, of the patterns, or "
            f"{pairs}, got {tuple(mask.shape)}"
        )
