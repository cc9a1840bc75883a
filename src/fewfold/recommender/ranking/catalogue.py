"""Item vectors prepared once, so that the exact best for one user reads a quarter of them."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._native import dispatch

__all__ = ["Catalogue"]

_LARGEST = 127  # of a byte
_PAD = 32  # bytes the kernel takes at once
_ITEMS_AT_ONCE = 16384


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Item vectors with a copy in bytes, to answer one user or a few without reading them all.

    Of vector v_i the copy keeps whole numbers c_i between -127 and 127 and a step t_i, and the
    length of what it leaves out. For any query q, by the inequality of Cauchy and Schwarz,

        <q, v_i>  <=  t_i <q, c_i> + norm(q) norm(v_i - t_i c_i)  (+ room for every rounding),

    so one look at the bytes says which few items can be among the best k, and only for those the
    numbers themselves are read: the answer is exact. Columns are first scaled by powers of two to
    about the same size, the query the other way, which changes no inner product.

    The copy takes ``items * (d + 8)`` bytes, a quarter of float32 vectors. It is made where the
    kernels are present and the vectors are float32 in the processor's memory; elsewhere a catalogue
    is its vectors. It is made once: vectors that change later need a new catalogue.

    Attributes:
        vectors: (items, d), finite.

    Example:
        >>> import torch
        >>> from fewfold.recommender import Catalogue, DotProduct, top_k
        >>> catalogue = Catalogue(torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]]))
        >>> top_k(DotProduct(torch.tensor([[1.0, 0.1]]), catalogue), 2).ids
        tensor([[0, 1]])
    """

    vectors: Tensor
    _bytes: "_Bytes | None" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_scores(self.vectors, "vectors")
        if self.vectors.dim() != 2:
            raise ValueError(f"vectors must be (items, d), got {tuple(self.vectors.shape)}")
        vectors = self.vectors.detach()
        # A sum is one pass that keeps nothing; finite numbers rarely add up to more.
        total = float(vectors.sum(dtype=torch.float64))
        if not math.isfinite(total) and not bool(vectors.isfinite().all()):
            raise ValueError("vectors must be finite, got inf or nan; look at the model's training")
        kept = vectors.dtype == torch.float32 and vectors.numel() > 0 and dispatch.ready(vectors)
        object.__setattr__(self, "vectors", vectors.contiguous() if kept else vectors)
        object.__setattr__(self, "_bytes", _Bytes.of(self.vectors) if kept else None)

    def best(
        self, query: Tensor, k: int, excluded: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """Ids and scores, (k,), of one query (d,); None where the copy cannot tell.

        `top_k` asks. There are at least k items; `excluded` is int64 and `allowed` boolean.
        """
        if self._bytes is None or not dispatch.ready(query) or query.dtype != torch.float32:
            return None
        items, d = self.vectors.shape
        if query.shape != (d,) or k > items or (allowed is not None and len(allowed) != items):
            raise ValueError(f"expected a query of {d} numbers, k and `allowed` for {items} items")
        query, excluded = query.contiguous(), excluded.contiguous()
        ids, scores = torch.empty(k, dtype=torch.int64), torch.empty(k)
        told = self._bytes.kernel.best(
            query, k, excluded, len(excluded), allowed, scores, ids, dispatch.threads()
        )
        return (ids, scores) if told else None


@dataclass(frozen=True, eq=False)
class _Bytes:
    """The copy, and the kernel that reads it by address, so that they live together."""

    code: Tensor  # (items, d rounded up)
    step: Tensor  # (items,)
    slack: Tensor  # (items,) how much a unit query may gain over the bytes
    balance: Tensor  # (d,) powers of two
    kernel: Any

    @classmethod
    def of(cls, vectors: Tensor) -> "_Bytes":
        items, d = vectors.shape
        width = -(-d // _PAD) * _PAD
        code = dispatch.table(items, width, dtype=torch.int8)
        code[:, d:] = 0
        step, norm, error = torch.empty(items), *torch.empty(2, items, dtype=torch.float64)
        size = torch.linalg.vector_norm(vectors, dim=0, dtype=torch.float64) / items**0.5
        power = torch.where(size > 0, -size.log2(), 0).round().clamp(-60, 60)
        balance = power.exp2().float()
        for start in range(0, items, _ITEMS_AT_ONCE):
            part = slice(start, start + _ITEMS_AT_ONCE)
            x = vectors[part] * balance
            step[part] = x.abs().amax(1) / _LARGEST
            by = step[part].unsqueeze(1)
            whole = torch.where(by > 0, x / by, 0).round().clamp(-_LARGEST, _LARGEST)
            code[part, :d] = whole.to(torch.int8)
            norm[part] = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
            rest = x.double() - whole.double() * by.double()
            error[part] = torch.linalg.vector_norm(rest, dim=1)
        reach = norm + error
        # What the query loses in whole numbers, the roundings of both inner products, underflow.
        largest = min(32767, (2**31 - 1) // (_LARGEST * d))
        lost = d**0.5 / (2 * largest) + (d + 16) * 2**-23
        slack = ((error + lost * reach + 1e-9 * reach.max()) * (1 + 1e-6)).float()
        kernel = dispatch.kernel("Catalogue")(
            vectors, items, d, code, width, step, slack, balance, float(reach.max())
        )
        return cls(code, step, slack, balance, kernel)
