"""Proposals for sampled softmax: sample items given queries and return their log q."""

from fewfold.sampling.divergence import kl_bound, kl_divergence
from fewfold.sampling.dynamic import Dynamic
from fewfold.sampling.multi_index import MultiIndex
from fewfold.sampling.proposal import Given, Proposal
from fewfold.sampling.quadratic_kernel import QuadraticKernel
from fewfold.sampling.static import Popularity, Uniform

__all__ = [
    "Dynamic",
    "Given",
    "MultiIndex",
    "Popularity",
    "Proposal",
    "QuadraticKernel",
    "Uniform",
    "kl_bound",
    "kl_divergence",
]
