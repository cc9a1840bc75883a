"""Distributions over the probability simplex with exact zeros, and q-Gaussians."""

from fewfold.distributions import q_gaussian_divergence as _divergence  # noqa: F401
from fewfold.distributions.concrete import Concrete, LogisticNormal
from fewfold.distributions.faces.face_distribution import FaceDistribution
from fewfold.distributions.faces.faces_by_size import FacesBySize, ListedFaces, uniform_faces
from fewfold.distributions.faces.geometry import all_faces, face_dimension, face_index, face_of
from fewfold.distributions.faces.gibbs_faces import GibbsFaces
from fewfold.distributions.gaussian_sparsemax import GaussianSparsemax
from fewfold.distributions.hard_concrete import BinaryHardConcrete, HardConcrete
from fewfold.distributions.information import (
    Estimate,
    direct_sum_entropy,
    direct_sum_kl,
    mutual_information,
)
from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.mixed_dirichlet import FaceMixture, MaxEntropyMixed, MixedDirichlet
from fewfold.distributions.q_gaussian import QGaussian
from fewfold.distributions.sparse_categorical import SparseCategorical
from fewfold.distributions.wasserstein import wasserstein2

__all__ = [
    "BinaryHardConcrete",
    "Concrete",
    "Estimate",
    "FaceDistribution",
    "FaceMixture",
    "FacesBySize",
    "GaussianSparsemax",
    "GibbsFaces",
    "HardConcrete",
    "ListedFaces",
    "LogisticNormal",
    "MaxEntropyMixed",
    "MixedDirichlet",
    "QGaussian",
    "SparseCategorical",
    "all_faces",
    "direct_sum_entropy",
    "direct_sum_kl",
    "face_dimension",
    "face_index",
    "face_of",
    "log_ndtr",
    "mutual_information",
    "uniform_faces",
    "wasserstein2",
]
