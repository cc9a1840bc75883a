"""`AnchorMixture`: rows that are sums of softmax mixtures over several sets of anchors."""

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

    so that the cost of a lookup is proportional to the number of stored entries.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length d of a vector.
        padding_idx: a row that is zero and gets no gradient.
        mixtures: number of sets of anchors.
        anchors: number of anchors in each set.
        width: stored entries per row and set; None for all.
        signed: whether logits may be negative, below those of anchors that are not stored.
        sparse: whether the gradients of the entries are sparse.
        generator: for the initial values.

    Example:
        >>> import torch, fewfold as ff
        >>> words = AnchorMixture(1000, 16, mixtures=2, anchors=8)
        >>> words(torch.tensor([[3, 1], [4, 1]])).shape
        torch.Size([2, 2, 16])
        >>> optimizer = ff.proximal(torch.optim.Adam(words.parameters()), words.tables, l1=1e-4)

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix; Yang, Dai,
    Salakhutdinov and Cohen, Breaking the softmax bottleneck (2018).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mixtures: int,
        anchors: int,
        width: int | None = None,
        signed: bool = False,
        sparse: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.parts = nn.ModuleList(
            AnchorEmbedding(
                num_embeddings, embedding_dim, padding_idx, anchors=anchors, width=width,
                signed=signed, sparse=sparse, generator=generator,
            )
            for _ in range(whole_number(mixtures, "mixtures"))
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


def _softmax_mixture(table: AnchorEmbedding, ids: Tensor) -> Tensor:
    """Return softmax(T[ids]) A over the anchors in use, from the stored entries."""
    table.attached.before_read(ids)
    logits = F.embedding(ids, table.transform, sparse=table.sparse)[..., : _stored(table)]
    anchors = table.anchors[: table.active]
    largest = logits.amax(-1, keepdim=True).clamp(min=0).detach()  # against overflow
    rest = (-largest).exp()  # weight of an anchor that is not stored
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
