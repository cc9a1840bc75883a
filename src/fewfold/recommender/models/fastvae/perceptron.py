"""The published encoder of a FastVAE."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewfold._check import fraction, whole_number
from fewfold._random import bernoulli
from fewfold._tensors import Spec

__all__ = ["Perceptron"]


@dataclass(frozen=True)
class Perceptron:
    """Encoder of a `FastVAE` as published: ReLU, dropout of hidden units, and a linear decoder.

        h_0 = relu( drop( sum_{j in user} E_j / sqrt(n) ) + b ),     h_l = relu( W_l h_{l-1} ),
        mu, log var = W h + c,     z ~ N(mu, var),     score_i = (V z + d) . q_i + bias_i.

    The published network M-200-32, whose item vectors have 200 entries, is
    ``FastVAE(items, hidden=200, latent=200, layers=0, dropout=0, encoder=Perceptron(0.5, 32))``.

    Attributes:
        dropout: share of the entries of the sum of a user's vectors set to zero in training.
        bottleneck: width of z; None is that of the item vectors, and there is no V.

    Example:
        >>> import fewfold as ff
        >>> encoder = ff.recommender.Perceptron(bottleneck=2)
        >>> model = ff.recommender.FastVAE(9, hidden=8, latent=6, layers=0, encoder=encoder)
        >>> model.expand
        Linear(in_features=2, out_features=6, bias=True)

    Reference: Chen, Lian, Jin, Huang, Zheng and Chen, "Fast Variational AutoEncoder with
    Inverted Multi-Index for Collaborative Filtering", WWW 2022, and its code.
    """

    dropout: float = 0.5
    bottleneck: int | None = None

    def __post_init__(self) -> None:
        fraction(self.dropout, "dropout")
        if self.bottleneck is not None:
            whole_number(self.bottleneck, "bottleneck")

    def drop(self, units: Tensor, generator: torch.Generator | None) -> Tensor:
        """Set a share of the units to zero and scale up the others."""
        if not self.dropout:
            return units
        kept = bernoulli(
            units.shape, 1 - self.dropout, units.device, dtype=units.dtype, generator=generator
        )
        return units * kept / (1 - self.dropout)

    def layers(self, width: int, count: int, generator: torch.Generator) -> nn.Module:
        """Return the module from the sum of item vectors to the last hidden layer."""
        return _Layers(width, count, generator)

    def layout(self, hidden: int, latent: int, layers: int) -> Iterator[tuple[str, Spec]]:
        """Yield name and specification of each tensor of the encoder of a saved model."""
        code = self.bottleneck or latent
        yield "vae.shift", Spec((hidden,))
        yield "vae.posterior.weight", Spec((2 * code, hidden))
        yield "vae.posterior.bias", Spec((2 * code,))
        for number in range(layers):
            yield f"vae.layers.layers.{number}.weight", Spec((hidden, hidden))
            yield f"vae.layers.layers.{number}.bias", Spec((hidden,))
        if self.bottleneck is not None:
            yield "vae.expand.weight", Spec((latent, code))
            yield "vae.expand.bias", Spec((latent,))

    def bounds(
        self, size: Mapping[str, float], bag: float, hidden: int, layers: int
    ) -> list[float]:
        """Return upper bounds of the values in the encoder, the last that of its output.

        Args:
            size: largest absolute value of each tensor of `layout`.
            bag: bound of the sum of item vectors, the shift included.
            hidden: width of the layers.
            layers: how many there are.
        """
        found = [bag]
        names = [f"layers.layers.{number}" for number in range(layers)]
        for name in [*names, "posterior", *(["expand"] if self.bottleneck else [])]:
            width = self.bottleneck or 0 if name == "expand" else hidden
            wide = width * size[f"vae.{name}.weight"] * found[-1]
            found.append(wide + size[f"vae.{name}.bias"])
        return found


class _Layers(nn.Module):
    """Linear layers with a ReLU before each and after the last."""

    def __init__(self, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for layer in self.layers:
            weight = layer.get_parameter("weight")
            nn.init.normal_(weight, 0, (2 / width) ** 0.5, generator=generator)
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.relu()
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden
