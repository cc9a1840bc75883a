"""`AnchorEmbeddingBag`: pooled rows of an anchor table."""

from typing import Any

from torch import Tensor

from fewfold.embeddings.table.anchor_sums import Mode
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["AnchorEmbeddingBag"]


class AnchorEmbeddingBag(AnchorEmbedding):
    """An `nn.EmbeddingBag` over an anchor table: sums, means or maxima of rows.

    Arguments as in `AnchorEmbedding`, and `mode` and `include_last_offset` as in `nn.EmbeddingBag`.
    `save_anchors` writes the table without the mode: `load_anchors` returns an `AnchorEmbedding`,
    whose method `bag` takes the mode.

    Example:
        >>> import torch, fewfold as ff
        >>> bags = ff.AnchorEmbeddingBag(1000, 16, anchors=8, width=2)
        >>> bags(torch.tensor([5, 3, 7, 7]), torch.tensor([0, 2])).shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: Mode = "mean",
        include_last_offset: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, **options)
        self.mode: Mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return pooled vectors (bags, d) of ids (n,) with offsets, or of ids (bags, n)."""
        return self.bag(
            input, offsets, per_sample_weights, mode=self.mode,
            include_last_offset=self.include_last_offset,
        )  # fmt: skip
