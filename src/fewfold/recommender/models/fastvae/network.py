"""FastVAE: a variational autoencoder of users' items, its cost that of the items it touches."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold.embeddings.sparsify.growth import AnchorGrowth
from fewfold.losses.named import entmax_loss
from fewfold.losses.sampled import sampled_softmax_loss
from fewfold.losses.sampled_scores import Items
from fewfold.optim.row_optimizer import RowOptimizer
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.encoder_bag import bags, thinned
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.ranking.top_k import DotProduct, top_k
from fewfold.sampling.proposal import Proposal

__all__ = ["Entmax", "FastVAE", "FullSoftmax", "Objective", "SampledSoftmax"]


_LOG_VAR = -8.0, 4.0  # of the latent, at least and at most


class Objective(Protocol):
    """How the decoder is told about a user's items: a loss per row, summed over its items."""

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        """Queries (B, d), items (M, d) and each row's items to a loss, summed over all of them."""


@dataclass(frozen=True)
class FullSoftmax:
    """Multinomial likelihood over all items: Mult-VAE. Costs batch x items."""

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        log_probs = (queries @ items.T).log_softmax(1)
        return -log_probs[history.row, history.values].sum()


@dataclass(frozen=True)
class SampledSoftmax:
    """The same from a few items, drawn from a proposal that is fitted and refreshed in training."""

    proposal: Proposal
    samples: int = 200
    shared: bool = False

    def __call__(
        self, queries: Tensor, items: Items, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        return sampled_softmax_loss(
            queries, items, (history.values, history.offsets), self.proposal, samples=self.samples,
            shared=self.shared, reduction="sum", generator=generator,
        )  # fmt: skip


@dataclass(frozen=True)
class Entmax:
    """The Fenchel-Young loss of entmax, a row's items in equal parts. Costs batch x items."""

    alpha: float = 1.5

    def __call__(
        self, queries: Tensor, items: Tensor, history: Jagged, generator: torch.Generator | None
    ) -> Tensor:
        lengths = history.lengths
        target = queries.new_zeros(len(queries), len(items))
        target[history.row, history.values] = 1 / lengths[history.row].to(queries)
        some = lengths > 0  # an empty row has no target
        losses = entmax_loss((queries @ items.T)[some], target[some], self.alpha, reduction="none")
        return (losses * lengths[some]).sum()


class FastVAE(nn.Module):
    """A user's items through a Gaussian latent and back to scores of all items.

        h_0 = f( sum_{j in user} E_j / sqrt(n) + b ),    f(x) = layer_norm(swish(x)),
        h_l = f( W_l h_{l-1} + h_0 + ... + h_{l-1} ),    mu, log var = W h + c,
        z ~ N(mu, var),    score_i = z . q_i + bias_i  (+ shortcut).

    Trained on  -sum_{i in user} log softmax(score)_i + beta KL( N(mu, var) || N(0, 1) )  with half
    of the input items dropped. Both tables get sparse gradients and the input is a bag of ids,
    never a dense row, so that with a `SampledSoftmax` nothing depends on the number of items.

    Args:
        items: how many.
        hidden: width of the encoder's table.
        latent: width of the latent; the decoder's table has one column more, the bias, so that one
            less than a multiple of sixteen is best.
        layers: of the encoder, beyond its table; they cost the same at any number of items.
        dropout: share of the input items left out in training.
        seed: of the first weights.

    Example:
        >>> import fewfold as ff
        >>> log = ff.recommender.Interactions.from_pairs([0, 0, 1, 1], [0, 1, 2, 3])
        >>> model = ff.recommender.FastVAE(items=4, hidden=8, latent=2)
        >>> from fewfold.recommender import FullSoftmax, train
        >>> _ = train(model, log, objective=FullSoftmax(), epochs=200, progress=False)
        >>> from fewfold.recommender import Jagged
        >>> model.recommend(Jagged(log.ids[:1], log.offsets[:1].new_tensor([0, 1])), 1)
        tensor([[1]])

    Reference: Chen, Lian, Jin, Huang, Zheng and Chen, "Fast Variational AutoEncoder with
    Inverted Multi-Index for Collaborative Filtering", WWW 2022; Liang, Krishnan, Hoffman and
    Jebara, "Variational autoencoders for collaborative filtering", WWW 2018.
    """

    sparse = True  # gradients of the input table; a dense optimiser wants False

    def __init__(
        self,
        items: int,
        *,
        hidden: int = 200,
        latent: int = 63,
        layers: int = 1,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("items", items), ("hidden", hidden), ("latent", latent)):
            whole_number(value, name)
        whole_number(layers, "layers", least=0)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.dropout, self.latent = dropout, latent
        generator = torch.Generator().manual_seed(seed)
        self._make_inputs(items, hidden, generator)
        self.shift = nn.Parameter(torch.zeros(hidden))
        self.layers = _Dense(hidden, layers, generator)
        self.posterior = nn.Linear(hidden, 2 * latent)
        self._make_items(items, latent, generator)
        with torch.no_grad():
            self.posterior.weight.normal_(
                0, (2 / (hidden + 2 * latent)) ** 0.5, generator=generator
            )
            self.posterior.weight[latent:] *= 0.1
            self.posterior.bias.zero_()
        self.shortcut: Shortcut | None = None

    def _make_inputs(self, items: int, hidden: int, generator: torch.Generator) -> None:
        table = dispatch.table(items, hidden).normal_(0, hidden**-0.5, generator=generator)
        self.inputs = nn.Parameter(table)

    @torch.no_grad()
    def _make_items(self, items: int, latent: int, generator: torch.Generator) -> None:
        # The last column is the bias, met by a one at the end of every query.
        self.items = nn.Parameter(dispatch.table(items, latent + 1).zero_())
        self.items[:, :latent].normal_(0, 0.5 * latent**-0.5, generator=generator)

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self.items)

    @property
    def tables(self) -> list[nn.Parameter]:
        """The parameters with a row per item, whose gradients are sparse."""
        return [self.inputs, self.items]

    @property
    def shared_parameters(self) -> list[nn.Parameter]:
        """Those that move the vectors of all items at once; none here."""
        return []

    def kept_sparse(
        self, optimizer: RowOptimizer, steps: int, counts: Tensor
    ) -> torch.optim.Optimizer:
        """The optimiser of the tables, which are dense here."""
        return optimizer

    def growth(self) -> AnchorGrowth | None:
        """What makes tables larger and smaller in training; nothing here."""
        return None

    def settle(self) -> None:
        """After training: bring the tables into the form in which they are kept, as they are."""

    def table_state(self) -> dict[str, Tensor]:
        """The part of `state_dict` that has a row per item."""
        return {"inputs": self.inputs, "items": self.items}

    def state(self) -> dict[str, Tensor]:
        """What is kept of `state_dict` as it is."""
        return self.state_dict()

    def entries(self) -> Tensor:
        """The encoder's item vectors, (items, hidden), without a gradient."""
        return self.inputs.detach()

    def outputs(self) -> Tensor:
        """The decoder's item vectors, bias last, (items, latent + 1), without a gradient."""
        return self.items.detach()

    def encode(self, history: Jagged) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latent, (rows, latent) each."""
        mean, log_var = self._posterior(history).split(self.latent, 1)
        return mean, log_var.clamp(*_LOG_VAR)

    def _posterior(self, history: Jagged) -> Tensor:
        by = history.lengths.clamp(min=1).to(self.shift.dtype).rsqrt()
        posterior: Tensor = self.posterior(self.layers(self._bag(history, by) + self.shift))
        return posterior

    def _bag(self, history: Jagged, by: Tensor) -> Tensor:
        return bags(self.inputs, history, by, sparse=self.sparse)

    def _fit(
        self,
        queries: Tensor,
        objective: Objective,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Tensor:
        return objective(queries, self.items, history, generator)

    def loss(
        self,
        history: Jagged,
        objective: Objective,
        *,
        beta: float | Tensor = 0.4,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The negative evidence bound, per user on average, with input items dropped.

        The weight beta of the divergence is one number, or (rows,) one for each user.
        """
        posterior = self._posterior(thinned(history, self.dropout, generator))
        queries, divergence = _latent(posterior, generator)
        rows = max(len(posterior), 1)
        if isinstance(beta, Tensor) and beta.shape not in ((), (len(posterior),)):
            raise ValueError(f"beta must be a number or ({rows},), got shape {tuple(beta.shape)}")
        fit = self._fit(queries, objective, history, generator)
        total: Tensor = (fit + (beta * divergence).sum()) / rows
        return total

    @torch.no_grad()
    def queries(self, history: Jagged) -> Tensor:
        """User vectors, for which `vectors` gives the scores as inner products."""
        queries = _with_one(self.encode(history)[0])
        return (
            queries
            if self.shortcut is None
            else torch.cat([queries, self.shortcut.queries(history)], 1)
        )

    @property
    def vectors(self) -> Tensor:
        """Item vectors, (items, width of the queries)."""
        vectors = self.outputs()
        return vectors if self.shortcut is None else torch.cat([vectors, self.shortcut.vectors], 1)

    def recommend(self, history: Interactions | Jagged, k: int) -> Tensor:
        """The best k items for each row, without those in it; -1 where none is left."""
        known = history.jagged if isinstance(history, Interactions) else history
        return top_k(DotProduct(self.queries(known), self.vectors), k, exclude=known).ids


