"""Networks that several experiments are made of."""

from itertools import pairwise

from torch import nn


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with rectifiers between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
