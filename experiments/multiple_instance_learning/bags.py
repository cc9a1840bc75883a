"""Bags: labelled sets of unlabelled instances."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.datasets import DATA
from experiments.images import images

ANIMALS = ("fox", "tiger", "elephant")
TARGET = 9
PLACES = 5
TEST_SEED = 50000


@dataclass(frozen=True)
class Bags:
    """A set of bags.

    Attributes:
        instances: (n, ...) that bags are made of, in no order.
        members: (m,) which instances are in the bags, bag after bag.
        first: (bags + 1,) where the members of each bag begin.
        labels: (bags,) float, 1 or 0.
    """

    instances: Tensor
    members: Tensor
    first: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, which: Tensor) -> "Bags":
        """Return the bags with these indices, in this order."""
        sizes = self.first.diff()[which]
        first = F.pad(sizes.cumsum(0), (1, 0))
        shift = torch.repeat_interleave(self.first[which] - first[:-1], sizes)
        members = self.members[torch.arange(len(shift)) + shift]
        return Bags(self.instances, members, first, self.labels[which])

    def padded(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return padded vectors (bags, members, dim) and their mask, from one vector per member.

        There are places for the largest bag, and for subsets of `PLACES` to choose from.
        """
        sizes = self.first.diff()
        taken = torch.arange(max(PLACES, int(sizes.max()))) < sizes[:, None]
        out = vectors.new_zeros(*taken.shape, vectors.shape[1])
        return out.masked_scatter(taken[..., None], vectors), taken


def gather(instances: Tensor, bags: list[np.ndarray], labels: list[int]) -> Bags:
    """Build bags of these members."""
    sizes = torch.tensor([len(bag) for bag in bags])
    members = torch.from_numpy(np.concatenate(bags))
    first = F.pad(sizes.cumsum(0), (1, 0))
    return Bags(instances, members, first, torch.tensor(labels, dtype=torch.float32))


def pairs(labels: np.ndarray, least: int, count: int, seed: int) -> list[np.ndarray]:
    """Return members of `count` bags with fewer than `least` nines, and as many with at least that.

    They alternate, and two neighbours are equally large.
    """
    nines, others = np.flatnonzero(labels == TARGET), np.flatnonzero(labels != TARGET)
    bags = []
    for pair in range(count):
        chance = np.random.RandomState(seed + pair)
        size = max(least, int(chance.normal(9 + least, least)))
        many = int(chance.randint(least, size + 1))
        full = [chance.choice(nines, many, False), chance.choice(others, size - many, False)]
        positive_count = int(chance.randint(0, least)) if least > 1 else 0
        poor = [
            chance.choice(nines, positive_count, False),
            chance.choice(others, size - positive_count, False),
        ]
        bags += [np.concatenate(poor), np.concatenate(full)]
    return bags


def digits(part: str, least: int, count: int, seed: int) -> Bags:
    """Return `count` bags of MNIST digits; positive if they contain at least `least` nines."""
    pixels, labels = images("mnist", part)
    shown = (pixels.float() / 255 - 0.1307) / 0.3081
    bags = pairs(labels.numpy(), least, count // 2, seed)
    return gather(shown, bags, [0, 1] * (count // 2))


def animals(name: str) -> Bags:
    """Return region features of 200 photographs, half of which show the animal."""
    with np.load(DATA / "mil" / f"{name}.npz") as file:
        vectors, bag, label = file["X"], file["bag"], file["y"]
    numbers = np.unique(bag)
    bags = [np.flatnonzero(bag == number) for number in numbers]
    labels = [int(label[members[0]] > 0) for members in bags]
    return gather(torch.from_numpy(vectors), bags, labels)


def folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return the stratified fold (bags,) of each bag."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    part = torch.empty(len(labels), dtype=torch.int64)
    part[order] = torch.arange(len(labels)) % count
    return part
