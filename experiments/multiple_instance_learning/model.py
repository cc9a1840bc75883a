"""Network for bags: instance encoder, Hopfield pooling, linear classifier."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments.multiple_instance_learning.bags import Bags
from experiments.networks import perceptron

MAPS: dict[str, ff.Omega] = {
    "softmax": ff.Shannon(),
    "1.5-entmax": ff.Tsallis(1.5),
    "sparsemax": ff.Gini(),
    "normmax 2": ff.Norm(2.0),
    "normmax 5": ff.Norm(5.0),
    "2-subsets": ff.Subset(2),
    "3-subsets": ff.Subset(3),
    "5-subsets": ff.Subset(5),
}


class Filters(nn.Module):
    """Convolution of one channel with 5 x 5 filters: (n, 28, 28) to (n, filters, 24, 24).

    As a product with all windows it takes a third of the time of `nn.Conv2d` on a processor.
    """

    def __init__(self, filters: int) -> None:
        super().__init__()
        first = nn.Conv2d(1, filters, 5)
        self.weight = nn.Parameter(first.weight.detach().flatten(1))
        self.bias = first.bias

    def forward(self, images: Tensor) -> Tensor:
        windows = images.unfold(1, 5, 1).unfold(2, 5, 1)
        return F.linear(windows.flatten(3), self.weight, self.bias).permute(0, 3, 1, 2)


def see_digits(dim: int = 500) -> nn.Module:
    """Return an encoder of digits, (n, 28, 28) to (n, dim)."""
    return nn.Sequential(
        Filters(20), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, dim), nn.ReLU(),
    )  # fmt: skip


def see_regions(dim: int) -> nn.Module:
    """Return an encoder of regions, (n, 230) to (n, dim)."""
    return nn.Sequential(*perceptron(230, dim, dim), nn.ReLU())


class Pooled(nn.Module):
    """Classifier of bags.

    Args:
        see: an instance as a vector.
        pool: of these vectors.
        relu: between the pooled vector and the score.
    """

    def __init__(self, see: nn.Module, pool: ff.HopfieldPooling, *, relu: bool) -> None:
        super().__init__()
        self.see, self.pool = see, pool
        self.judge = nn.Sequential(nn.ReLU() if relu else nn.Identity(), nn.Linear(pool.dim, 1))

    def forward(self, bags: Bags) -> Tensor:
        """Return logits (bags,)."""
        vectors, taken = bags.padded(self.see(bags.instances[bags.members]))
        pooled = self.pool(vectors, mask=taken).squeeze(1)
        score: Tensor = self.judge(pooled).squeeze(1)
        return score


@torch.no_grad()
def scores(network: nn.Module, bags: Bags, size: int = 16) -> Tensor:
    """Return logits (bags,) in evaluation mode."""
    network.eval()
    parts = torch.arange(len(bags)).split(size)
    return torch.cat([network(bags.select(part)) for part in parts])
