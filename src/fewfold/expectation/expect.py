"""expect: the expected cost of a discrete latent, by the estimator of your choice."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import check_mask, check_scores
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.latents.bernoulli import BitLaw
from fewfold.expectation.latents.categorical import CategoryLaw
from fewfold.expectation.latents.latent import Law
from fewfold.expectation.latents.structured import GibbsLaw
from fewfold.structured.structures.bits import Bits
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support, sum_rows

__all__ = [
    "Cost", "Expectation", "costs_of", "embed_atoms", "expect", "law_for", "prior_of", "told",
]  # fmt: skip

Cost = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Expectation:
    """An expected cost, its gradient, and what is known of the latent.

    Attributes:
        surrogate: `(*batch,)` the expected cost of each row, with the gradient that the estimator
            gives it; it may be the cost of an outer `expect`.
        error: `(*batch,)` the squared error of a baseline that learns, otherwise zero.
        support: the pairs (row, atom) whose cost was computed, and their weights.
        law: the full distribution with these scores.
        exact: whether the weights of the support are the distribution of the latent.
    """

    surrogate: Tensor
    error: Tensor
    support: Support
    law: Law
    exact: bool

    @property
    def loss(self) -> Tensor:
        """What to back-propagate: the mean of `surrogate + error`; the entropy is not in it."""
        total = self.surrogate + self.error
        return total.mean() if self.law.rows else total.sum()

    @property
    def value(self) -> Tensor:
        """`(*batch,)` the expected cost, a constant."""
        return self.surrogate.detach()

    @property
    def calls(self) -> Tensor:
        """`(*batch,)` how many atoms the cost was computed for."""
        return self.support.counts.view(self.law.batch)

    @property
    def entropy(self) -> Tensor:
        """`(*batch,)` of the latent in nats, exact, with its gradient.

        Under `SparseMarginal` that of the sparse distribution, otherwise of the full one.
        """
        weights = self.support.weights
        found = self.support.reduce(-_log(weights)) if self.exact else self.law.entropy()
        return told(found, self.law, self.exact)

    def kl(self, prior: Tensor | None = None, *, prior_over: Structure | None = None) -> Tensor:
        """`(*batch,)` divergence of the latent from a prior, exact, with its gradient.

        Args:
            prior: scores of the prior, which broadcast to those of the latent; uniform over all
                values unless given. What the latent cannot be (masked, or of a score of -inf) the
                prior cannot be either.
            prior_over: for structures with additional scores, such as transitions, the same
                structure with those of the prior.
        """
        law = prior_of(self.law, prior, prior_over)
        if not self.exact:
            return told(self.law.kl(law), self.law, self.exact)
        log_prior = law.log_prob(self.support.atoms, self.support.row)
        used = self.support.weights.detach() != 0  # vmap shows all atoms, those of no weight too
        log_prior = torch.where(used, log_prior, 0.0)
        found = self.support.reduce(_log(self.support.weights) - log_prior)
        return told(found.to(self.law.scores), self.law, self.exact)


def expect(
    cost: Cost,
    scores: Tensor,
    estimator: Estimator,
    over: Structure | None = None,
    *,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Expectation:
    """The expected cost of a discrete latent with these scores, and its gradient.

    The cost is called once, with all pairs of a row and an atom that the estimator asks for, one
    after the other; never with others. The gradient goes through the cost to what it uses, and
    through the scores.

    Args:
        cost: `cost(atoms, row) -> (m,)`. `row` (m,) int64 says which of the flattened batch rows an
            atom belongs to. Atoms are (m,) int64 ids of categories, `(m, *event)` tensors of 0 and
            1 for bits and structures, and `(m, n)` vectors from `Gumbel` and `REBAR`.
        scores: `(*batch, n)` for categories, otherwise `(*batch, *event)`.
        estimator: `SparseMarginal()`, `Dense()`, `ScoreFunction()`, `SumAndSample()`, `Gumbel()`,
            `DisARM()`, `REBAR()` or `VIMCO()`.
        over: what the latent ranges over, `ff.structures.Bits()` for one; categories unless given.
        mask: boolean, True = keep; the same as a score of -inf.
        context: `(*batch, ...)` what a `Learned` baseline sees of each row; its error trains the
            baseline, never what made the context.
        generator: source of randomness.

    Returns:
        `Expectation`: loss, value, entropy, calls and more.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]], requires_grad=True)
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> out = ff.expect(lambda atoms, row: price[atoms], scores, ff.SparseMarginal(ff.Gini()))
        >>> out.loss.backward()
        >>> scores.grad, out.calls
        (tensor([[-0.5000,  0.0000, -1.0000,  1.5000]]), tensor([3]))

    Inside `torch.func.vmap` the cost is computed for all atoms, as which of them have a weight is
    not known there. `Dense` and, for categories, `SparseMarginal` work there, and so do estimators
    that draw categories or bits, with `randomness="different"`; others say what to write instead.

    Several latents of which the cost takes all are nested: the cost of the outer one calls
    `expect` for the inner one, with scores picked by `row`, and returns its `surrogate`.
    """
    law = law_for(scores, estimator, over, mask)
    if not law.rows:
        return _of_nothing(law, estimator)
    choice = estimator.choose(law, generator)
    costs = costs_of(cost, choice.support.atoms, choice.support.row)
    if not len(costs):
        costs = law.scores.flatten()[:0]  # so that there is a gradient, of nothing
    if context is not None:
        context = _rows_of(context, law)
    baseline = estimator.compare(choice, costs, context)
    surrogate = told(estimator.surrogate(choice, costs, baseline), law, estimator.exact)
    error = torch.zeros_like(surrogate)
    if baseline is not None and baseline.requires_grad:
        error = _error(choice, costs.detach() - baseline).to(error).view(law.batch)
    return Expectation(surrogate, error, choice.support, law, estimator.exact)


def _log(weights: Tensor) -> Tensor:
    """Their logarithms, and 0 for a weight of zero, with which it is multiplied."""
    return torch.where(weights.detach() == 0, 1.0, weights).log()


def _error(choice: Choice, apart: Tensor) -> Tensor:
    """(rows,) the mean of the squares at what was drawn and has a weight; 0 where nothing was."""
    assert choice.drawn is not None
    each = apart[choice.drawn[:, : choice.scored]].square().mean(1)
    return sum_rows(each, choice.support.row[choice.drawn[:, 0]], choice.support.rows)


def prior_of(law: Law, prior: Tensor | None, over: Structure | None) -> Law:
    """The law with the scores of a prior; uniform unless there are such."""
    if prior is not None:
        return law.like(prior, over)
    if over is not None:
        raise ValueError("prior_over has no scores of parts; write prior=torch.zeros(()) for none")
    return law.uniform()


def law_for(
    scores: Tensor, estimator: Estimator, over: Structure | None, mask: Tensor | None
) -> Law:
    """The law of the latent, whoever says what it ranges over."""
    if not isinstance(estimator, Estimator):
        raise TypeError(f"estimator must be a value such as ff.SparseMarginal(), got {estimator!r}")
    own = estimator.structure
    if own is not None and over is not None and not _same(own, over):
        raise ValueError(f"the estimator is for {own!r}, and over={over!r}; leave over out")
    over = over if own is None else own
    check_scores(scores)
    if mask is not None:
        check_mask(mask, scores)
        scores = scores.masked_fill(~mask, -math.inf)
    if over is None:
        return CategoryLaw(scores)
    if not isinstance(over, Structure):
        raise TypeError(
            f"over must be a structure such as ff.structures.Bits(), or None for categories, "
            f"got {over!r}"
        )
    over.event_of(scores)
    return BitLaw(scores, over) if isinstance(over, Bits) else GibbsLaw(scores, over)


def _same(one: Structure, two: Structure) -> bool:
    """Whether it is said twice; additional scores are compared by identity."""
    own, its = one.additional, two.additional
    same = len(own) == len(its) and all(a is b for a, b in zip(own, its, strict=True))
    return same and one.same_set(two)


def embed_atoms(atoms: Tensor, weight: Tensor) -> Tensor:
    """What stands in the rows of a table for ids, or for the vectors of relaxed estimators.

    Args:
        atoms: (m,) ids, or `(m, n)` vectors.
        weight: `(n, d)`.

    Returns:
        `(m, d)`: rows of the table, or their mixes.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> ff.expectation.embed_atoms(torch.tensor([1]), table)
        tensor([[0., 2.]])
        >>> ff.expectation.embed_atoms(torch.tensor([[0.5, 0.5]]), table)
        tensor([[0.5000, 1.0000]])
    """
    return atoms.to(weight) @ weight if atoms.is_floating_point() else F.embedding(atoms, weight)


def costs_of(cost: Cost, atoms: Tensor, row: Tensor) -> Tensor:
    """(m,) what the cost says, checked; it is not asked about nothing."""
    if not len(row):
        return torch.zeros(0, device=row.device)
    found = cost(atoms, row)
    if not isinstance(found, Tensor) or found.shape != row.shape:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"cost must return one number for each of the {len(row)} pairs, a tensor of shape "
            f"({len(row)},), got {came}"
        )
    if not found.is_floating_point():
        raise TypeError(f"cost must return floating-point numbers, got {found.dtype}")
    return found


def told(found: Tensor, law: Law, exact: bool) -> Tensor:
    """(rows,) as `(*batch,)`; NaN where a score is NaN, though its part was left out of a sum."""
    if exact or isinstance(law, GibbsLaw):
        found = found.masked_fill(law.odd, math.nan)
    return found.view(law.batch)


def _of_nothing(law: Law, estimator: Estimator) -> Expectation:
    """For a batch without rows: the same shapes, with a gradient of nothing."""
    nothing = law.scores.flatten()
    vectors = law.structure is not None or estimator.relaxed
    atoms = law.flat.detach() if vectors else nothing.long()
    support = Support(nothing, atoms, nothing.long(), 0)
    none = nothing.view(law.batch)
    return Expectation(none, torch.zeros_like(none), support, law, estimator.exact)


def _rows_of(context: Tensor, law: Law) -> Tensor:
    if not isinstance(context, Tensor):
        raise TypeError(f"context must be a torch.Tensor, got {type(context).__name__}")
    size = len(law.batch)
    if context.shape[:size] != law.batch:
        raise ValueError(
            f"context must start with the shape of the batch {tuple(law.batch)}, "
            f"got {tuple(context.shape)}"
        )
    return context.detach().reshape(law.rows, *context.shape[size:])
