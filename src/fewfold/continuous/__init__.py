"""Attention over continuous domains: densities over a line or a plane, and signals on them."""

from fewfold.continuous.basis import Basis, GaussianBasis, RectangularBasis
from fewfold.continuous.continuous_attention import continuous_attention
from fewfold.continuous.density import Density, LineDensity
from fewfold.continuous.locate import AttentionMoments, Locator, QueryHeads, SignalHeads
from fewfold.continuous.memory import ContinuousMemory, Sticky
from fewfold.continuous.module import ContinuousAttention
from fewfold.continuous.plane_density import PlaneDensity
from fewfold.continuous.signal import Ridge, Signal
from fewfold.continuous.smooth_bases import FourierBasis, PowerBasis

__all__ = [
    "AttentionMoments",
    "Basis",
    "ContinuousAttention",
    "ContinuousMemory",
    "Density",
    "FourierBasis",
    "GaussianBasis",
    "LineDensity",
    "Locator",
    "PlaneDensity",
    "PowerBasis",
    "QueryHeads",
    "RectangularBasis",
    "Ridge",
    "Signal",
    "SignalHeads",
    "Sticky",
    "continuous_attention",
]
