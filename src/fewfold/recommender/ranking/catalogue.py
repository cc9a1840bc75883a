"""Item vectors with a quantised copy, for exact top-k of single users at a quarter of the reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._native import dispatch
from fewfold.recommender.jagged import Jagged

__all__ = ["Catalogue"]

_LARGEST = 127  # of int8
_PAD = 32  # alignment of a row in bytes, the width of the kernel
_NUMBERS_AT_ONCE = 1 << 17  # whose intermediate results stay in the cache of a processor


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Item vectors with an int8 copy, for exact top-k without reading most of the vectors.

    For each vector v_i the copy stores integers c_i between -127 and 127, a step t_i, and the norm
    of the quantisation error. For any query q, by the Cauchy-Schwarz inequality,

        <q, v_i>  <=  t_i <q, c_i> + norm(q) norm(v_i - t_i c_i)  (+ a bound on rounding errors),

    so a scan of the int8 codes selects the few items that can be in the top k, and only their
    vectors are read: the result is exact. Columns are first scaled by powers of two to similar
    norms, and the query inversely, which leaves inner products unchanged.

    The copy takes ``items * (d + 12)`` bytes, a quarter of float32 vectors. It is built if the
    kernels are available and the vectors are float32 on the CPU; otherwise the catalogue holds only
    the vectors. It is built once: vectors that change later need a new catalogue.

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
    _quantised: "_Quantised | None" = field(init=False, repr=False)

    @classmethod
    def of_parts(cls, vectors: Tensor, parts: Mapping[str, Tensor]) -> "Catalogue":
        """Construct from vectors and the `parts` of a catalogue of the same ones, not validated."""
        found = object.__new__(cls)
        usable = len(parts) > 0 and dispatch.ready(vectors)
        copy = _Quantised.of_parts(vectors, **parts) if usable else None
        object.__setattr__(found, "vectors", vectors)
        object.__setattr__(found, "_quantised", copy)
        return found

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors of the copy, by name; none if there is no copy."""
        copy = self._quantised
        if copy is None:
            return {}
        return {name: getattr(copy, name) for name in ("code", "step", "slack", "balance", "reach")}

    def __post_init__(self) -> None:
        check_scores(self.vectors, "vectors")
        if self.vectors.dim() != 2:
            raise ValueError(f"vectors must be (items, d), got {tuple(self.vectors.shape)}")
        vectors = self.vectors.detach()
        # A sum needs no temporary tensor, and finite numbers rarely overflow it.
        total = float(vectors.sum(dtype=torch.float64))
        if not math.isfinite(total) and not bool(vectors.isfinite().all()):
            raise ValueError("vectors must be finite, got inf or nan; look at the model's training")
        quantised = (
            vectors.dtype == torch.float32 and vectors.numel() > 0 and dispatch.ready(vectors)
        )
        object.__setattr__(self, "vectors", vectors.contiguous() if quantised else vectors)
        object.__setattr__(self, "_quantised", _Quantised.of(self.vectors) if quantised else None)

    def best(
        self, queries: Tensor, k: int, excluded: Jagged, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """Return ids and scores, (n, k), for queries (n, d); None if the copy is inconclusive.

        Called by `top_k`, with k at most the number of items; `excluded` has a row per query.
        """
        if self._quantised is None or not dispatch.ready(queries) or queries.dtype != torch.float32:
            return None
        items, d = self.vectors.shape
        n = len(queries)
        if queries.shape != (n, d) or k > items or (allowed is not None and len(allowed) != items):
            raise ValueError(f"expected queries of {d} numbers, k and `allowed` for {items} items")
        queries, gone = queries.contiguous(), excluded.values.contiguous()
        ids, scores = torch.empty(n, k, dtype=torch.int64), torch.empty(n, k)
        conclusive = self._quantised.kernel.best(
            queries, n, k, gone, excluded.offsets, allowed, scores, ids, dispatch.threads()
        )
        return (ids, scores) if conclusive else None


@dataclass(frozen=True, eq=False)
class _Quantised:
    """The quantised copy, and the kernel that holds its address."""

    code: Tensor  # (items, d rounded up)
    step: Tensor  # (items,)
    slack: Tensor  # (items,) bound on the error for a query of norm 1
    balance: Tensor  # (d,) powers of two
    reach: Tensor  # (items,) upper bound of the norm
    kernel: Any

    @classmethod
    def of_parts(
        cls,
        vectors: Tensor,
        code: Tensor,
        step: Tensor,
        slack: Tensor,
        balance: Tensor,
        reach: Tensor,
    ) -> "_Quantised":
        items, d = vectors.shape
        kernel = dispatch.kernel("Catalogue")(
            vectors, items, d, code, code.shape[1], step, slack, balance, reach
        )
        return cls(code, step, slack, balance, reach, kernel)

    @classmethod
    def of(cls, vectors: Tensor) -> "_Quantised":
        items, d = vectors.shape
        width = -(-d // _PAD) * _PAD
        code = dispatch.table(items, width, dtype=torch.int8)
        code[:, d:] = 0
        step, norm, error = torch.empty(items), *torch.empty(2, items, dtype=torch.float64)
        count = max(1, _NUMBERS_AT_ONCE // max(d, 1))
        blocks = [slice(start, start + count) for start in range(0, items, count)]
        squares = torch.zeros(d, dtype=torch.float64)
        for part in blocks:
            squares += torch.linalg.vector_norm(vectors[part], dim=0, dtype=torch.float64).square()
        size = (squares / items).sqrt()
        power = torch.where(size > 0, -size.log2(), 0).round().clamp(-60, 60)
        balance = power.exp2().float()
        for part in blocks:
            x = vectors[part] * balance
            step[part] = x.abs().amax(1) / _LARGEST
            by = step[part].unsqueeze(1)
            whole = torch.where(by > 0, x / by, 0).round().clamp(-_LARGEST, _LARGEST)
            code[part, :d] = whole.to(torch.int8)
            norm[part] = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
            rest = x.double() - whole.double() * by.double()
            error[part] = torch.linalg.vector_norm(rest, dim=1)
        reach = norm + error
        # Quantisation error of the query, rounding of both inner products, underflow.
        largest = min(32767, (2**31 - 1) // (_LARGEST * d))
        lost = d**0.5 / (2 * largest) + (d + 16) * 2**-23
        slack = ((error + lost * reach + 1e-9 * reach.max()) * (1 + 1e-6)).float()
        return cls.of_parts(vectors, code, step, slack, balance, (reach * (1 + 1e-6)).float())
