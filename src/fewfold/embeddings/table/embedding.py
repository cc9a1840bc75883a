"""`AnchorEmbedding`: an embedding table whose rows are sparse combinations of anchors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fewfold.embeddings.coding.sparse_coding import learn_dictionary
from fewfold.embeddings.table.anchor_sums import Mode, mixed, mixed_bags, pool_vectors
from fewfold.embeddings.table.sparse_rows import small_integer
from fewfold.embeddings.table.storage import AnchorStorage
from fewfold.embeddings.table.tied_logits import dense_scores, tied_scores

__all__ = ["AnchorEmbedding"]


class AnchorEmbedding(AnchorStorage):
    """`nn.Embedding` whose row i is a sparse combination of K anchors, sum_k T_ik A_k with T >= 0.

    The parameters are the anchors A (K, d) and the transform T, of which only the non-zeros need to
    be stored: tens of times less than the table. `proximal` wraps an optimiser so that T becomes
    sparse. T is stored in one of two ways:

    - full (`width=None`): `transform` is T itself, (rows, K). For few anchors or few rows.
    - fixed width (`width=s`): `transform` is (rows, s), and `slots` (rows, s) holds the indices of
      the anchors in the smallest integer dtype. The cost of a lookup and of its gradient is
      proportional to s times the number of ids, whatever the number of rows. `Regrow` exchanges
      the anchors of a row.

    While a `proximal` optimiser with sparse gradients is in use, read T by `rows()`, not from
    `transform`: the penalty on rows without a gradient is deferred until the table reads them, and
    a bare parameter cannot detect reads. `optimizer.apply_deferred()` applies it to all rows. The
    same holds for another table that shares this `transform`: call `apply_deferred` before reading
    it.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length d of a vector.
        padding_idx: a row that is initialised to zero and gets no gradient.
        max_norm: rows with a larger norm are rescaled to this norm in place when looked up.
        norm_type: order p of that norm.
        scale_grad_by_freq: divide the gradient of a row by its frequency in the batch.
        sparse: whether the gradient of `transform` is sparse, as `fewfold.optim` takes it.
        anchors: number K of anchors.
        width: number s of stored entries per row, or None for all K.
        signed: whether entries of T may be negative.
        generator: for the initial values.
        device, dtype: of the parameters.

    Example:
        >>> import torch, fewfold as ff
        >>> table = ff.AnchorEmbedding(10_000, 64, anchors=32, width=4)
        >>> table(torch.tensor([[3, 14, 15], [9, 2, 6]])).shape
        torch.Size([2, 3, 64])
        >>> table.size(), 10_000 * 64
        (42048, 640000)

    Reference: Liang, Zaheer, Wang, Ahmed, "Anchor & Transform: learning sparse embeddings for large
    vocabularies", 2021.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors `(*shape, d)` of ids of any shape."""
        return self.vectors(input)

    def vectors(self, input: Tensor) -> Tensor:
        """Return the vectors `(*shape, d)` of ids, also in `AnchorEmbeddingBag`."""
        ids = _int64(input)
        self._check_parallel()
        self.attached.before_read(ids)
        self._renorm(ids)
        vectors = self._mix(ids)
        if self.padding_idx is not None:
            pad = (ids == self.padding_idx).unsqueeze(-1)
            vectors = torch.where(pad, vectors.detach(), vectors)
        if self.scale_grad_by_freq:
            _, place, counts = ids.unique(return_inverse=True, return_counts=True)
            value = vectors.detach()  # same values with a rescaled gradient
            vectors = value + (vectors - value) / counts[place].unsqueeze(-1)
        self.attached.record_vectors(ids, vectors)
        return vectors

    def _check_parallel(self) -> None:
        """Raise inside a `DistributedDataParallel` that cannot reduce sparse gradients."""
        if not self.sparse or torch.compiler.is_compiling():
            return
        running = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if running is None or not torch.is_grad_enabled() or running.parameters_to_ignore:
            return
        if not getattr(running, "knows_sparse_tables", False):
            raise TypeError(
                "DistributedDataParallel does not know that the gradient of an anchor table is "
                "sparse; write fewfold.embeddings.DataParallel(model), or sparse=False"
            )

    def unscaled(self, ids: Tensor) -> Tensor:
        """Return vectors without applying `max_norm` and without recording their gradients."""
        self.attached.before_read(ids)
        return self._mix(ids)

    def _mix(self, ids: Tensor) -> Tensor:
        if self.slots is None:
            weights = F.embedding(ids, self.transform, sparse=self.sparse)
            mix: Tensor = weights[..., : self._active] @ self.anchors[: self._active]
            return mix
        flat = mixed(self.anchors, self.transform, self.slots, ids.flatten(), sparse=self.sparse)
        return flat.view(*ids.shape, self.embedding_dim)

    def bag(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
        *,
        mode: Mode = "sum",
        include_last_offset: bool = False,
    ) -> Tensor:
        """Return sums, means or maxima of vectors, (bags, d); arguments as in `F.embedding_bag`."""
        needs_vectors = (
            input.dim() != 1 or per_sample_weights is not None or mode == "max"
            or self.padding_idx is not None or self.max_norm is not None
            or self.scale_grad_by_freq or self.attached.watching
        )  # fmt: skip
        if needs_vectors or offsets is None:
            pad = None if self.padding_idx is None else input == self.padding_idx
            return pool_vectors(
                self.vectors(input), offsets, per_sample_weights, pad, mode=mode,
                include_last_offset=include_last_offset,
            )  # fmt: skip
        ids, ends = _int64(input), offsets.to(torch.int64)
        self._check_parallel()
        self.attached.before_read(ids)
        if (
            self.slots is None
        ):  # pool the weights first: pooling and the product with the anchors commute
            weights = F.embedding_bag(
                ids, self.transform, ends, mode=mode, sparse=self.sparse,
                include_last_offset=include_last_offset,
            )  # fmt: skip
            return weights[:, : self._active] @ self.anchors[: self._active]
        if not include_last_offset:
            ends = F.pad(ends, (0, 1), value=len(ids))
        by = torch.ones(len(ends) - 1, dtype=self.anchors.dtype, device=ids.device)
        if mode == "mean":
            by = by / ends.diff().clamp(min=1)
        return mixed_bags(
            self.anchors, self.transform, self.slots, ids, ends, by, sparse=self.sparse
        )

    def logits(self, hidden: Tensor, bias: Tensor | None = None, threshold: float = 0.0) -> Tensor:
        """Return the scores T (A h) + bias of all rows: the table as a tied output layer.

        Costs K d + rows s multiplications per vector with a fixed width s, and K d + rows K in full
        storage, instead of rows d. `narrow()` after training converts without loss.

        Args:
            hidden: (..., d).
            bias: (rows,).
            threshold: gradients of scores of at most this size are set to zero. After a softmax
                that leaves a gradient in few rows (a sparse one if `sparse`).

        Returns:
            (..., rows).
        """
        if threshold < 0:
            raise ValueError(f"threshold must be at least 0, got {threshold}")
        if hidden.dim() == 0 or hidden.shape[-1] != self.embedding_dim:
            raise ValueError(
                f"hidden must be (..., {self.embedding_dim}), vectors as long as those of the "
                f"table, got {tuple(hidden.shape)}"
            )
        self._check_parallel()
        self.attached.before_read(None)
        flat = hidden.reshape(-1, self.embedding_dim)
        projected = flat @ self.anchors[: self._active].t()
        if self.slots is None:
            whole = self._active == len(self.anchors)
            transform = self.transform if whole else self._active_transform()
            scores = dense_scores(projected, transform, threshold=threshold, sparse=self.sparse)
        else:
            scores = tied_scores(
                projected, self.transform, self.slots, threshold=threshold, sparse=self.sparse
            )
        self.attached.record_scores(flat, scores, threshold)
        if bias is not None:
            scores = scores + bias
        return scores.view(*hidden.shape[:-1], self.num_embeddings)

    @property
    def weight(self) -> Tensor:
        """Materialised table (rows, d), differentiable, for code that reads `nn.Embedding.weight`.

        It takes the memory of a dense table.
        """
        self.attached.before_read(None)
        if self.slots is None:
            return self._active_transform() @ self.anchors[: self._active]
        return self._mix(torch.arange(self.num_embeddings, device=self.anchors.device))

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        anchors: int,
        width: int = 8,
        signed: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> "AnchorEmbedding":
        """Approximate a dense table (rows, d) by `width` anchors per row; see `learn_dictionary`.

        Args:
            embeddings: (rows, d).
            freeze: whether the parameters get no gradient.
            padding_idx, width, signed, generator: as in the constructor.
            anchors: number K of anchors.
            options: further options of the constructor.
        """
        if embeddings.dim() != 2:
            raise ValueError(f"embeddings must be (rows, d), got shape {tuple(embeddings.shape)}")
        coding = learn_dictionary(
            embeddings.detach(), anchors, width, signed=signed, generator=generator
        )
        rows, d = embeddings.shape
        made = cls(
            rows, d, padding_idx=padding_idx, anchors=anchors, width=width, signed=signed,
            dtype=embeddings.dtype, device=embeddings.device, **options,
        )  # fmt: skip
        made.slots = coding.slots.to(small_integer(anchors))
        with torch.no_grad():
            made.anchors.copy_(coding.anchors)
            made.transform.copy_(coding.weights)
            if made.padding_idx is not None:
                made.transform[made.padding_idx] = 0
        return made.requires_grad_(not freeze)

    @torch.no_grad()
    def _renorm(self, ids: Tensor) -> None:
        """Rescale the rows of `ids` to `max_norm` in place where their norm is larger."""
        if self.max_norm is None:
            return
        some = ids.unique()
        norms = self._mix(some).norm(self.norm_type, 1)
        long = norms > self.max_norm
        by = self.max_norm / (norms[long] + 1e-7)
        used = self.transform.shape[1] if self.slots is not None else self._active
        self.transform[some[long], :used] *= by.unsqueeze(1)


def _int64(ids: Tensor) -> Tensor:
    """Return ids as int64; raise TypeError unless their dtype is an integer one."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"ids must be whole numbers, got {ids.dtype}; write ids.long()")
    return ids.to(torch.int64)
