"""Sparse code of a trained table by the vectors of the most frequent words."""

from dataclasses import dataclass

import torch
from torch import nn

from experiments.text_classification.corpora import PADDING, Corpus
from experiments.text_classification.selection import SelectiveTable
from experiments.text_classification.tables import dense
from fewfold.embeddings import AnchorEmbedding, sparse_code


@dataclass(frozen=True)
class SparseCode:
    """Dense table; in the end each vector is a sum of a few of those of frequent words.

    Reference: Chen, Mou, Xu, Li and Jin, Compressing neural language models by sparse word
    representations (2016).
    """

    anchors: int = 100
    width: int = 32

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        return _ToCode(dense(corpus, dim, generator), self)


class _ToCode(SelectiveTable):
    def __init__(self, vectors: nn.Embedding, method: SparseCode) -> None:
        super().__init__(vectors)
        self.method = method

    @torch.no_grad()
    def selected(self) -> tuple[nn.Module, int]:
        rows, method = self.vectors.weight, self.method
        table = AnchorEmbedding(
            *rows.shape, PADDING, anchors=method.anchors, width=method.width, signed=True
        )
        assert table.slots is not None  # it has a width
        table.anchors.copy_(rows[1 : 1 + method.anchors])
        weights, slots = sparse_code(rows, table.anchors, method.width, signed=True)
        table.transform.copy_(weights)
        table.slots.copy_(slots)
        return table, table.size()
