"""Distributions of the next word that text may be drawn from."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

import fewfold as ff


class Decoder(Protocol):
    """Turns scores (n, words) into the probabilities of the next word."""

    def probs(self, scores: Tensor) -> Tensor:
        """Return probabilities (n, words)."""
        ...


@dataclass(frozen=True)
class Own:
    """The distribution that the model was trained for: alpha-entmax, and softmax for alpha 1."""

    alpha: float

    def probs(self, scores: Tensor) -> Tensor:
        """Return the entmax of the scores."""
        return ff.entmax(scores, self.alpha)


@dataclass(frozen=True)
class Greedy:
    """The word with the highest score."""

    def probs(self, scores: Tensor) -> Tensor:
        """Return one-hot rows."""
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)


@dataclass(frozen=True)
class Temperature:
    """Softmax of the scores over a temperature."""

    value: float

    def probs(self, scores: Tensor) -> Tensor:
        """Return dense probabilities."""
        return (scores / self.value).softmax(-1)


@dataclass(frozen=True)
class TopK:
    """Softmax of the k highest scores."""

    k: int

    def probs(self, scores: Tensor) -> Tensor:
        """Return rows with k non-zeros."""
        top = scores.topk(min(self.k, scores.shape[-1]), -1)
        return torch.zeros_like(scores).scatter_(-1, top.indices, top.values.softmax(-1))


@dataclass(frozen=True)
class Nucleus:
    """Softmax of the fewest words whose probabilities sum to `mass` at least.

    Reference: Holtzman et al. (2020). The curious case of neural text degeneration. ICLR.
    """

    mass: float

    def probs(self, scores: Tensor) -> Tensor:
        """Return rows with at least one non-zero."""
        ordered, words = scores.softmax(-1).sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        kept = ordered.masked_fill(before >= self.mass, 0.0)
        kept[..., 0] = ordered[..., 0]
        return torch.zeros_like(scores).scatter_(-1, words, kept / kept.sum(-1, keepdim=True))


# What is chosen by the Jensen-Shannon divergence of validation.
GRIDS: dict[str, list[Decoder]] = {
    "temperature": [Temperature(value) for value in (0.6, 0.7, 0.8, 0.9)],
    "top-k": [TopK(k) for k in (5, 10, 20, 50, 100, 500)],
    "nucleus": [Nucleus(mass) for mass in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)],
}


def candidates(alpha: float) -> dict[str, list[Decoder]]:
    """Return the decoders of a model, with the values to choose from; entmax needs no others."""
    own: dict[str, list[Decoder]] = {"own": [Own(alpha)], "greedy": [Greedy()]}
    return own | GRIDS if alpha == 1 else own
