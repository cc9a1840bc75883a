"""Several sets of anchors, of which each object has a soft mix."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["AnchorMixture"]


class AnchorMixture(nn.Module):
    r"""An `nn.Embedding` whose rows are sums of soft mixes, :math:`\sum_m softmax(T_m) A_m`.

    Sums of plain mixes, :math:`\sum_m T_m A_m`, say no more than one with all the anchors; with a
    softmax over the anchors of each set they do. An entry of T that is zero, or not stored, is a
    logit of zero: the weights are dense, what is kept is sparse. With
    :math:`Z = K + \sum_k (e^{t_k} - 1)`, a mix is

    .. math:: softmax(t) A = \frac{1}{Z} \Big(\sum_k A_k + \sum_k (e^{t_k} - 1) A_k\Big)

    so that a lookup costs the entries that are stored.

    Args:
        num_embeddings: rows.
        embedding_dim: d.
        padding_idx: a row that is zero and gets no gradient.
        mixtures: how many sets.
        anchors: of each set.
        width: entries of each row in each set; None: all.
        signed: whether entries may be negative, which is to avoid an anchor.
        sparse: whether gradients of the entries are sparse.
        generator: of the first values.

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
        """The sets, as `proximal` takes them."""
        return [part for part in self.parts if isinstance(part, AnchorEmbedding)]

    def forward(self, input: Tensor) -> Tensor:
        """Ids of any shape to their vectors, (*shape, d)."""
        ids = input.to(torch.int64)
        vectors = torch.stack([_soft(table, ids) for table in self.tables]).sum(0)
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0.0)

    @property
    def weight(self) -> Tensor:
        """The table itself, (rows, d), with a gradient."""
        rows = torch.arange(self.num_embeddings, device=self.tables[0].anchors.device)
        return self(rows)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Scores of all rows, (..., rows)."""
        return F.linear(hidden, self.weight, bias)

    def nonzeros(self) -> int:
        """Non-zeros of all T."""
        return sum(table.nonzeros() for table in self.tables)

    def size(self) -> int:
        """Numbers to be kept: all anchors, and the non-zeros."""
        return sum(table.size() for table in self.tables)

    def extra_repr(self) -> str:
        """What a person wants to see."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mixtures={len(self.parts)}"


def _soft(table: AnchorEmbedding, ids: Tensor) -> Tensor:
    """softmax(T[ids]) A over the anchors in use, from the entries that are stored."""
    table.attached.before_read(ids)
    few = F.embedding(ids, table.transform, sparse=table.sparse)[..., : _stored(table)]
    anchors = table.anchors[: table.active]
    least = few.amax(-1, keepdim=True).clamp(min=0).detach()  # so that nothing overflows
    rest = (-least).exp()
    above = (few - least).exp() - rest
    if table.slots is None:
        mix = above @ anchors
    else:
        mix = (above.unsqueeze(-2) @ anchors[table.slots[ids].long()]).squeeze(-2)
    total = above.sum(-1, keepdim=True) + len(anchors) * rest
    return (mix + rest * anchors.sum(0)) / total


def _stored(table: AnchorEmbedding) -> int:
    return table.active if table.slots is None else table.transform.shape[1]
