"""Law: what a latent is drawn from when every value of it has a share, exp(its score)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fewfold._check import fits
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support

__all__ = ["Law", "countable", "every_pair", "listed", "pairs", "zeroed"]


@dataclass(frozen=True, eq=False)
class Law(ABC):
    """One latent for each row of a batch, with probabilities in proportion to exp(score).

    Attributes:
        scores: `(*batch, *event)`, -inf at what is masked.
    """

    scores: Tensor

    @property
    @abstractmethod
    def event(self) -> torch.Size:
        """The shape of the scores of one latent."""

    @property
    def batch(self) -> torch.Size:
        """The shape of what is not one latent."""
        return self.scores.shape[: self.scores.dim() - len(self.event)]

    @property
    def rows(self) -> int:
        """How many latents there are."""
        return self.batch.numel()

    @property
    def flat(self) -> Tensor:
        """`(rows, *event)` scores."""
        return self.scores.reshape(self.rows, *self.event)

    @abstractmethod
    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        """`(rows, draws, *atom)` independent draws."""

    @abstractmethod
    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        """(m,) differentiable, of atoms `(m, *atom)` that belong to rows (m,); at least float32."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(rows,) in nats, differentiable."""

    @abstractmethod
    def kl(self, prior: Self) -> Tensor:
        """(rows,) divergence from a law of the same kind, differentiable."""

    @abstractmethod
    def every(self) -> tuple[Tensor, Tensor]:
        """`(values, *atom)`, all there are, and (rows, values) `log_prob` of each."""

    def uniform(self) -> Self:
        """The same values, each as likely as any other."""
        return self.like(torch.zeros_like(self.scores))

    def like(self, scores: Tensor, over: Structure | None = None) -> Self:
        """The same values, those of a score of -inf left out, with others that broadcast.

        Args:
            scores: of the parts.
            over: for structures that have additional scores, the same with others.
        """
        if over is not None:
            raise ValueError(f"{self.told} have no additional scores; leave prior_over out")
        if not isinstance(scores, Tensor) or not fits(scores.shape, self.scores.shape):
            came = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"a prior must be scores that broadcast to {tuple(self.scores.shape)}, got {came}"
            )
        spread = scores.expand(self.scores.shape).to(self.scores)
        return replace(self, scores=torch.where(self.scores == -math.inf, -math.inf, spread))

    @property
    def wide_type(self) -> torch.dtype:
        """Of log-probabilities: half precision would round those of many parts by whole nats."""
        return torch.promote_types(self.scores.dtype, torch.float32)

    @property
    def odd(self) -> Tensor:
        """(rows,) which have a NaN or +inf, and no expectation."""
        return ~(self.flat.detach().flatten(1) < math.inf).all(1)

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        """`(rows, k, *atom)` the most likely values, and (rows, k) whether there are so many."""
        raise TypeError(
            f"{self.told} cannot be summed in part; SumAndSample serves categories (over=None) and "
            "ff.structures.Bits(); write ScoreFunction() or SparseMarginal()"
        )

    def outside(
        self, chosen: Tensor, valid: Tensor, draws: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """`(rows, draws, *atom)` drawn from all but those chosen; (rows,) probability of these."""
        raise TypeError(f"{self.told} cannot be drawn without some of them")

    def relaxed(self, temperature: float, draws: int, generator: torch.Generator | None) -> Tensor:
        """`(rows, draws, *event)` differentiable vectors near a draw."""
        raise TypeError(
            f"{self.told} cannot be relaxed; Gumbel serves categories (over=None) and "
            "ff.structures.Bits()"
        )

    def coupled(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """A draw as 0/1 vectors, the noisy scores it came from, and others it could come from.

        All `(rows, *event)`; the noisy scores are differentiable, the last given the draw.
        """
        raise TypeError(
            f"{self.told} cannot be relaxed; REBAR serves categories (over=None) and "
            "ff.structures.Bits()"
        )

    @property
    def structure(self) -> Structure | None:
        """What the latent ranges over; None for categories."""
        return None

    @property
    def told(self) -> str:
        """What the latent is, for an error."""
        return "categories" if self.structure is None else type(self.structure).__name__


def pairs(atoms: Tensor) -> tuple[Tensor, Tensor]:
    """`(rows, count, *atom)` as atoms one after the other, and the row of each."""
    row = torch.arange(len(atoms), device=atoms.device).repeat_interleave(atoms.shape[1])
    return atoms.flatten(0, 1), row


def every_pair(weights: Tensor, atoms: Tensor) -> Support:
    """All pairs of a row and an atom, those of weight zero too, as vmap does not show which.

    Args:
        weights: (rows, values).
        atoms: `(values, *atom)`, or `(rows, values, *atom)`.
    """
    if atoms.shape[: weights.dim()] != weights.shape:
        atoms = atoms.expand(len(weights), *atoms.shape)
    flat, row = pairs(atoms)
    return Support(weights.flatten(), flat, row, len(weights))


def listed(over: Structure, event: torch.Size) -> Tensor:
    """`(structures, *event)` all of them, unless they are too many."""
    if not countable(over, event):
        raise ValueError(
            f"{type(over).__name__} of {tuple(event)} has {over.count(event):,} structures, too "
            "many to visit each; use SparseMarginal, which visits a few"
        )
    return over.enumerate(event)


def countable(over: Structure, event: torch.Size) -> bool:
    """Whether all structures can be listed; where nobody counted them, `enumerate` says it."""
    try:
        return over.count(event) <= _MANY
    except NotImplementedError:
        return True


_MANY = 2**20


def zeroed(scores: Tensor) -> Tensor:
    """0 for -inf, where it would be multiplied by 0."""
    return torch.where(scores.detach() == -math.inf, 0.0, scores)
