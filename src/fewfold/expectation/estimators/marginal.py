"""Marginalisation: every atom with a share is visited, and no other."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fewfold._check import whole_number
from fewfold._torch import has_values, under_vmap
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.categorical import CategoryLaw
from fewfold.expectation.latents.latent import Law, every_pair
from fewfold.maps.entropies import Gini, Shannon
from fewfold.maps.map_support import map_support
from fewfold.maps.omega import Omega
from fewfold.structured.omega_tensors import tensors
from fewfold.structured.regularisers import SparseMAP
from fewfold.structured.sparsemap.function import sparsemap_support
from fewfold.structured.structures.structure import Structure
from fewfold.structured.topk_support import topk_support
from fewfold.support import Support

__all__ = ["Dense", "SparseMarginal"]


@dataclass(frozen=True)
class SparseMarginal(Estimator):
    """The exact expectation under a sparse distribution, by visiting its few atoms.

    Args:
        omega: whose map gives the distribution of categories; sparsemax unless given. Structures
            are mixed by SparseMAP: give `expect` what the latent is `over`, or `SparseMAP(...)`
            here.
        k: keep the k best alone, categories or structures, by sparsemax of their scores
            (categories: by omega). The bound on the calls of the cost.

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
                f"omega must be a regulariser such as ff.Gini(), got {self.omega!r}; what the "
                "latent ranges over is said to expect: over=ff.structures.Bits()"
            )
        if self.omega.structure is not None and self.omega.dense:
            raise ValueError(
                f"{self.omega!r} gives every structure a share, none of which is zero; write "
                "SparseMAP(structure), or Dense() with over=structure"
            )
        if self.omega.structure is None and not self.omega.on_simplex:
            raise ValueError(
                f"{self.omega!r} weighs several categories with 1, which is no distribution; the "
                "latent is then a set: write SparseMarginal() and over=ff.structures.KSubset(k)"
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

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        return Choice(self._support(law))

    def _support(self, law: Law) -> Support:
        over = law.structure
        if over is None:
            return self._categories(law)
        if not self.omega.euclidean:
            raise ValueError(
                f"structures are mixed by SparseMAP, and the k best by sparsemax, got "
                f"{self.omega!r}; write SparseMarginal() or SparseMarginal(k=...)"
            )
        if under_vmap():
            raise RuntimeError(
                "which structures SparseMarginal visits depends on the scores, which "
                "torch.func.vmap does not show; give expect the whole batch, whose rows are "
                "independent, or use Dense()"
            )
        if self.k is not None:
            return topk_support(law.scores, over, self.k).support
        limit = getattr(self.omega, "max_iter", SparseMAP.max_iter)
        return sparsemap_support(law.scores, over, max_iter=limit)

    def _categories(self, law: Law) -> Support:
        if self.k is None or self.k >= law.event[0]:
            if under_vmap():
                every = torch.arange(law.event[0], device=law.scores.device)
                return every_pair(self.omega.argmax(law.flat), every)
            return map_support(law.scores, self.omega)
        which = law.scores.detach().topk(self.k, -1).indices.sort(-1).values  # neighbours stay so
        best = law.scores.gather(-1, which)
        which = which.view(law.rows, self.k)
        if under_vmap():
            return every_pair(self.omega.argmax(best.view(law.rows, self.k)), which)
        few = map_support(best, self.omega)
        return Support(few.weights, which[few.row, few.atoms], few.row, few.rows)


@dataclass(frozen=True)
class Dense(Estimator):
    """The exact expectation under softmax, by visiting everything there is.

    What has a share of exactly zero, in floating point, is not visited: it would change nothing.
    Bits and structures are listed one by one, as long as there are no more than a million.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, ff.Dense())
        >>> out.value, out.calls
        (tensor([1.4479]), tensor([4]))
    """

    exact: ClassVar[bool] = True

    def choose(self, law: Law, generator: torch.Generator | None) -> Choice:
        if isinstance(law, CategoryLaw) and has_values(law.flat):
            return Choice(map_support(law.flat, Shannon()))
        atoms, log_probs = law.every()
        probs = log_probs.exp().to(law.scores)
        if not has_values(probs):
            # An atom without weight has no gradient, whatever it costs.
            return Choice(every_pair(torch.where(probs == 0, 0.0, probs), atoms))
        few = Support.from_dense(probs)
        return Choice(Support(few.weights, atoms[few.atoms], few.row, few.rows))
