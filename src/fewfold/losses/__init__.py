"""Fenchel-Young losses of scores and targets, sampled losses, and metrics of sparse models."""

from fewfold.losses.fenchel_young import FenchelYoungLoss, fenchel_young_loss
from fewfold.losses.language_metrics import (
    epsilon_perplexity,
    jensen_shannon,
    optimal_epsilon,
    sparsemax_score,
)
from fewfold.losses.linear.linear_entmax import linear_entmax_loss
from fewfold.losses.named import (
    entmax_loss,
    ksubset_loss,
    normmax_loss,
    softmax_loss,
    sparsemax_loss,
)
from fewfold.losses.sampled import noise_contrastive_loss, sampled_softmax_loss
from fewfold.losses.sparse_sampling import sample, sample_support

__all__ = [
    "fenchel_young_loss",
    "FenchelYoungLoss",
    "softmax_loss",
    "sparsemax_loss",
    "entmax_loss",
    "normmax_loss",
    "ksubset_loss",
    "linear_entmax_loss",
    "sampled_softmax_loss",
    "noise_contrastive_loss",
    "epsilon_perplexity",
    "optimal_epsilon",
    "sparsemax_score",
    "jensen_shannon",
    "sample",
    "sample_support",
]
