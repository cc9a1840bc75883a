"""`AnchorMixture`: rows that are sums of softmax mixtures over several sets of anchors."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["AnchorMixture"]


class AnchorMixture(nn.Module):
    r"""An `nn.Embedding` with rows :math:`\sum_m softmax(T_m) A_m` over several sets of anchors.

    Without the softmax, :math:`\sum_m T_m A_m` would be no more expressive than one table with all
    anchors. An entry of T that is zero, or not stored, is a logit of zero: the weights are dense,
    the stored logits are sparse. With :math:`Z = K + \sum_k (e^{t_k} - 1)`, one mixture is

    .. math:: softmax(t) A = \frac{1}{Z} \Big(\sum_k A_k + \sum_k (e^{t_k} - 1) A_k\Big)

    so that the cost of a lookup is proportional to the number of stored entries. The sets may have
    different sizes and be initialised in different ways: ``initialise_anchors(words.tables[0],
    Frequent(counts))``.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length d of a vector.
        padding_idx: a row that is zero and gets no gradient.
        mixtures: number of sets of anchors; may be omitted if `anchors` is a sequence.
        anchors: number of anchors in each set, or a sequence with the number of every set.
        width: stored entries per row and set, all in a set with fewer anchors; None for all.
        signed: whether logits may be negative, below those of anchors that are not stored.
        sparse: whether the gradients of the entries are sparse.
        generator: for the initial values.

    Example:
        >>> import torch, fewfold as ff
        >>> words = AnchorMixture(1000, 16, mixtures=2, anchors=8)
        >>> words(torch.tensor([[3, 1], [4, 1]])).shape
        torch.Size([2, 2, 16])
        >>> optimizer = ff.proximal(torch.optim.Adam(words.parameters()), words.tables, l1=1e-4)
        >>> AnchorMixture(1000, 16, anchors=[3, 5])
        AnchorMixture(
          1000, 16, mixtures=2
          (parts): ModuleList(
            (0): AnchorEmbedding(1000, 16, anchors=3)
            (1): AnchorEmbedding(1000, 16, anchors=5)
          )
        )

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix; Yang, Dai,
    Salakhutdinov and Cohen, Breaking the softmax bottleneck (2018).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mixtures: int | None = None,
        anchors: int | Sequence[int],
        width: int | None = None,
        signed: bool = False,
        sparse: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        sizes = _sizes(anchors, mixtures)
        width = None if width is None else whole_number(width, "width")
        self.parts = nn.ModuleList(
            AnchorEmbedding(
                num_embeddings, embedding_dim, padding_idx, anchors=size, generator=generator,
                width=width if width is None or size == max(sizes) else min(width, size),
                signed=signed, sparse=sparse,
            )
            for size in sizes
        )  # fmt: skip
        self.padding_idx: int | None = self.tables[0].padding_idx

    @property
    def tables(self) -> list[AnchorEmbedding]:
        """One `AnchorEmbedding` per set, as `proximal` takes them."""
        return [part for part in self.parts if isinstance(part, AnchorEmbedding)]

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors `(*shape, d)` of ids of any shape."""
        ids = input.to(torch.int64)
        vectors = torch.stack([_softmax_mixture(table, ids) for table in self.tables]).sum(0)
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0.0)

    @property
    def weight(self) -> Tensor:
        """Materialised table (rows, d), differentiable."""
        rows = torch.arange(self.num_embeddings, device=self.tables[0].anchors.device)
        return self(rows)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the scores of all rows, (..., rows)."""
        return F.linear(hidden, self.weight, bias)

    def nonzeros(self) -> int:
        """Return the number of non-zeros of all transforms."""
        return sum(table.nonzeros() for table in self.tables)

    def size(self) -> int:
        """Return the number of parameters to store: all anchors and all non-zeros."""
        return sum(table.size() for table in self.tables)

    def extra_repr(self) -> str:
        """Return the options shown by `print`."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mixtures={len(self.parts)}"


def _sizes(anchors: int | Sequence[int], mixtures: int | None) -> list[int]:
    """Return the number of anchors of every set."""
    if not isinstance(anchors, Sequence):
        if mixtures is None:
            raise ValueError(
                "mixtures must be given if anchors is one number; write mixtures=2, or the number "
                "of anchors of every set as in anchors=[3, 5]"
            )
        return [whole_number(anchors, "anchors")] * whole_number(mixtures, "mixtures")
    sizes = [whole_number(size, f"anchors[{place}]") for place, size in enumerate(anchors)]
    if not sizes or mixtures not in (None, len(sizes)):
        raise ValueError(
            f"anchors must have one number for each of the mixtures={mixtures} sets, got "
            f"{list(anchors)}"
        )
    return sizes


def _softmax_mixture(table: AnchorEmbedding, ids: Tensor) -> Tensor:
    """Return softmax(T[ids]) A over the anchors in use, from the stored entries."""
    table.attached.before_read(ids)
    logits = F.embedding(ids, table.transform, sparse=table.sparse)[..., : _stored(table)]
    anchors = table.anchors[: table.active]
    largest = logits.amax(-1, keepdim=True).detach()  # against overflow
    if logits.shape[-1] < len(anchors):
        largest = largest.clamp(min=0)
        rest = (-largest).exp()  # weight of an anchor that is not stored
    else:
        rest = torch.zeros_like(largest)
    above = (logits - largest).exp() - rest
    if table.slots is None:
        mix = above @ anchors
    else:
        mix = (above.unsqueeze(-2) @ anchors[table.slots[ids].long()]).squeeze(-2)
    total = above.sum(-1, keepdim=True) + len(anchors) * rest
    return (mix + rest * anchors.sum(0)) / total


def _stored(table: AnchorEmbedding) -> int:
    """Number of stored entries per row."""
    return table.active if table.slots is None else table.transform.shape[1]
