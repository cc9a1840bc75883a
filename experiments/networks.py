"""Networks shared by several experiments."""

from itertools import pairwise

from torch import nn


def perceptron(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a multilayer perceptron with linear layers of these sizes."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
