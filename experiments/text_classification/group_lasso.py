"""Group lasso: words whose whole vector is shrunk to zero are not in the vocabulary."""

from dataclasses import dataclass

import torch
from torch import nn

from experiments.text_classification.corpora import Corpus
from experiments.text_classification.selection import SelectiveTable, best_words, masked
from experiments.text_classification.tables import dense


@dataclass(frozen=True)
class GroupLasso:
    """Dense table with a penalty `l2` times the sum of the lengths of its rows.

    After each step of the optimiser a row moves towards zero by lr times `l2`, its proximal step;
    in the end the longest rows stay, one in `times`.

    Reference: Wen, Wu, Wang, Chen and Li, Learning structured sparsity in deep neural networks
    (2016).
    """

    l2: float = 0.1
    times: int = 15

    def make(self, corpus: Corpus, dim: int, generator: torch.Generator) -> nn.Module:
        return _Shrunk(dense(corpus, dim, generator), self)


class _Shrunk(SelectiveTable):
    def __init__(self, vectors: nn.Embedding, method: GroupLasso) -> None:
        super().__init__(vectors)
        self.method = method

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        rows = self.vectors.weight
        lengths = rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        rows.mul_((1 - lr * self.method.l2 / lengths).clamp(min=0))

    @torch.no_grad()
    def selected(self) -> tuple[nn.Module, int]:
        rows = self.vectors.weight
        return masked(rows, best_words(rows.norm(dim=1), self.method.times))
