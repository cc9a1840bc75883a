"""Networks shared by several experiments."""

from itertools import pairwise

from torch import nn


def perceptron(*sizes: int) -> nn.Sequential:
    """Return a multilayer perceptron with ReLU between linear layers of these sizes."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
