"""SparseMAP and Gibbs as regularisers (`Omega`), for Fenchel-Young losses and energies."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import check_mask, check_temperature
from fewfold._torch import has_values, values_visible
from fewfold.maps.omega import Omega
from fewfold.structured.gibbs import gibbs_marginals
from fewfold.structured.sparsemap.sparsemap import sparsemap, sparsemap_solution
from fewfold.structured.structures.batch_rows import by_row, divide_by_temperature
from fewfold.structured.structures.structure import Structure

__all__ = ["Gibbs", "SparseMAP"]


@dataclass(frozen=True)
class SparseMAP(Omega):
    """Half the squared norm of marginals, `<mu, mu> / 2`, on the convex hull of structures.

    An `Omega` over the last `structure.event_dim` dimensions of the scores.

    Args:
        structure: see `fewfold.structures`.
        max_iter: maximum number of oracle calls per instance.

    Example:
        >>> import torch, fewfold as ff
        >>> omega = ff.SparseMAP(ff.structures.Assignment())
        >>> scores = torch.tensor([[1.0, 0.2], [0.6, 0.5]])
        >>> ff.fenchel_young_loss(scores, torch.eye(2), omega)
        tensor(0.2113)
    """

    on_simplex: ClassVar[bool] = False
    euclidean: ClassVar[bool] = True
    drops_masked: ClassVar[bool] = False  # a structure may need parts that are masked in every row
    structure: Structure
    max_iter: int = 1000

    @property
    def event_dim(self) -> int:
        """Number of dimensions of an instance."""
        return self.structure.event_dim

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        """`<mu, mu> / 2` minus additional scores; with additional scores mu must be a structure."""
        structure = self.structure
        structure.event_of(probs)
        batch = probs.shape[: probs.dim() - self.event_dim]
        flat = by_row(probs, batch.numel())
        half = structure.regulariser(flat).view(batch)
        if not structure.additional:
            return half
        return half - _additional(structure, probs).to(half)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Return the marginals."""
        return sparsemap(scores, self.structure, mask=mask, max_iter=self.max_iter)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Maximum of score minus regulariser; its gradient is the marginals."""
        structure = self.structure
        if structure.additional:
            found = sparsemap_solution(scores, structure, mask=mask, max_iter=self.max_iter)
            return found.objective
        probs = self.argmax(scores, mask=mask)
        used = torch.where(probs.detach() != 0, scores, 0.0)  # an unused score may be -inf
        batch = scores.shape[: scores.dim() - self.event_dim]
        own = by_row(probs * used, batch.numel()).sum(1)
        return (own - structure.regulariser(by_row(probs, batch.numel()))).view(batch)

    @property
    def chunkable(self) -> bool:
        return self.event_dim == 1 and not self.structure.additional

    def attains(self, vertex: Tensor, scores: Tensor) -> Tensor:
        """Whether `vertex` is the argmax: with scores less the vertex, no structure is better."""
        structure = self.structure
        rest = structure.encode_scores(scores) - vertex

        def score(candidate: Tensor) -> Tensor:
            own = (rest * candidate).sum(-1)
            if not structure.additional:
                return own
            # `value` is half the squared norm minus the additional scores
            return own + candidate.square().sum(-1) / 2 - self.value(candidate)

        best = score(structure.argmax(rest)) <= score(vertex)
        return best & self._is_structure(vertex)

    def _is_structure(self, marginals: Tensor) -> Tensor:
        """Whether each vector is a structure: equal to its nearest structure."""
        extra = sum(float(x[x.isfinite()].abs().sum()) for x in self.structure.additional)
        nearest = self.structure.argmax((1 + 2 * extra) * (2 * marginals - 1))
        return (nearest == marginals).all(-1)


@dataclass(frozen=True)
class Gibbs(Omega):
    """Negative entropy of distributions over structures, the regulariser of random fields.

    Its Fenchel-Young loss is that of a conditional random field, the negative log-likelihood of the
    target structure, `log Z(scores) - <scores, target>`; its gradient is the marginals minus
    the target. An `Omega` over the last `structure.event_dim` dimensions of the scores.

    Args:
        structure: see `fewfold.structures`; one that implements `log_partition`.
        temperature: factor of the entropy.

    Example:
        >>> import torch, fewfold as ff
        >>> tags = ff.structures.Sequence(torch.tensor([[0.3, -0.3], [-0.3, 0.3]]))
        >>> scores, gold = torch.tensor([[0.5, 0.0], [-0.3, 0.2]]), torch.eye(2)
        >>> ff.fenchel_young_loss(scores, gold, ff.Gibbs(tags))
        tensor(1.2749)
        >>> -tags.log_prob(scores, gold)
        tensor(1.2749)

    Reference: Lafferty, McCallum and Pereira, "Conditional random fields: probabilistic models for
    segmenting and labeling sequence data", 2001.
    """

    on_simplex: ClassVar[bool] = False
    dense: ClassVar[bool] = True
    chunkable: ClassVar[bool] = False
    structure: Structure
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    @property
    def event_dim(self) -> int:
        """Number of dimensions of an instance."""
        return self.structure.event_dim

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        """Negative entropy of a single structure, zero, minus its additional scores.

        Fractional marginals do not determine a distribution and raise a ValueError.
        """
        self.structure.event_of(probs)
        return -_additional(self.structure, probs).to(probs)

    def check_target(self, scores: Tensor, target: Tensor) -> None:
        """Raise a ValueError if a target is not a structure, where its values can be read.

        Anything else has no probability under the model, so its loss is undefined.
        """
        if values_visible() and has_values(scores, target):
            self.structure.check_members(scores, target)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Return the marginals."""
        return gibbs_marginals(scores, self.structure, mask=mask, temperature=self.temperature)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Temperature times the log-partition function; its gradient is the marginals."""
        if mask is not None:
            check_mask(mask, scores)
        wide, structure = divide_by_temperature(scores, self.structure, self.temperature)
        return (self.temperature * structure.log_partition(wide, mask=mask)).to(scores.dtype)


def _additional(structure: Structure, probs: Tensor) -> Tensor:
    """Sum of the additional scores of structures given as zeros and ones."""
    rounded = probs.detach().round()
    if values_visible() and bool(((probs.detach() - rounded).abs() > 1e-6).any()):
        raise ValueError(
            "probs must be structures, zeros and ones, as the value of other marginals is unknown; "
            "got entries other than 0 and 1"
        )
    return structure.score_of(torch.zeros_like(probs), rounded)
