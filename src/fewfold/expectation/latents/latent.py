"""Base class of the distributions of a discrete latent, with probabilities softmax(score)."""

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import fits
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support

__all__ = [
    "LatentDistribution",
    "can_enumerate",
    "all_pairs",
    "enumerate_structures",
    "flatten_pairs",
    "zero_where_masked",
]


@dataclass(frozen=True, eq=False)
class LatentDistribution(ABC):
    """Distribution of one latent per row of a batch, with probabilities proportional to exp(score).

    Attributes:
        scores: `(*batch, *event)`, -inf where masked.
    """

    scores: Tensor

    #: Whether log-probabilities, entropy and divergence are NaN in rows that have NaN scores.
    propagates_nan: ClassVar[bool] = True

    #: Whether the latent is a vector of independent bits.
    independent_bits: ClassVar[bool] = False

    @property
    @abstractmethod
    def event(self) -> torch.Size:
        """Shape of the scores of one latent."""

    @property
    def batch(self) -> torch.Size:
        """Batch shape of the scores."""
        return self.scores.shape[: self.scores.dim() - len(self.event)]

    @property
    def rows(self) -> int:
        """Number of latents in the flattened batch."""
        return self.batch.numel()

    @property
    def flat(self) -> Tensor:
        """`(rows, *event)` scores."""
        return self.scores.reshape(self.rows, *self.event)

    @abstractmethod
    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        """`(rows, draws, *atom)` independent samples."""

    @abstractmethod
    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        """(m,) log-probability of atoms `(m, *atom)` of rows (m,); differentiable, >= float32."""

    @abstractmethod
    def mean(self) -> Tensor:
        """`(rows, *event)` probability of each category, bit or part; differentiable."""

    @abstractmethod
    def mode(self) -> Tensor:
        """`(rows, *event)` 0/1 vectors of the most likely values."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(rows,) entropy in nats, differentiable."""

    @abstractmethod
    def kl(self, prior: Self) -> Tensor:
        """(rows,) KL divergence from a distribution of the same class, differentiable."""

    @abstractmethod
    def enumerate_atoms(self) -> tuple[Tensor, Tensor]:
        """All atoms `(values, *atom)`, and the log-probability (rows, values) of each."""

    def uniform(self) -> Self:
        """Uniform distribution over the same values."""
        return self.with_scores(torch.zeros_like(self.scores))

    def with_scores(self, scores: Tensor, over: Structure | None = None) -> Self:
        """Distribution over the same values with other scores; -inf of this one is preserved.

        Args:
            scores: new scores, broadcastable to the shape of the current ones.
            over: for structures with additional scores: the same structure with new ones.
        """
        if over is not None:
            raise ValueError(f"{self.kind} have no additional scores; leave prior_over out")
        if not isinstance(scores, Tensor) or not fits(scores.shape, self.scores.shape):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"a prior must be scores that broadcast to {tuple(self.scores.shape)}, got {got}"
            )
        expanded = scores.expand(self.scores.shape).to(self.scores)
        return replace(self, scores=torch.where(self.scores == -math.inf, -math.inf, expanded))

    @property
    def wide_type(self) -> torch.dtype:
        """Dtype of log-probabilities, at least float32: half precision is off by whole nats."""
        return torch.promote_types(self.scores.dtype, torch.float32)

    @functools.cached_property
    def invalid_rows(self) -> Tensor:
        """(rows,) mask of rows with a score of NaN or +inf, whose expectation is undefined."""
        return ~(self.flat.detach().flatten(1) < math.inf).all(1)

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most likely atoms `(rows, k, *atom)`, and the mask (rows, k) of valid ones."""
        raise TypeError(
            f"{self.kind} cannot be summed in part; SumAndSample supports categories (over=None) "
            "and ff.structures.Bits(); write ScoreFunction() or SparseMarginal()"
        )

    def sample_excluding(
        self, chosen: Tensor, valid: Tensor, draws: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Samples `(rows, draws, *atom)` outside `chosen`, and the (rows,) mass outside it."""
        raise TypeError(f"{self.kind} cannot be sampled with some of them excluded")

    def sample_distinct(
        self, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample `count` atoms without replacement, or all of them where there are fewer.

        Returns:
            atoms `(rows, k, *atom)`; the mask (rows, k) of valid ones; the log of the total
            probability of all other atoms (rows,), double.
        """
        raise TypeError(
            f"{self.kind} cannot be sampled without replacement; UnorderedSet supports categories "
            "(over=None) and ff.structures.Bits(); write ScoreFunction(samples=2, "
            "baseline=ff.expectation.LeaveOneOut())"
        )

    def sample_relaxed(
        self, temperature: float, draws: int, generator: torch.Generator | None
    ) -> Tensor:
        """`(rows, draws, *event)` relaxed samples, differentiable."""
        raise TypeError(
            f"{self.kind} cannot be relaxed; Gumbel supports categories (over=None) and "
            "ff.structures.Bits()"
        )

    def sample_coupled(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """A sample as 0/1 vectors, the perturbed scores that gave it, and perturbed scores anew.

        All `(rows, *event)`. The last are sampled conditionally on the first; both perturbed
        scores are differentiable.
        """
        raise TypeError(
            f"{self.kind} cannot be relaxed; REBAR and RELAX support categories (over=None) and "
            "ff.structures.Bits()"
        )

    def relax(self, perturbed: Tensor, temperature: float) -> Tensor:
        """Relaxed sample of perturbed scores, as in `sample_relaxed`."""
        raise TypeError(f"{self.kind} cannot be relaxed")

    def harden(self, relaxed: Tensor) -> Tensor:
        """Boolean vectors nearest to relaxed samples."""
        raise TypeError(f"{self.kind} cannot be relaxed")

    def atoms_of_vectors(self, vectors: Tensor) -> Tensor:
        """Atoms given by 0/1 vectors: the vectors themselves unless overridden."""
        return vectors

    def vectors_of_atoms(self, atoms: Tensor) -> Tensor:
        """0/1 vectors of atoms, in the dtype of the scores: the atoms unless overridden."""
        return atoms

    @property
    def structure(self) -> Structure | None:
        """Structure that the latent takes values in; None for categories."""
        return None

    @property
    def kind(self) -> str:
        """Name of the values of the latent, for error messages."""
        return "categories" if self.structure is None else type(self.structure).__name__


def flatten_pairs(atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten atoms `(rows, count, *atom)` to `(rows * count, *atom)`, with the row of each."""
    row = torch.arange(len(atoms), device=atoms.device).repeat_interleave(atoms.shape[1])
    return atoms.flatten(0, 1), row


def all_pairs(weights: Tensor, atoms: Tensor) -> Support:
    """Support of all pairs (row, atom), including zero weights, which vmap cannot filter out.

    Args:
        weights: (rows, values).
        atoms: `(values, *atom)`, or `(rows, values, *atom)`.
    """
    if atoms.shape[: weights.dim()] != weights.shape:
        atoms = atoms.expand(len(weights), *atoms.shape)
    flat, row = flatten_pairs(atoms)
    return Support(weights.flatten(), flat, row, len(weights))


def enumerate_structures(over: Structure, event: torch.Size) -> Tensor:
    """Return all structures `(structures, *event)`; raise ValueError if there are too many."""
    if not can_enumerate(over, event):
        raise ValueError(
            f"{type(over).__name__} of {tuple(event)} has {over.count(event):,} structures, too "
            "many to visit each; use SparseMarginal, which visits a few"
        )
    return over.enumerate(event)


def can_enumerate(over: Structure, event: torch.Size) -> bool:
    """Whether there are few enough structures to enumerate; True if their number is unknown."""
    try:
        return over.count(event) <= _MAX_ENUMERATED
    except NotImplementedError:  # `enumerate` then decides
        return True


_MAX_ENUMERATED = 2**20


def zero_where_masked(scores: Tensor) -> Tensor:
    """Replace -inf by 0, for products with a probability of zero."""
    return torch.where(scores.detach() == -math.inf, 0.0, scores)
