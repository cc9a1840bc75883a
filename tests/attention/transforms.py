"""Rows of the table of transforms for attention and Hopfield layers.

``python -m tests.attention.transforms docs/transforms_attention.md`` writes it from what passes.
"""

import torch
from torch import Tensor, nn

import fewfold as ff
from tests.transforms import CHECKS, Case, Table


class Attend(nn.Module):
    """Queries, keys and values made of one input, as in a model."""

    def __init__(self, omega: ff.Omega) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, data: Tensor) -> Tensor:
        query, key, value = data, data.flip(-1) + 0.3 * data, data.roll(1, -2)
        return ff.sparse_attention(query, key, value, self.omega, scale=1.0)


class Step(nn.Module):
    """One step of a memory, or some, from what is given towards its own second half."""

    def __init__(self, energy: ff.hopfield.Energy, what: str) -> None:
        super().__init__()
        self.energy, self.what = energy, what

    def forward(self, data: Tensor) -> Tensor:
        query, memory = data[..., :2, :], data[..., 2:, :]
        if self.what == "value":
            return self.energy.value(query, memory)
        if self.what == "retrieve":
            return ff.hopfield_retrieve(query, memory, self.energy, max_steps=2).state
        return self.energy.step(query, memory)


class Continuous(nn.Module):
    """Places, spreads and values made of one input: a sequence, or an image of 2 by 3."""

    def __init__(self, basis: ff.continuous.Basis, alpha: float) -> None:
        super().__init__()
        self.basis, self.alpha = basis, alpha
        self(torch.zeros(1, 6, 4))  # called before, as a model is: ONNX cannot solve for the fit

    def forward(self, data: Tensor) -> Tensor:
        if self.basis.dim == 1:
            mu, sigma_sq = data[..., 0].sigmoid(), 0.3 * data[..., 1].sigmoid() + 0.01
            return ff.continuous_attention(data, mu, sigma_sq, self.basis, alpha=self.alpha)
        mu, root = data[..., :2].sigmoid(), 0.3 * data[..., 2:].sigmoid()
        sigma_sq = root.unsqueeze(-1) * root.unsqueeze(-2) * 0.5 + torch.diag_embed(0.02 + root**2)
        image = data.unflatten(-2, (2, 3))
        return ff.continuous_attention(image, mu, sigma_sq, self.basis, alpha=self.alpha)


class Looking(nn.Module):
    """A module whose queries are the first two of what it looks at."""

    def __init__(self, locator: ff.continuous.Locator) -> None:
        super().__init__()
        self.layer = ff.ContinuousAttention(4, LINE, heads=2, locator=locator)
        self(torch.zeros(1, 6, 4))

    def forward(self, data: Tensor) -> Tensor:
        return self.layer(data[..., :2, :], data)


LINE, PLANE = (
    ff.continuous.GaussianBasis.grid(4, [0.2]),
    ff.continuous.GaussianBasis.grid(3, [0.3], dim=2),
)
BOXES = ff.continuous.RectangularBasis([0.0, 0.4, 1.0], [0.0, 0.3, 1.0])


def _energy(omega: ff.Omega) -> ff.FenchelYoung:
    return ff.FenchelYoung(omega, 0.7)


CASES = [
    Case("sparse_attention", lambda: Attend(ff.Tsallis(1.5)), wide=True),
    Case("sparse_attention, sparsemax", lambda: Attend(ff.Gini())),
    Case("sparse_attention, k-subset", lambda: Attend(ff.Subset(2))),
    Case("sparse_attention, SparseMAP", lambda: Attend(ff.SparseMAP(ff.structures.KSubset(2)))),
    Case("MultiheadAttention", lambda: ff.MultiheadAttention(4, 2)),
    Case(
        "MultiheadAttention, length scaling",
        lambda: ff.MultiheadAttention(4, 2, length_scaling=ff.attention.LengthScaling(2)),
    ),
    Case("ProductKeyMemory", lambda: ff.ProductKeyMemory(4, 25, k=3, heads=2)),
    Case("FenchelYoung.step", lambda: Step(_energy(ff.Tsallis(1.5)), "step")),
    Case("FenchelYoung.value", lambda: Step(_energy(ff.Gini()), "value")),
    Case("hopfield_retrieve", lambda: Step(_energy(ff.Tsallis(1.5)), "retrieve")),
    Case("Hopfield", lambda: ff.Hopfield(4, beta=1.0, heads=2, steps=2)),
    Case("HopfieldPooling", lambda: ff.HopfieldPooling(4, ff.Norm(2.0), beta=1.0), wide=True),
    Case("HopfieldLayer", lambda: ff.HopfieldLayer(4, beta=1.0, patterns=5)),
    Case("continuous_attention", lambda: Continuous(LINE, 2.0)),
    Case("continuous_attention, Gaussian", lambda: Continuous(LINE, 1.0)),
    Case("continuous_attention, alpha 1.7", lambda: Continuous(LINE, 1.7)),
    Case("continuous_attention, heavy tails", lambda: Continuous(LINE, 0.5)),
    Case(
        "continuous_attention, intervals",
        lambda: Continuous(ff.continuous.RectangularBasis([0.0, 0.3, 1.0]), 1.5),
    ),
    Case("continuous_attention, image", lambda: Continuous(PLANE, 2.0)),
    Case("continuous_attention, boxes", lambda: Continuous(BOXES, 1.5)),
    Case("ContinuousAttention", lambda: Looking(ff.continuous.QueryHeads(2))),
    Case("ContinuousAttention, signal", lambda: Looking(ff.continuous.SignalHeads())),
    Case("ContinuousAttention, moments", lambda: Looking(ff.continuous.AttentionMoments())),
]

LIMITS: dict[tuple[str, str], str] = {
    ("sparse_attention, SparseMAP", "ONNX"): (
        "structures are found by an operator that ONNX has not"
    ),
}

DISTINCT = ("sparse_attention, SparseMAP", "continuous_attention, image")
TABLE = Table("function", CASES, CHECKS, LIMITS, DISTINCT)

if __name__ == "__main__":
    TABLE.main()
