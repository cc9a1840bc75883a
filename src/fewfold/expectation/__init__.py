"""cost, scores -> expected cost: one call, with the estimator as a value."""

from fewfold.expectation.baselines import Baseline, Learned, LeaveOneOut, RunningMean, SelfCritic
from fewfold.expectation.binary import DisARM
from fewfold.expectation.drawn import VIMCO, ScoreFunction, SumAndSample
from fewfold.expectation.estimators import Choice, Estimator
from fewfold.expectation.expect import Expectation, embed_atoms, expect
from fewfold.expectation.laws import Law
from fewfold.expectation.likelihood import log_likelihood
from fewfold.expectation.marginal import Dense, SparseMarginal
from fewfold.expectation.relaxed import REBAR, Gumbel, annealed

__all__ = [
    "REBAR",
    "VIMCO",
    "Baseline",
    "Choice",
    "Dense",
    "DisARM",
    "Estimator",
    "Expectation",
    "Gumbel",
    "Law",
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
