"""`ProductKeyMemory`: a memory of millions of slots, of which a vector reads a few."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._random import normal_
from fewfold.attention.product_keys import product_topk
from fewfold.attention.slot_sums import slot_sums
from fewfold.maps.entropies import Tsallis
from fewfold.maps.omega import Omega
from fewfold.structured.omega_module import OmegaModule

__all__ = ["KeyHeads", "MemorySlots", "ProductKeyMemory"]


@dataclass(frozen=True)
class KeyHeads:
    """Heads of a `ProductKeyMemory`, each with keys of its own.

    Args:
        count: number of heads.
        size: size of the query of each head, an even number; default: `dim / count`.
        normalize: whether the query of each head is normalised by an `nn.LayerNorm`.
    """

    count: int = 4
    size: int | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        whole_number(self.count, "count")
        if self.size is not None and whole_number(self.size, "size", least=2) % 2:
            raise ValueError(f"size must be even, as queries have two halves, got {self.size}")

    def width(self, dim: int) -> int:
        """Size of each query in a memory for vectors of size `dim`."""
        if self.size is not None:
            return self.size
        if dim % (2 * self.count):
            raise ValueError(
                f"dim={dim} cannot be divided among {self.count} heads of two halves; write "
                f"KeyHeads({self.count}, size=...) with an even size"
            )
        return dim // self.count


@dataclass(frozen=True, eq=False)
class MemorySlots:
    """The slots that vectors read.

    Attributes:
        weights: `(..., heads, k)`; differentiable.
        slots: `(..., heads, k)` int64, by descending score.
        certified: `(..., heads)` bool, whether the weights are those of the map over all slots.
    """

    weights: Tensor
    slots: Tensor
    certified: Tensor


class ProductKeyMemory(nn.Module):
    """A layer that reads the values of a few out of N slots: attention over learned keys.

    Slot (i, j) has the key `(a_i, b_j)`, and a query `(u, v)` gives it the score
    `<u, a_i> + <v, b_j>`. So 2 sqrt(N) scores suffice to find the k largest of all N exactly (see
    `product_topk`), `omega` maps them to weights, and the output is the sum over heads of the
    weighted values. With a sparse map the weights equal those over all N slots wherever the k-th
    candidate has weight 0, as `lookup` certifies, and only values in the support are read.

    The gradient of `values`, an `nn.EmbeddingBag`, is sparse and has only the rows that were read:
    train it with an optimiser of `fewfold.optim`, or write `memory.values.sparse = False`.
    Under `torch.compile` and transforms of `torch.func` the gradient is dense.

    Args:
        dim: size of the vectors and of the values.
        slots: N, the square of a whole number.
        omega: regulariser of the map from scores to weights; `Shannon()` is softmax of the k
            largest scores, as in the paper.
        k: number of candidates of each head.
        heads: number of heads, or `KeyHeads(count, size, normalize)`.
        generator: for the initial values.
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> memory = ff.ProductKeyMemory(16, 1024**2, k=8, heads=2)
        >>> memory(torch.randn(5, 3, 16)).shape
        torch.Size([5, 3, 16])
        >>> memory.lookup(torch.randn(5, 3, 16)).slots.shape
        torch.Size([5, 3, 2, 8])

    Reference: Lample, Sablayrolles, Ranzato, Denoyer and Jegou, "Large memory layers with product
    keys", 2019.
    """

    def __init__(
        self,
        dim: int,
        slots: int,
        omega: Omega = Tsallis(1.5),  # noqa: B008  (an immutable value)
        *,
        k: int = 32,
        heads: int | KeyHeads = 4,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.slots = whole_number(dim, "dim"), whole_number(slots, "slots")
        self.side = math.isqrt(slots)
        if self.side**2 != slots:
            raise ValueError(
                f"slots must be the square of a whole number, got {slots}; write {self.side}**2 or "
                f"{self.side + 1}**2"
            )
        self.k = whole_number(k, "k")
        if k > slots:
            raise ValueError(f"k must be at most slots={slots}, got {k}")
        self.omega = OmegaModule(omega)
        if omega.event_dim != 1:
            raise ValueError(
                f"omega must map the scores of one query, got {omega}, which maps a matrix of "
                "scores"
            )
        self.heads = heads if isinstance(heads, KeyHeads) else KeyHeads(heads)
        width = self.heads.width(dim)
        self.query = nn.Linear(dim, self.heads.count * width, device=device, dtype=dtype)
        self.query_norm = (
            nn.LayerNorm(width, device=device, dtype=dtype)
            if self.heads.normalize
            else nn.Identity()
        )
        shape = (2, self.heads.count, self.side, width // 2)
        self.keys = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.values = nn.EmbeddingBag(
            slots, dim, mode="sum", sparse=True, include_last_offset=True,
            _weight=_table(slots, dim, device, dtype),
        )  # fmt: skip
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new parameters.

        Scores of vectors of unit variance have a variance of log(N) / 2. The largest of N random
        scores are the closer to each other the more there are; this keeps their distances, and so
        the number of slots in the support, nearly independent of N.
        """
        if self.keys.is_meta:
            return
        with torch.no_grad():
            normal_(self.query.weight, std=self.dim**-0.5, generator=generator)
            self.query.bias.zero_()
            each = math.log(self.slots) / 2 / (2 * self.keys.shape[-1])
            normal_(self.keys, std=each**0.5, generator=generator)
            normal_(self.values.weight, std=self.dim**-0.5, generator=generator)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return `(..., dim)` for vectors `(..., dim)`."""
        flat = self._flat(vectors)
        weights, slots = (one.flatten(1) for one in self._candidates(flat, self.k))
        table = self.values.weight
        found = slot_sums(weights.to(table.dtype), slots, table, sparse=self.values.sparse)
        return found.to(vectors.dtype).view(vectors.shape)

    def lookup(self, vectors: Tensor) -> MemorySlots:
        """Return the slots that vectors `(..., dim)` read, with weights and certificates.

        The map over the k largest scores equals that over all N if and only if the map over the
        k + 1 largest gives the last of them weight 0, since all others have lower scores.
        """
        flat = self._flat(vectors)
        shape = (*vectors.shape[:-1], self.heads.count)
        weights, slots = self._candidates(flat, self.k)
        certified = torch.ones_like(slots[..., 0], dtype=torch.bool)
        if self.k < self.slots:
            with torch.no_grad():
                certified = self._candidates(flat, self.k + 1)[0][..., -1] == 0
        return MemorySlots(
            weights.reshape(*shape, -1), slots.reshape(*shape, -1), certified.view(shape)
        )

    def scores(self, vectors: Tensor) -> Tensor:
        """Return the scores of all slots, `(..., heads, N)`: large, to compare with."""
        first, second = self._side_scores(self._flat(vectors))
        every = (first.unsqueeze(-1) + second.unsqueeze(-2)).transpose(0, 1)
        return every.reshape(*vectors.shape[:-1], self.heads.count, self.slots)

    def _flat(self, vectors: Tensor) -> Tensor:
        """Validate vectors and flatten their leading dimensions."""
        if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
            got = vectors.dtype if isinstance(vectors, Tensor) else type(vectors).__name__
            raise TypeError(f"vectors must be a floating-point tensor, got {got}")
        if vectors.dim() == 0 or vectors.shape[-1] != self.dim:
            raise ValueError(f"vectors must be (..., {self.dim}), got {tuple(vectors.shape)}")
        return vectors.reshape(-1, self.dim)

    def _side_scores(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of both halves of the queries, each `(heads, m, side)`."""
        query = self.query_norm(self.query(flat).unflatten(-1, (self.heads.count, -1)))
        halves = query.unflatten(-1, (2, -1)).permute(2, 1, 0, 3)  # (2, heads, m, half)
        one, two = (halves @ self.keys.mT).unbind()
        return one, two

    def _candidates(self, flat: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Weights and slots of the k largest scores, each `(m, heads, k)`."""
        found = product_topk(*self._side_scores(flat), k)
        scores, slots = found.scores.transpose(0, 1), found.slots.transpose(0, 1)
        return self.omega.value.for_size(k).argmax(scores), slots

    def extra_repr(self) -> str:
        return f"dim={self.dim}, slots={self.slots}, k={self.k}, {self.heads}"


def _table(
    rows: int, size: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> Tensor:
    """An uninitialised table; on the CPU in large pages, as its rows are read in random order."""
    made = torch.empty(0, device=device, dtype=dtype)
    if made.is_cpu:
        return dispatch.table(rows, size, dtype=made.dtype)
    return made.new_empty(rows, size)
