"""Expected cost of a discrete latent and its gradient, by a given estimator."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold import _html
from fewfold._check import check_mask, check_scores
from fewfold.expectation.estimators.estimator import Estimator
from fewfold.expectation.latents.bernoulli import BernoulliLatent
from fewfold.expectation.latents.categorical import CategoricalLatent
from fewfold.expectation.latents.latent import LatentDistribution
from fewfold.expectation.latents.structured import StructuredLatent
from fewfold.structured.structures.bits import Bits
from fewfold.structured.structures.structure import Structure
from fewfold.support import Support

__all__ = [
    "Cost", "Expectation", "embed_atoms", "evaluate_costs", "expect", "latent_distribution",
    "prior_distribution", "to_batch_shape",
]  # fmt: skip

_SHOWN = 10  # rows in a notebook
Cost = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Expectation:
    """Result of `expect`: the expected cost, its gradient, and the distribution of the latent.

    Attributes:
        surrogate: `(*batch,)` expected cost of each row, whose gradient is the gradient estimate;
            can be returned by the cost of an outer `expect`.
        error: `(*batch,)` squared error of a learned baseline, or the variance that the network of
            `RELAX` minimises; otherwise zero.
        support: pairs (row, atom) whose cost was evaluated, and their weights.
        latent: full distribution of the latent, given by the scores.
        exact: whether the weights of the support are the probabilities of the latent.
    """

    surrogate: Tensor
    error: Tensor
    support: Support
    latent: LatentDistribution
    exact: bool

    @property
    def loss(self) -> Tensor:
        """Scalar to back-propagate: the mean of `surrogate + error`; excludes the entropy."""
        total = self.surrogate + self.error
        return total.mean() if self.latent.rows else total.sum()

    @property
    def value(self) -> Tensor:
        """`(*batch,)` expected cost, detached from the graph."""
        return self.surrogate.detach()

    @property
    def calls(self) -> Tensor:
        """`(*batch,)` number of atoms whose cost was evaluated."""
        return self.support.counts.view(self.latent.batch)

    @property
    def entropy(self) -> Tensor:
        """`(*batch,)` exact, differentiable entropy of the latent, in nats.

        With `SparseMarginal` the entropy of the sparse distribution, otherwise of the full one.
        """
        weights = self.support.weights
        found = self.support.reduce(-_log(weights)) if self.exact else self.latent.entropy()
        return to_batch_shape(found, self.latent, self.exact)

    def _repr_html_(self) -> str:
        """Return a table of the first rows with their heaviest atoms, for notebooks."""
        values, calls = self.value.reshape(-1), self.calls.reshape(-1)
        weights = self.support.weights.detach()
        rows: list[list[object]] = []
        for n, (value, count) in enumerate(zip(values[:_SHOWN], calls[:_SHOWN], strict=True)):
            mine = (self.support.row == n).nonzero().squeeze(1)
            best = mine[weights[mine].argsort(descending=True)[:3]].tolist()
            atoms = (f"{str(self.support.atoms[i].tolist())[:40]}: {weights[i]:.4g}" for i in best)
            rows.append([str(n), float(value), int(count), ", ".join(atoms)])
        more = len(values) - len(rows)
        return "\n".join([
            _html.table(
                ["row", "expected cost", "costs evaluated", "heaviest atoms, with weights"], rows,
                caption="exact expectation" if self.exact else "estimated expectation",
            ),
            _html.paragraphs(f"and {more:,} more" if more else ""),
        ])  # fmt: skip

    def kl(self, prior: Tensor | None = None, *, prior_over: Structure | None = None) -> Tensor:
        """`(*batch,)` exact, differentiable KL divergence of the latent from a prior.

        Args:
            prior: scores of the prior, broadcastable to those of the latent; default: uniform over
                all values. Values that are masked or have a score of -inf in the latent are
                excluded from the prior.
            prior_over: for structures with additional scores, such as transitions: the same
                structure with the additional scores of the prior.
        """
        latent = prior_distribution(self.latent, prior, prior_over)
        if not self.exact:
            return to_batch_shape(self.latent.kl(latent), self.latent, self.exact)
        log_prior = latent.log_prob(self.support.atoms, self.support.row)
        # Under vmap the support lists all atoms, including those of weight zero.
        used = self.support.weights.detach() != 0
        log_prior = torch.where(used, log_prior, 0.0)
        found = self.support.reduce(_log(self.support.weights) - log_prior)
        return to_batch_shape(found.to(self.latent.scores), self.latent, self.exact)


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
    """Estimate the expected cost of a discrete latent with these scores, and its gradient.

    The cost is called once, with the concatenated pairs (row, atom) that the estimator selects and
    no others. Gradients flow through the cost to the parameters it uses, and to the scores.

    Args:
        cost: `cost(atoms, row) -> (m,)`. `row` (m,) int64 is the index of each atom's row in the
            flattened batch. Atoms are (m,) int64 ids of categories, `(m, *event)` tensors of 0 and
            1 for bits and structures, and `(m, n)` vectors from `Gumbel`, `StraightThrough`,
            `MuProp`, `REBAR` and `RELAX`.
        scores: `(*batch, n)` for categories, otherwise `(*batch, *event)`.
        estimator: `SparseMarginal()`, `Dense()`, `ScoreFunction()`, `SumAndSample()`, `Gumbel()`,
            or one of `ff.expectation`: `UnorderedSet()`, `MuProp()`, `DisARM()`, `REBAR()`,
            `RELAX(network)`, `StraightThrough()`, `VIMCO()`.
        over: structure that the latent takes values in, such as `ff.structures.Bits()`; default:
            categories.
        mask: boolean, True = keep; False is equivalent to a score of -inf.
        context: `(*batch, ...)` input of a `Learned` baseline or of the network of `RELAX` for each
            row; detached, so that their error trains only them.
        generator: random number generator.

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

    Inside `torch.func.vmap` the cost is evaluated for all atoms, because the support depends on
    values that vmap hides. `Dense` and, for categories, `SparseMarginal` work there, and so do
    estimators that sample categories or bits, with `randomness="different"`; others raise an error
    that names an alternative.

    For a cost of several latents, nest the calls: the cost of the outer latent calls `expect` for
    the inner one, with scores indexed by `row`, and returns its `surrogate`.
    """
    latent = latent_distribution(scores, estimator, over, mask)
    if not latent.rows:
        return _empty_expectation(latent, estimator)
    choice = estimator.choose(latent, generator)
    costs = evaluate_costs(cost, choice.support.atoms, choice.support.row)
    if not len(costs):
        costs = latent.scores.flatten()[:0]  # empty, but connected to the graph of the scores
    if context is not None:
        context = _flatten_context(context, latent)
    baseline = estimator.compare(choice, costs, context)
    surrogate = to_batch_shape(
        estimator.surrogate(choice, costs, baseline), latent, estimator.exact
    )
    learned = estimator.error(choice, costs, baseline)
    error = torch.zeros_like(surrogate)
    if learned is not None:
        error = learned.to(error).view(latent.batch)
    return Expectation(surrogate, error, choice.support, latent, estimator.exact)


def _log(weights: Tensor) -> Tensor:
    """Logarithms of the weights; 0 for a weight of zero, since 0 log 0 = 0."""
    return torch.where(weights.detach() == 0, 1.0, weights).log()


def prior_distribution(
    latent: LatentDistribution, prior: Tensor | None, over: Structure | None
) -> LatentDistribution:
    """Return the distribution of the latent under the scores of a prior; default: uniform."""
    if prior is not None:
        return latent.with_scores(prior, over)
    if over is not None:
        raise ValueError("prior_over has no scores of parts; write prior=torch.zeros(()) for none")
    return latent.uniform()


def latent_distribution(
    scores: Tensor, estimator: Estimator, over: Structure | None, mask: Tensor | None
) -> LatentDistribution:
    """Return the distribution of the latent, over the structure of the estimator or `over`."""
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
        return CategoricalLatent(scores)
    if not isinstance(over, Structure):
        raise TypeError(
            f"over must be a structure such as ff.structures.Bits(), or None for categories, "
            f"got {over!r}"
        )
    over.event_of(scores)
    return (
        BernoulliLatent(scores, over) if isinstance(over, Bits) else StructuredLatent(scores, over)
    )


def _same(one: Structure, two: Structure) -> bool:
    """Whether two structures are equal; additional scores are compared by identity."""
    own, its = one.additional, two.additional
    same = len(own) == len(its) and all(a is b for a, b in zip(own, its, strict=True))
    return same and one.same_set(two)


def embed_atoms(atoms: Tensor, weight: Tensor) -> Tensor:
    """Embed atoms: table lookup for ids, weighted sums of table rows for relaxed vectors.

    Args:
        atoms: (m,) ids, or `(m, n)` vectors of relaxed estimators.
        weight: `(n, d)` embedding table.

    Returns:
        `(m, d)` embeddings.

    Example:
        >>> import torch, fewfold as ff
        >>> table = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> ff.expectation.embed_atoms(torch.tensor([1]), table)
        tensor([[0., 2.]])
        >>> ff.expectation.embed_atoms(torch.tensor([[0.5, 0.5]]), table)
        tensor([[0.5000, 1.0000]])
    """
    return atoms.to(weight) @ weight if atoms.is_floating_point() else F.embedding(atoms, weight)


def evaluate_costs(cost: Cost, atoms: Tensor, row: Tensor) -> Tensor:
    """Call the cost and validate its (m,) result; skip the call if there are no pairs."""
    if not len(row):
        return torch.zeros(0, device=row.device)
    found = cost(atoms, row)
    if not isinstance(found, Tensor) or found.shape != row.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"cost must return one number for each of the {len(row)} pairs, a tensor of shape "
            f"({len(row)},), got {got}"
        )
    if not found.is_floating_point():
        raise TypeError(f"cost must return floating-point numbers, got {found.dtype}")
    return found


def to_batch_shape(found: Tensor, latent: LatentDistribution, exact: bool) -> Tensor:
    """Reshape (rows,) to `(*batch,)`, with NaN in rows that have invalid scores.

    Sums over a sparse support or over structures can leave out the part whose score is NaN.
    """
    if exact or not latent.propagates_nan:
        found = found.masked_fill(latent.invalid_rows, math.nan)
    return found.view(latent.batch)


def _empty_expectation(latent: LatentDistribution, estimator: Estimator) -> Expectation:
    """Result for a batch without rows: empty tensors connected to the graph of the scores."""
    empty = latent.scores.flatten()
    vectors = latent.structure is not None or estimator.relaxed
    atoms = latent.flat.detach() if vectors else empty.long()
    support = Support(empty, atoms, empty.long(), 0)
    value = empty.view(latent.batch)
    return Expectation(value, torch.zeros_like(value), support, latent, estimator.exact)


def _flatten_context(context: Tensor, latent: LatentDistribution) -> Tensor:
    if not isinstance(context, Tensor):
        raise TypeError(f"context must be a torch.Tensor, got {type(context).__name__}")
    size = len(latent.batch)
    if context.shape[:size] != latent.batch:
        raise ValueError(
            f"context must start with the shape of the batch {tuple(latent.batch)}, "
            f"got {tuple(context.shape)}"
        )
    return context.detach().reshape(latent.rows, *context.shape[size:])
