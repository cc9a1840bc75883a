"""Layers of the encoder of a FastVAE after its table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import fraction, whole_number
from fewfold._tensors import Spec

__all__ = ["Perceptron", "encoder_bounds", "encoder_layout", "hidden_layers"]


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
        kept = torch.empty_like(units).bernoulli_(1 - self.dropout, generator=generator)
        return units * kept / (1 - self.dropout)


def hidden_layers(
    width: int, layers: int, encoder: Perceptron | None, generator: torch.Generator
) -> nn.Module:
    """Return the module from the sum of item vectors to the last hidden layer, (rows, width)."""
    if encoder is None:
        return _Residual(width, layers, generator)
    return _Plain(width, layers, generator)


class _Residual(nn.Module):
    """Linear layers that add the outputs of all layers before, each with a swish and a norm."""

    def __init__(self, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = _linear(width, layers, generator, 1.0)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = total = self.norms[0](F.silu(x))
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            hidden = norm(F.silu(layer(hidden) + total))
            total = total + hidden
        last: Tensor = hidden
        return last


class _Plain(nn.Module):
    """Linear layers with a ReLU before each and after the last."""

    def __init__(self, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = _linear(width, layers, generator, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.relu()
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden


def _linear(width: int, layers: int, generator: torch.Generator, gain: float) -> nn.ModuleList:
    """Return linear layers without a shift at first, whose weights have variance gain / width."""
    found = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
    for layer in found:
        weight = layer.get_parameter("weight")
        nn.init.normal_(weight, 0, (gain / width) ** 0.5, generator=generator)
        nn.init.zeros_(layer.get_parameter("bias"))
    return found


def encoder_layout(
    hidden: int, latent: int, layers: int, encoder: Perceptron | None
) -> Iterator[tuple[str, Spec]]:
    """Yield name and specification of each tensor of the encoder of a saved model."""
    code = latent if encoder is None else encoder.bottleneck or latent
    yield "vae.shift", Spec((hidden,))
    yield "vae.posterior.weight", Spec((2 * code, hidden))
    yield "vae.posterior.bias", Spec((2 * code,))
    for number in range(layers + 1 if encoder is None else 0):
        yield f"vae.layers.norms.{number}.weight", Spec((hidden,))
        yield f"vae.layers.norms.{number}.bias", Spec((hidden,))
    for number in range(layers):
        yield f"vae.layers.layers.{number}.weight", Spec((hidden, hidden))
        yield f"vae.layers.layers.{number}.bias", Spec((hidden,))
    if encoder is not None and encoder.bottleneck is not None:
        yield "vae.expand.weight", Spec((latent, code))
        yield "vae.expand.bias", Spec((latent,))


def encoder_bounds(
    size: Mapping[str, float], bag: float, hidden: int, layers: int, encoder: Perceptron | None
) -> list[float]:
    """Return upper bounds of the values in the encoder, the last that of an entry of a query.

    Args:
        size: largest absolute value of each tensor of `encoder_layout`.
        bag: bound of the sum of item vectors, the shift included.
        hidden: width of the layers.
        layers: how many there are.
        encoder: their kind.
    """
    if encoder is None:
        norms = [
            hidden**0.5 * size[f"vae.layers.norms.{n}.weight"] + size[f"vae.layers.norms.{n}.bias"]
            for n in range(layers + 1)
        ]
        found, outputs = [bag, *norms], norms
    else:
        found, outputs = [bag], [bag]
    for n in range(layers):
        wide = hidden * size[f"vae.layers.layers.{n}.weight"] * outputs[n]
        wide += size[f"vae.layers.layers.{n}.bias"]
        if encoder is None:
            wide += sum(outputs[: n + 1])
        else:
            outputs.append(wide)
        found.append(wide)
    found.append(hidden * size["vae.posterior.weight"] * outputs[-1] + size["vae.posterior.bias"])
    if "vae.expand.weight" in size:
        wide = (encoder.bottleneck or 0) * size["vae.expand.weight"] if encoder else 0.0
        found.append(wide * found[-1] + size["vae.expand.bias"])
    return found
