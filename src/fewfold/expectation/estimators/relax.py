"""RELAX: the score function with a learned control variate of relaxed samples."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fewfold._check import non_negative_number
from fewfold.expectation.estimators.cost_gradient import (
    cost_needs,
    differentiate,
    refuse_transforms,
)
from fewfold.expectation.estimators.estimator import Choice, Estimator
from fewfold.expectation.estimators.gumbel import positive_temperature
from fewfold.expectation.latents.latent import LatentDistribution, flatten_pairs
from fewfold.support import Support, sum_rows

__all__ = ["RELAX"]

_NETWORK = "the network of RELAX must be a differentiable function of the relaxed samples"


@dataclass(frozen=True, eq=False, kw_only=True)
class _Coupled(Choice):
    """A sample of each row, and the relaxations of the noise before and after it is known.

    Attributes:
        scores: `(rows, *event)` of the latent, which receive the gradient estimate.
        leaf: the same as a leaf, with respect to which the estimate is computed.
        log_prob: (rows,) log-probability of the sample under the leaf.
        soft: `(rows, 2, *event)` relaxed samples, functions of the leaf: unconditional and
            conditional on the sample.
    """

    scores: Tensor
    leaf: Tensor
    log_prob: Tensor
    soft: Tensor


@dataclass(frozen=True)
class RELAX(Estimator):
    """Score-function estimator with a learned control variate.

    With a sample z, the relaxation y of the noise that gave z, the relaxation y' of noise resampled
    given z, as in `REBAR`, and the control variate `c = strength * cost + network`:

        (cost(z) - c(y')) grad log p(z)  +  grad c(y)  -  grad c(y').

    Unbiased for every network. The network is trained by the squared norm of this gradient of the
    scores, whose expectation is its variance plus a constant; it is a term of `Expectation.loss`
    that trains nothing else. Add the network to the optimiser: `estimator.network.parameters()`.
    For categories and bits; atoms are vectors.

    Args:
        network: maps relaxed samples `(m, n)`, and next to them the flattened `context` of their
            rows if `expect` is given one, to (m,) or (m, 1). It should be smooth: tanh, not ReLU.
        temperature: of the relaxation.
        strength: coefficient of the cost in the control variate. With 0 the cost is evaluated once
            per row, at z, and need not be differentiable; otherwise three times, as in `REBAR`.

    Example:
        >>> import torch, fewfold as ff
        >>> _ = torch.manual_seed(0)
        >>> price = torch.tensor([1.0, 2.0, 0.5, 3.0])
        >>> scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
        >>> network = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> out = ff.expect(lambda atoms, row: atoms @ price, scores,
        ...     ff.expectation.RELAX(network))
        >>> out.calls, bool(out.error.requires_grad)
        (tensor([3]), True)

    Reference: Grathwohl, Choi, Wu, Roeder and Duvenaud, "Backpropagation through the void:
    optimizing control variates for black-box gradient estimation", 2018.
    """

    network: nn.Module
    temperature: float = 0.5
    strength: float = 1.0
    relaxed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.network, nn.Module):
            raise TypeError(
                "network must be a torch.nn.Module from relaxed samples to one number each, got "
                f"{self.network!r}; without a network write REBAR()"
            )
        object.__setattr__(self, "temperature", positive_temperature(self.temperature))
        object.__setattr__(self, "strength", non_negative_number(self.strength, "strength"))

    def choose(self, latent: LatentDistribution, generator: torch.Generator | None) -> Choice:
        refuse_transforms("RELAX")
        leaf = latent.flat.detach().clone()
        if torch.is_grad_enabled():
            leaf.requires_grad_()
        own = replace(latent, scores=leaf)
        draw, noisy, again = own.sample_coupled(generator)
        row = torch.arange(latent.rows, device=leaf.device)
        log_prob = own.log_prob(own.atoms_of_vectors(draw), row)
        soft = own.relax(torch.stack([noisy, again], 1), self.temperature)
        vectors = torch.cat([draw.unsqueeze(1), soft], 1) if self.strength else draw.unsqueeze(1)
        atoms, row = flatten_pairs(vectors)
        weights = leaf.new_zeros(vectors.shape[:2])
        weights[:, 0] = 1
        support = Support(weights.flatten(), atoms, row, latent.rows)
        return _Coupled(
            support=support, scores=latent.flat, leaf=leaf, log_prob=log_prob, soft=soft
        )

    def compare(self, choice: Choice, costs: Tensor, context: Tensor | None) -> Tensor | None:
        """`(rows, *event)` gradient estimates, differentiable in the network; None without grad."""
        assert isinstance(choice, _Coupled)
        leaf = choice.leaf
        if not leaf.requires_grad:
            return None
        each = costs.view(len(leaf), -1)
        modelled = self._evaluate(choice.soft, context)  # (rows, 2)
        control = modelled[:, 1]
        slope = differentiate(modelled[:, 0] - control, leaf, _NETWORK, create=True)
        if self.strength:
            control = control + self.strength * each[:, 2].detach()
            slope = slope + self.strength * differentiate(
                each[:, 1] - each[:, 2], leaf, cost_needs("RELAX")
            )
        signal = each[:, 0].detach() - control
        score = differentiate(choice.log_prob, leaf, "")
        shape = (-1, *[1] * (leaf.dim() - 1))
        signal = torch.where(signal.isfinite(), signal, 0.0).view(shape)
        return torch.where(leaf.detach().isfinite(), signal * score + slope, 0.0)

    def surrogate(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor:
        assert isinstance(choice, _Coupled)
        support, scores = choice.support, choice.scores
        weighed = torch.where(support.weights == 0, 0.0, support.weights * costs)
        value = sum_rows(weighed, support.row, support.rows)
        if baseline is None:
            return value
        finite = torch.where(scores.detach().isinf(), 0.0, scores)
        moved = (finite - finite.detach()) * baseline.detach().to(finite)
        return value + moved.flatten(1).sum(1)

    def error(self, choice: Choice, costs: Tensor, baseline: Tensor | None) -> Tensor | None:
        """(rows,) squared norm of the gradient estimates."""
        if baseline is None or not baseline.requires_grad:
            return None
        return baseline.square().flatten(1).sum(1)

    def _evaluate(self, soft: Tensor, context: Tensor | None) -> Tensor:
        """(rows, 2) output of the network for the relaxed samples."""
        inputs = soft.flatten(2)
        if context is not None:
            own = context.flatten(1).unsqueeze(1).expand(-1, 2, -1)
            inputs = torch.cat([inputs, own.to(inputs)], -1)
        inputs = inputs.flatten(0, 1)
        found: Tensor = self.network(inputs.to(next(_parameters(self.network), inputs)))
        if found.numel() != len(inputs):
            raise ValueError(
                f"the network of RELAX must return one number for each of {len(inputs)} relaxed "
                f"samples, got shape {tuple(found.shape)}"
            )
        return found.reshape(-1, 2)


def _parameters(network: nn.Module) -> Iterator[Tensor]:
    return (own for own in network.parameters() if own.is_floating_point())
