"""Games of sixteen candidate images: the sender sees the target, the receiver must find it.

The published features are the folder ``signal-game`` under ``FEWFOLD_DATA``, as they come:
``train`` and ``test``, each with ``ours_images_single_sm0.h5`` (one matrix, an image per row) and
``ours_images_single_sm0.objects`` (a pickled array of what the images show). They need ``h5py``.
Without them the game is played with MNIST and Fashion-MNIST, images of 14 times 14 pixels.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import datasets
from experiments.images import images

FEATURES = "signal-game"
NAMES = ("fashion-mnist", "mnist", FEATURES)
VALID_SEED, TEST_SEED = 20200724, 20200725
LENGTH = 2.0  # of the vectors of pixels: with 1 the dense sum does not begin to learn
_STEM = "ours_images_single_sm0"


@dataclass(frozen=True)
class Batch:
    """A batch of games: candidates (games, candidates, dim) and the index of the target."""

    candidates: Tensor
    target: Tensor

    @property
    def shown(self) -> Tensor:
        """Targets (games, dim), which the sender sees."""
        games, candidates, _ = self.candidates.shape
        return self.candidates.flatten(0, 1).index_select(
            0, torch.arange(games) * candidates + self.target
        )


@dataclass(frozen=True)
class Games:
    """Images from which games are sampled.

    Attributes:
        features: (images, dim), all of one length.
        images: in the order of their classes.
        first: (classes + 1,) where the images of each class begin.
        one_class: all candidates of a game are of one class, drawn at random.
        distinct: all candidates are of different classes, as in the published game.
    """

    features: Tensor
    images: Tensor
    first: Tensor
    one_class: bool = False
    distinct: bool = False

    def draw(self, games: int, candidates: int, generator: torch.Generator) -> Batch:
        """Sample games with distinct candidates and a uniform target."""
        sizes = self.first.diff()
        if self.one_class:
            chosen = torch.randint(len(sizes), (games,), generator=generator)
            begin = self.first[chosen, None]
            ranks = begin + different(sizes[chosen], candidates, generator)
        elif self.distinct:
            classes = different(torch.full((games,), len(sizes)), candidates, generator)
            ranks = self.first[classes] + below(sizes[classes], generator)
        else:
            ranks = different(torch.full((games,), len(self.images)), candidates, generator)
        target = torch.randint(candidates, (games,), generator=generator)
        seen = self.features.index_select(0, self.images[ranks].view(-1))
        return Batch(seen.view(games, candidates, -1), target)


def below(bound: Tensor, generator: torch.Generator) -> Tensor:
    """Sample uniform integers from 0 to below each bound."""
    drawn = torch.rand(bound.shape, dtype=torch.float64, generator=generator)
    return (drawn * bound).long()


def different(bound: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample distinct integers (n, count) below the bound of each row, by rejection."""
    if int(bound.min()) < count:
        raise ValueError(f"{count} different candidates need as many, got {int(bound.min())}")
    drawn = below(bound[:, None].expand(-1, count), generator)
    while True:
        again = (drawn.sort(1).values.diff(dim=1) == 0).any(1).nonzero().squeeze(1)
        if not len(again):
            return drawn
        drawn[again] = below(bound[again, None].expand(-1, count), generator)


def gather(features: Tensor, labels: Tensor, length: float = 1.0, **kind: bool) -> Games:
    """Build games over these images, as vectors of this length."""
    sizes = torch.unique(labels, return_counts=True)[1]
    first = F.pad(sizes.cumsum(0), (1, 0))
    vectors = length * F.normalize(features, dim=1)
    return Games(vectors, labels.argsort(stable=True), first, **kind)


def load(name: str, part: str, *, one_class: bool = False) -> Games:
    """Load games with ``train`` or ``test`` images of a dataset."""
    if name == FEATURES:
        features, labels = published(datasets.DATA / name / part)
        return gather(features, labels, one_class=one_class, distinct=not one_class)
    pixels, labels = images(name, part)
    small = F.avg_pool2d(pixels.float().unsqueeze(1), 2).flatten(1)
    return gather(small, labels, LENGTH, one_class=one_class)


def published(folder: Path) -> tuple[Tensor, Tensor]:
    """Load the features of the published game, (images, 4096), and the concept of each."""
    with (folder / f"{_STEM}.objects").open("rb") as file:
        names = [str(name) for name in _Arrays(file, encoding="latin1").load()]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    features = torch.as_tensor(matrix(folder / f"{_STEM}.h5"), dtype=torch.float32)
    if len(features) != len(names):
        raise ValueError(f"{folder} has {len(features)} images and {len(names)} names of them")
    return features, torch.tensor([numbers[name] for name in names])


def matrix(path: Path) -> Any:
    """Read the one array of an HDF5 file."""
    try:
        import h5py  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError("the published features need h5py; write pip install h5py") from error
    with h5py.File(path) as file:
        (array,) = file.values()
        return array[:]


class _Arrays(pickle.Unpickler):
    """Unpickler that accepts only arrays and lists."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the classes that arrays need; raise for all others."""
        module = module.replace("numpy.core", "numpy._core")
        allowed = {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "scalar"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"expected an array of names, got {module}.{name}")
        return super().find_class(module, name)
