"""Expected costs of discrete latents and their gradients, with interchangeable estimators."""

from fewfold.expectation.binary_data import bernoulli_cost, linear_bernoulli_cost
from fewfold.expectation.estimators.control_variates import (
    Baseline,
    Learned,
    LeaveOneOut,
    RunningMean,
    SelfCritic,
)
from fewfold.expectation.estimators.disarm import DisARM
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.estimators.gumbel import REBAR, Gumbel, annealed
from fewfold.expectation.estimators.marginal import Dense, SparseMarginal
from fewfold.expectation.estimators.muprop import MuProp
from fewfold.expectation.estimators.relax import RELAX
from fewfold.expectation.estimators.score_function import VIMCO, ScoreFunction, SumAndSample
from fewfold.expectation.estimators.straight_through import StraightThrough
from fewfold.expectation.estimators.unordered_set import UnorderedSet
from fewfold.expectation.expect import Expectation, embed_atoms, expect
from fewfold.expectation.latents.latent import LatentDistribution
from fewfold.expectation.likelihood import log_likelihood

__all__ = [
    "REBAR",
    "RELAX",
    "VIMCO",
    "Baseline",
    "Choice",
    "Dense",
    "DisARM",
    "Estimator",
    "Expectation",
    "Gumbel",
    "LatentDistribution",
    "Learned",
    "LeaveOneOut",
    "MuProp",
    "RunningMean",
    "ScoreFunction",
    "SelfCritic",
    "SparseMarginal",
    "StraightThrough",
    "SumAndSample",
    "UnorderedSet",
    "annealed",
    "bernoulli_cost",
    "embed_atoms",
    "expect",
    "linear_bernoulli_cost",
    "log_likelihood",
]
