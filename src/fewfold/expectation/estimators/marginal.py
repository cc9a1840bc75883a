"""Exact marginalisation over all atoms with nonzero probability, and no others."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fewfold._check import whole_number
from fewfold._torch import has_values, under_vmap
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.latent import LatentDistribution, all_pairs
from fewfold.maps.entropies import Gini, Shannon
from fewfold.maps.map_support import map_support
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors
from fewfold.structured.regularisers import SparseMAP
from fewfold.structured.sparsemap.sparsemap import sparsemap_support
from fewfold.structured.structures.structure import Structure
from fewfold.structured.topk_support import topk_support
from fewfold.support import Support

__all__ = ["Dense", "SparseMarginal"]


@dataclass(frozen=True)
class SparseMarginal(Estimator):
    """Exact expectation under a sparse distribution, by a sum over its support.

    Args:
        omega: regulariser whose map gives the distribution of categories; default: sparsemax.
            Structured latents use SparseMAP: pass the structure as `over` to `expect`, or
            `SparseMAP(...)` here.
        k: restrict the distribution to the k highest-scoring categories or structures, by sparsemax
            of their scores (categories: by omega). An upper bound on the evaluations of the cost
            per row.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, ff.SparseMarginal())
        >>> out.value, out.calls
        (tensor([1.0000]), tensor([3]))

    Reference: Correia, Niculae, Aziz and Martins, "Efficient marginalization of discrete and
    structured latent variables via sparsity", NeurIPS 2020.
    """

    omega: Omega = Gini()  # noqa: RUF009  (an immutable value)
    k: int | None = None
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.omega, type) or not isinstance(self.omega, Omega):
            raise TypeError(
                f"omega must be a regulariser such as ff.Gini(), got {self.omega!r}; pass a "
                "structure to expect instead: over=ff.structures.Bits()"
            )
        if self.omega.structure is not None and self.omega.dense:
            raise ValueError(
                f"{self.omega!r} gives every structure a nonzero probability; write "
                "SparseMAP(structure), or Dense() with over=structure"
            )
        if self.omega.structure is None and not self.omega.on_simplex:
            raise ValueError(
                f"{self.omega!r} gives several categories weight 1, which is not a distribution; "
                "the latent is then a set: write SparseMarginal() and over=ff.structures.KSubset(k)"
            )
        if self.k is not None:
            whole_number(self.k, "k")
            if self.omega.structure is None and any(
                one.dim() and one.shape[-1] != 1 for one in tensors(self.omega).values()
            ):
                raise ValueError(
                    f"{type(self.omega).__name__} has a parameter for each category, and k keeps "
                    "others in every row; leave k out, or give one parameter for all"
                )

    @property
    def structure(self) -> Structure | None:
        structure: Structure | None = self.omega.structure
        return structure

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        return Choice(self._support(latent))

    def _support(self, latent: LatentDistribution) -> Support:
        over = latent.structure
        if over is None:
            return self._categories(latent)
        if not self.omega.euclidean:
            raise ValueError(
                f"structures are weighted by SparseMAP, and the k best by sparsemax, got "
                f"{self.omega!r}; write SparseMarginal() or SparseMarginal(k=...)"
            )
        if under_vmap():
            raise RuntimeError(
                "which structures SparseMarginal visits depends on the scores, which "
                "torch.func.vmap hides; give expect the whole batch, whose rows are "
                "independent, or use Dense()"
            )
        if self.k is not None:
            return topk_support(latent.scores, over, self.k).support
        limit = getattr(self.omega, "max_iter", SparseMAP.max_iter)
        return sparsemap_support(latent.scores, over, max_iter=limit)

    def _categories(self, latent: LatentDistribution) -> Support:
        if self.k is None or self.k >= latent.event[0]:
            if under_vmap():
                every = torch.arange(latent.event[0], device=latent.scores.device)
                return all_pairs(self.omega.argmax(latent.flat), every)
            return map_support(latent.scores, self.omega)
        which = latent.scores.detach().topk(self.k, -1).indices.sort(-1).values  # order preserved
        best = latent.scores.gather(-1, which)
        which = which.view(latent.rows, self.k)
        if under_vmap():
            return all_pairs(self.omega.argmax(best.view(latent.rows, self.k)), which)
        found = map_support(best, self.omega)
        return Support(found.weights, which[found.row, found.atoms], found.row, found.rows)


@dataclass(frozen=True)
class Dense(Estimator):
    """Exact expectation under softmax probabilities, by a sum over all atoms.

    Atoms whose probability is exactly zero in floating point are skipped. Bit vectors and
    structures are enumerated, up to 2**20 of them.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, ff.Dense())
        >>> out.value, out.calls
        (tensor([1.4479]), tensor([4]))
    """

    exact: ClassVar[bool] = True

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        if latent.structure is None and has_values(latent.flat):
            return Choice(map_support(latent.flat, Shannon()))
        atoms, log_probs = latent.enumerate_atoms()
        probs = log_probs.exp().to(latent.scores)
        if not has_values(probs):
            # Atoms of probability zero get no gradient, even for infinite costs.
            return Choice(all_pairs(torch.where(probs == 0, 0.0, probs), atoms))
        found = Support.from_dense(probs)
        return Choice(Support(found.weights, atoms[found.atoms], found.row, found.rows))
