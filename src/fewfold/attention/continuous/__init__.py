"""Attention over continuous domains: densities over a line or a plane, and signals on them."""

from fewfold.attention.continuous.attention import continuous_attention
from fewfold.attention.continuous.basis import Basis, GaussianBasis, RectangularBasis
from fewfold.attention.continuous.density import Density, LineDensity
from fewfold.attention.continuous.locate import AttentionMoments, Locator, QueryHeads, SignalHeads
from fewfold.attention.continuous.memory import ContinuousMemory, Sticky
from fewfold.attention.continuous.module import ContinuousAttention
from fewfold.attention.continuous.plane_density import PlaneDensity
from fewfold.attention.continuous.signal import Ridge, Signal
from fewfold.attention.continuous.smooth import FourierBasis, PowerBasis

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
