"""MNIST with 5,000 labels, binarised at random in every epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments.datasets import DATA
from experiments.images import images


@dataclass(frozen=True)
class Digits:
    """Grey images and their labels.

    Attributes:
        grey: (n, pixels) int16, what a random number must be below for a pixel to be white.
        labels: (n,) int64.
    """

    grey: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Split:
    """The parts of the experiment."""

    labelled: Digits
    unlabelled: Digits
    valid: Digits
    test: Digits

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches: unlabelled images, as many labelled ones below them, and their labels.

        Every unlabelled image comes once, and with it the labelled one of the same number, modulo
        how many there are; so every labelled image comes nine times an epoch.
        """
        order = torch.randperm(len(self.unlabelled), generator=generator)
        for rows in order.split(size):
            known = rows % len(self.labelled)
            grey = [self.unlabelled.grey.index_select(0, rows)]
            grey.append(self.labelled.grey.index_select(0, known))
            yield draw(torch.cat(grey), generator), self.labelled.labels[known]


def draw(grey: Tensor, generator: torch.Generator) -> Tensor:
    """Binarise images at random, float32: a pixel is one with probability its brightness.

    A brightness of 8 bits needs no noise of 24: 16 are within 2e-5 of the probability, and a word
    of the generator is enough for four pixels.
    """
    words = torch.empty(-(-grey.numel() // 4), dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    return words.view(torch.int16)[: grey.numel()].view_as(grey).lt(grey).float()


def digits(pixels: Tensor, labels: Tensor) -> Digits:
    """Convert images of bytes (n, ...) to probabilities, pixel / 255."""
    return Digits((pixels.flatten(1).int() * 257 - 2**15).to(torch.int16), labels)


def load() -> Split:
    """Load the published split of MNIST: 5,000 labelled, 45,000 unlabelled, 10,000 validation."""
    train, test = digits(*images("mnist", "train")), digits(*images("mnist", "test"))
    with np.load(DATA / "mnist" / "lvm_semisup_splits.npz") as parts:
        rows = [torch.from_numpy(parts[n]) for n in ("labeled", "unlabeled", "validation")]
    labelled, unlabelled, valid = (Digits(train.grey[row], train.labels[row]) for row in rows)
    return Split(labelled, unlabelled, valid, test)
