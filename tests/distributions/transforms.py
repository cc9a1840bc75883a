"""Rows of the table of transforms for distributions.

Each is a density, an entropy or a draw as a function of parameters. Arguments are not checked, as
in torch's own distributions under a transform. `python -m tests.distributions.transforms FILE`
writes the table from what passes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

import fewfold as ff
from fewfold import distributions as fd
from tests.transforms import CHECKS, TRACED, Case, Table

POINTS = {
    "bit": [0.25, 0.0],
    "two": [[0.25, 0.75], [1.0, 0.0]],
    "three": [[0.5, 0.25, 0.25], [0.75, 0.25, 0.0]],
    "inside": [[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]],
    "line": [[0.25, 0.5], [0.5, -0.125]],
    "faces": [[True, False, True], [True, True, True]],
    "category": [0, 2],
}
"""On a face and inside; numbers that half precision has."""


class DistributionModule(nn.Module):
    """Density at two points, entropy or sample of a distribution with the input as parameters."""

    def __init__(self, dist: Callable[[Tensor], Distribution], what: str, points: str) -> None:
        super().__init__()
        self.dist, self.what = dist, what
        self.points = nn.Buffer(torch.tensor(POINTS[points]), persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        dist = self.dist(raw)
        if self.what == "log_prob":
            points = self.points.to(raw) if self.points.is_floating_point() else self.points
            return torch.stack([dist.log_prob(point) for point in points.unbind(0)], -1)
        found: Tensor = dist.entropy() if self.what == "entropy" else dist.rsample()
        return found


def halves(raw: Tensor) -> tuple[Tensor, Tensor]:
    """A number of any sign and a positive one, for each coordinate."""
    loc, scale = raw.chunk(2, -1)
    return loc, softplus(scale) + 0.25


def triangle(raw: Tensor, n: int) -> tuple[Tensor, Tensor]:
    loc, rest = raw[..., :n], raw[..., n:].unflatten(-1, (n, n))
    return loc, rest.tril(-1) + torch.diag_embed(softplus(rest.diagonal(dim1=-2, dim2=-1)) + 0.25)


def quadratic(raw: Tensor, low: float, learns: bool = True) -> Distribution:
    """With points inside. The gradient of a draw in alpha is implicit, not that of fixed noise."""
    loc, factor = triangle(raw[..., :-1], 2)
    alpha = low + 0.5 * (raw[..., -1].sigmoid() if learns else torch.full_like(raw[..., -1], 0.5))
    return fd.QGaussian(loc / 8, factor + torch.eye(2).to(raw), alpha)


DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor], Distribution], int, str, str]] = {
    "GaussianSparsemax": (lambda x: fd.GaussianSparsemax(*halves(x)), 6, "three", "dr"),
    "GaussianSparsemax, two": (lambda x: fd.GaussianSparsemax(*halves(x)), 4, "two", "de"),
    "GaussianSparsemax, full": (
        lambda x: fd.GaussianSparsemax(triangle(x, 3)[0], scale_tril=triangle(x, 3)[1]),
        12, "three", "dr",
    ),
    "BinaryHardConcrete": (
        lambda x: fd.BinaryHardConcrete(
            x[..., 0], softplus(x[..., 1]) + 0.25, softplus(x[..., 2]) + 1.125
        ),
        3, "bit", "dre",
    ),
    "HardConcrete": (
        lambda x: fd.HardConcrete(x[..., :3], softplus(x[..., 3]) + 0.25, 1.25), 4, "three", "r",
    ),
    "HardConcrete, two": (
        lambda x: fd.HardConcrete(x[..., :2], softplus(x[..., 2]) + 0.25, 1.25), 3, "two", "de",
    ),
    "Concrete": (
        lambda x: fd.Concrete(x[..., :3], softplus(x[..., 3]) + 0.25), 4, "inside", "dr",
    ),
    "LogisticNormal": (lambda x: fd.LogisticNormal(*halves(x)), 6, "inside", "dr"),
    "MixedDirichlet": (lambda x: fd.MixedDirichlet(*halves(x)), 6, "three", "de"),
    "FaceMixture": (
        lambda x: fd.FaceMixture(
            fd.ListedFaces(x[..., :7].softmax(-1)), softplus(x[..., 7:]) + 0.25
        ),
        10, "three", "de",
    ),
    "GibbsFaces": (lambda x: fd.GibbsFaces(x), 3, "faces", "de"),
    "FacesBySize": (lambda x: fd.FacesBySize(x), 3, "faces", "de"),
    "SparseCategorical": (
        lambda x: fd.SparseCategorical(ff.Tsallis(1.5), x / 4), 3, "category", "de",
    ),
    "QGaussian": (lambda x: quadratic(x, 1.25), 7, "line", "de"),
    "QGaussian, heavy tails": (lambda x: quadratic(x, 0.375), 7, "line", "de"),
    "QGaussian, alpha fixed": (lambda x: quadratic(x, 1.25, learns=False), 7, "line", "r"),
}  # fmt: skip
"""Distribution of raw parameters, their number, points, and which of d, r and e to test."""

WHAT = {"d": "log_prob", "r": "rsample", "e": "entropy"}
WIDE = {"Concrete.log_prob", "LogisticNormal.rsample"}


def _case(
    name: str, dist: Callable[[Tensor], Distribution], n: int, points: str, what: str
) -> Case:
    first, _, rest = name.partition(", ")
    label = f"{first}.{what}" + (f", {rest}" if rest else "")
    return Case(
        label,
        lambda: DistributionModule(dist, what, points),
        wide=label in WIDE,
        shape=(n,),
        draws=what == "rsample",
    )


CASES = [
    _case(name, dist, n, points, WHAT[letter])
    for name, (dist, n, points, letters) in DISTRIBUTIONS.items()
    for letter in letters
]

NO_LGAMMA = [
    *("Concrete.log_prob", "MixedDirichlet.log_prob", "MixedDirichlet.entropy"),
    *("FaceMixture.log_prob", "FaceMixture.entropy", "FacesBySize.log_prob", "FacesBySize.entropy"),
    *("QGaussian.log_prob", "QGaussian.log_prob, heavy tails"),
    *("QGaussian.entropy", "QGaussian.entropy, heavy tails"),
]
SIZED = [
    *("GaussianSparsemax.rsample", "GaussianSparsemax.rsample, full", "LogisticNormal.rsample"),
    *("BinaryHardConcrete.rsample", "QGaussian.rsample, alpha fixed"),
]
LOOKS = [
    *("GaussianSparsemax.log_prob", "GaussianSparsemax.log_prob, two"),
    "GaussianSparsemax.log_prob, full",
]

REASONS: dict[str, tuple[list[str], list[str]]] = {
    "which integrals are needed is decided by looking at numbers": (LOOKS, [*TRACED]),
    "which rows share an integral is decided by looking at numbers": (LOOKS[:1], ["vmap"]),
    "draws that take a generator need a size that is known": (
        SIZED, ["compile, dynamic", "export", "ONNX"]
    ),
    "torch draws no gamma variables under vmap": (["QGaussian.rsample, alpha fixed"], ["vmap"]),
    "ONNX has noise of its own": (["HardConcrete.rsample", "Concrete.rsample"], ["ONNX"]),
    "ONNX lacks an operator, such as the logarithm of the gamma function": (NO_LGAMMA, ["ONNX"]),
}  # fmt: skip

LIMITS = {
    (row, check): reason
    for reason, (rows, checks) in REASONS.items()
    for row in rows
    for check in checks
}

TABLE = Table("distribution", CASES, CHECKS, LIMITS)

if __name__ == "__main__":
    Distribution.set_default_validate_args(False)
    TABLE.main()