def _with_one(latent: Tensor) -> Tensor:
    return F.pad(latent, (0, 1), value=1.0)


class _Dense(nn.Module):
    """Layers that see the sum of all before them, each with a swish and a norm."""

    def __init__(self, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))
        for layer in self.layers:
            nn.init.normal_(layer.get_parameter("weight"), 0, width**-0.5, generator=generator)
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Tensor) -> Tensor:
        hidden = total = self.norms[0](F.silu(x))
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            hidden = norm(F.silu(layer(hidden) + total))
            total = total + hidden
        last: Tensor = hidden
        return last


def _latent(posterior: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Queries drawn from Gaussians, and the divergence of each of these from the prior, (rows,)."""
    if dispatch.ready(posterior):
        both: tuple[Tensor, Tensor] = _Latent.apply(posterior, generator)
        return both
    mean, log_var = posterior.tensor_split(2, 1)
    log_var = log_var.clamp(*_LOG_VAR)
    noise = torch.empty_like(mean).normal_(generator=generator)
    divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(1) / 2
    return _with_one(mean + noise * (log_var / 2).exp()), divergence


class _Latent(torch.autograd.Function):
    """The same, thirty small operations of a step as a dozen."""

    @staticmethod
    def forward(
        ctx: Any, posterior: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        mean, raw = posterior.tensor_split(2, 1)
        log_var = raw.clamp(*_LOG_VAR)
        deviation = (log_var / 2).exp_()
        spread = torch.empty_like(mean).normal_(generator=generator).mul_(deviation)
        variance = deviation.square_()
        queries = mean.new_ones(len(mean), mean.shape[1] + 1)
        torch.add(mean, spread, out=queries[:, :-1])
        divergence = (torch.addcmul(variance, mean, mean) - log_var - 1).sum(1) / 2
        ctx.save_for_backward(posterior, log_var, spread, variance)
        return queries, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, divergence_by: Tensor) -> tuple[Tensor | None, ...]:
        posterior, log_var, spread, variance = ctx.saved_tensors
        mean, raw = posterior.tensor_split(2, 1)
        grad = torch.empty_like(posterior)
        to_mean, to_log_var = grad.tensor_split(2, 1)
        divergence_by = divergence_by.unsqueeze(1)
        torch.addcmul(by[:, :-1], mean, divergence_by, out=to_mean)
        torch.addcmul(by[:, :-1] * spread, variance - 1, divergence_by, out=to_log_var)
        to_log_var.mul_((raw == log_var) / 2)  # nothing where it was clamped
        return grad, None
