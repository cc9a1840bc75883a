"""Training of anchor tables of several columns to predict a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold.embeddings import AnchorEmbedding, proximal

__all__ = ["AnchorTraining", "Trained"]

_BATCH = 256
_LEARNING_RATE = 0.02
_HIDDEN = 64


@dataclass(frozen=True)
class Trained:
    """What was learned about one column.

    Attributes:
        codes: (categories + 1, anchors) scipy sparse matrix, how categories combine the anchors;
            row 0, of unknown categories, is the mean over the training rows.
        anchors: (anchors, dim) the anchors.
    """

    codes: Any
    anchors: np.ndarray


@dataclass(frozen=True)
class AnchorTraining:
    """Settings of the training; see `AnchorEncoder`."""

    dim: int
    anchors: int
    nonzeros: int
    l2: float
    epochs: int

    def run(
        self, numbers: np.ndarray, counts: Sequence[int], target: Tensor, generator: torch.Generator
    ) -> list[Trained]:
        """Train a table for each column, and a network from their concatenated vectors.

        Args:
            numbers: (rows, columns) category numbers from 1.
            counts: number of categories of each column.
            target: (rows,) int64 classes or float32 numbers.
            generator: for the initial values and the order of the rows.
        """
        ids = torch.from_numpy(numbers)
        tables = [self._table(count, generator) for count in counts]
        head = self._head(len(counts) * self.dim, target, generator)
        parameters = [*(p for table in tables for p in table.parameters()), *head.parameters()]
        optimizer = proximal(
            torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=self.l2), tables,
            l1=0.0, keep=self.nonzeros,
        )  # fmt: skip
        numeric = target.is_floating_point()
        loss = F.mse_loss if numeric else F.cross_entropy
        with torch.enable_grad():
            for _ in range(self.epochs):
                for rows in torch.randperm(len(ids), generator=generator).split(_BATCH):
                    vectors = [table(ids[rows, n]) for n, table in enumerate(tables)]
                    scores = head(torch.cat(vectors, dim=1))
                    optimizer.zero_grad()
                    loss(scores.squeeze(1) if numeric else scores, target[rows]).backward()
                    optimizer.step()
        return [_trained(table, ids[:, n]) for n, table in enumerate(tables)]

    def _table(self, count: int, generator: torch.Generator) -> AnchorEmbedding:
        anchors = min(self.anchors, count)
        return AnchorEmbedding(count + 1, self.dim, anchors=anchors, generator=generator)

    def _head(self, width: int, target: Tensor, generator: torch.Generator) -> nn.Sequential:
        classes = 1 if target.is_floating_point() else int(target.max()) + 1
        shapes = (width, _HIDDEN), (_HIDDEN, classes)
        layers = [nn.utils.skip_init(nn.Linear, *shape) for shape in shapes]
        with torch.no_grad():
            for layer in layers:
                layer.weight.normal_(0, layer.in_features**-0.5, generator=generator)
                layer.bias.zero_()
        return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def _trained(table: AnchorEmbedding, ids: Tensor) -> Trained:
    """Return the codes and anchors of a table; row 0 becomes the mean code of the ids."""
    from scipy.sparse import csr_array

    share = torch.bincount(ids, minlength=table.num_embeddings).double() / len(ids)
    with torch.no_grad():
        codes = table.transform.double()
        codes[0] = share @ codes
        return Trained(csr_array(codes.float().numpy()), table.anchors.float().numpy())
