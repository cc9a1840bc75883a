"""Bias of an output layer that starts as the unigram model."""

from torch import Tensor


def log_alpha(probs: Tensor, alpha: float) -> Tensor:
    """Return scores whose alpha-entmax are these positive probabilities: for alpha 1 the log."""
    return probs.log() if alpha == 1 else (probs ** (alpha - 1) - 1) / (alpha - 1)
