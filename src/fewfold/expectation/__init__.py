"""cost, scores -> expected cost: one call, with the estimator as a value."""

from fewfold.expectation.baselines import Learned, LeaveOneOut, RunningMean, SelfCritic
from fewfold.expectation.binary import DisARM
from fewfold.expectation.drawn import VIMCO, ScoreFunction, SumAndSample
from fewfold.expectation.estimators import Estimator
from fewfold.expectation.expect import Expectation, embed_atoms, expect
from fewfold.expectation.likelihood import log_likelihood
from fewfold.expectation.marginal import Dense, SparseMarginal
from fewfold.expectation.relaxed import REBAR, Gumbel, annealed

__all__ = [
    "REBAR",
    "VIMCO",
    "Dense",
    "DisARM",
    "Estimator",
    "Expectation",
    "Gumbel",
    "Learned",
    "LeaveOneOut",
    "RunningMean",
    "ScoreFunction",
    "SelfCritic",
    "SparseMarginal",
    "SumAndSample",
    "annealed",
    "embed_atoms",
    "expect",
    "log_likelihood",
]
