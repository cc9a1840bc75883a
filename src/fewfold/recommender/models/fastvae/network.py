"""FastVAE: a variational autoencoder of users' items whose steps cost the same at any catalogue."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._random import randn
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.models.fastvae.perceptron import Perceptron
from fewfold.recommender.models.fastvae.shortcut import Shortcut
from fewfold.recommender.models.fastvae.tables import DenseTables, Tables, drop_items
from fewfold.recommender.ranking.exact_ranking import DotProduct, top_k
from fewfold.recommender.ranking.sharded_ranking import sharded_top_k
from fewfold.sampling.batch_part import BatchPart
from fewfold.sampling.item_rows import ItemRows

__all__ = ["EncoderOptions", "FastVAE"]


_LOG_VAR = -8.0, 4.0  # smallest and largest log variance of the latent


class EncoderOptions(TypedDict, total=False):
    """Keyword arguments of `FastVAE` that do not concern its tables; it describes them."""

    layers: int
    dropout: float
    encoder: Perceptron | None
    seed: int


class FastVAE(nn.Module):
    """Autoencoder from a user's items through a Gaussian latent to scores of all items.

        h_0 = f( sum_{j in user} E_j / sqrt(n) + b ),    f(x) = layer_norm(swish(x)),
        h_l = f( W_l h_{l-1} + h_0 + ... + h_{l-1} ),    mu, log var = W h + c,
        z ~ N(mu, var),    score_i = z . q_i + bias_i  (+ shortcut).

    Trained on  -sum_{i in user} log softmax(score)_i + beta KL( N(mu, var) || N(0, 1) )  with half
    of the input items dropped. Both tables get sparse gradients and the input is a bag of ids,
    never a dense row, so that with a `SampledSoftmax` nothing depends on the number of items.

    The vectors E_j and q_i belong to `tables`: `DenseTables`, or `AnchoredTables` of fewer numbers.
    Their parameters have the same names in `state_dict` as attributes of the model would have.

    Args:
        items: number of items, for dense tables; or the tables themselves. New ones get their
            weights here, from the seed; those with weights keep them.
        hidden: width of the encoder's table; 200 by default. Tables have their own.
        latent: width of the latent, 63 by default; the decoder's table has one column more, the
            bias, so that one less than a multiple of sixteen is fastest. Tables have their own.
        layers: of the encoder, beyond its table; they cost the same at any number of items.
        dropout: share of the input items left out in training.
        encoder: layers of another kind: a `Perceptron`, as published.
        seed: of the initial weights.

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

    def __init__(
        self,
        items: int | Tables,
        *,
        hidden: int | None = None,
        latent: int | None = None,
        layers: int = 1,
        dropout: float = 0.5,
        encoder: Perceptron | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.tables = _tables(items, hidden=hidden, latent=latent)
        hidden, latent = self.tables.hidden, self.tables.latent
        whole_number(layers, "layers", least=0)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.dropout, self.latent, self.encoder = dropout, latent, encoder
        self.code = latent if encoder is None else encoder.bottleneck or latent
        generator, new = torch.Generator().manual_seed(seed), not self.tables.initialized
        if new:
            self.tables.reset_inputs(generator)
        self.shift = nn.Parameter(torch.zeros(hidden))
        self.depth, kind = layers, _Dense if encoder is None else encoder.layers
        self.layers = kind(hidden, layers, generator)
        self.posterior = nn.Linear(hidden, 2 * self.code)
        if new:
            self.tables.reset_outputs(generator)
        with torch.no_grad():
            self.posterior.weight.normal_(
                0, (2 / (hidden + 2 * self.code)) ** 0.5, generator=generator
            )
            self.posterior.weight[self.code :] *= 0.1
            self.posterior.bias.zero_()
        self.expand: nn.Linear | None = None
        if encoder is not None and encoder.bottleneck is not None:
            self.expand = nn.Linear(self.code, latent)
            with torch.no_grad():
                self.expand.weight.normal_(0, self.code**-0.5, generator=generator)
                self.expand.bias.zero_()
        self.shortcut: Shortcut | None = None
        self.register_state_dict_post_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)

    def __getattr__(self, name: str) -> Any:
        # Parameters of the tables are attributes of the model, under their names in `state_dict`.
        tables = self.__dict__.get("_modules", {}).get("tables")
        if tables is not None and name in (*tables._parameters, *tables._modules):
            return getattr(tables, name)
        return super().__getattr__(name)

    @property
    def count(self) -> int:
        """Number of items."""
        return self.tables.count

    @property
    def device(self) -> torch.device:
        """Device of the parameters, to which histories are moved."""
        return self.shift.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the shortcut as well."""
        if self.shortcut is not None:
            linear = self.shortcut
            self.shortcut = replace(linear, table=fn(linear.table), scale=fn(linear.scale))
        super()._apply(fn, recurse)
        return self

    def finalize(self) -> None:
        """Bring the tables of a trained model into the form in which they are saved."""
        self.tables.finalize()

    def encoder_state(self) -> dict[str, Tensor]:
        """Return `state_dict` without the tables."""
        tables = self.tables.state_dict()
        return {name: value for name, value in self.state_dict().items() if name not in tables}

    def load_encoder_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `encoder_state` returned; the tables stay."""
        self.load_state_dict({**self.tables.state_dict(), **state})

    def entries(self) -> Tensor:
        """The encoder's item vectors, (items, hidden), without a gradient."""
        return self.tables.input_vectors()

    def outputs(self) -> Tensor:
        """The decoder's item vectors, bias last, (items, latent + 1), without a gradient."""
        return self.tables.output_vectors()

    def encode(self, history: Jagged) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latent, (rows, latent) each.

        With the bottleneck of a `Perceptron` they have its width.
        """
        mean, log_var = self._encoded(self.bag(history.to(self.device))).split(self.code, 1)
        return mean, log_var.clamp(*_LOG_VAR)

    def bag(self, history: Jagged) -> Tensor:
        """Sum of the input vectors of each row's items over the root of their number."""
        return self.tables.bag(history, self._scale(history))

    def _scale(self, history: Jagged) -> Tensor:
        return history.lengths.clamp(min=1).to(self.shift.dtype).rsqrt()

    def _encoded(self, bag: Tensor) -> Tensor:
        """Return mean and log variance of the latent, (rows, 2 latent)."""
        posterior: Tensor = self.posterior(self.layers(bag + self.shift))
        return posterior

    def mean_queries(self, bag: Tensor) -> Tensor:
        """User vectors (rows, latent + 1) at the mean of the latent, from `bag`."""
        return self._expanded(_with_one(self._encoded(bag)[:, : self.code]))

    def _expanded(self, queries: Tensor) -> Tensor:
        """Map latents with a one at the end to the width of the item vectors."""
        return queries if self.expand is None else _with_one(self.expand(queries[:, :-1]))

    def with_tables(self, tables: Tables) -> "FastVAE":
        """Return a network with other tables, which have weights, and the same encoder."""
        other = FastVAE(tables, layers=self.depth, dropout=self.dropout, encoder=self.encoder)
        other.load_encoder_state(self.encoder_state())
        return other

    def loss(
        self,
        history: Jagged,
        objective: Objective,
        *,
        beta: float | Tensor = 0.4,
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The negative evidence lower bound, averaged over users, with input items dropped.

        The weight beta of the divergence is one number, or (rows,) one for each user. The
        expectation of the reconstruction is the mean of `draws` latents. If the tables are in
        several processes, each is called with the same users, encodes a part of them, and returns
        a part of the average.
        """
        rows, group = len(history.lengths), self.tables.group
        if isinstance(beta, Tensor) and beta.shape not in ((), (rows,)):
            raise ValueError(f"beta must be a number or ({rows},), got shape {tuple(beta.shape)}")
        if group.world > 1 and generator is None:
            raise ValueError("several processes need the same random numbers; give a generator")
        if group.world > 1 and (draws > 1 or self.encoder is not None):
            raise ValueError("several processes train with one draw and without a Perceptron")
        history = history.to(self.device)
        dropped, own = drop_items(history, self.dropout, generator), group.share(rows)
        bag = self.tables.batch_bag(dropped, self._scale(dropped))
        posterior = self._encoded(
            bag if self.encoder is None else self.encoder.drop(bag, generator)
        )
        part = None if group.world == 1 else BatchPart(own.start, rows)
        queries, divergence = _latent(posterior, generator, part)
        reconstruction = self.tables.loss(self._expanded(queries), objective, history, generator)
        for _ in range(draws - 1):
            queries, _ = _latent(posterior, generator, part)
            more = self.tables.loss(self._expanded(queries), objective, history, generator)
            reconstruction = reconstruction + more
        if draws > 1:
            reconstruction = reconstruction / draws
        if isinstance(beta, Tensor) and beta.dim():
            beta = beta[own].to(divergence)
        total: Tensor = (reconstruction + (beta * divergence).sum()) / max(rows, 1)
        return total

    @torch.no_grad()
    def queries(self, history: Jagged) -> Tensor:
        """User vectors, whose inner products with `vectors` are the scores."""
        history = history.to(self.device)
        queries, linear = self.mean_queries(self.bag(history)), self._linear()
        return queries if linear is None else torch.cat([queries, linear.queries(history)], 1)

    def _linear(self) -> Shortcut | None:
        """Return the shortcut, moved to the parameters if it was assigned from elsewhere."""
        if self.shortcut is not None and self.shortcut.table.device != self.device:
            self.shortcut = self.shortcut.to(self.device)
        return self.shortcut

    @property
    def vectors(self) -> Tensor:
        """Item vectors, (items, width of the queries)."""
        vectors, linear = self.outputs(), self._linear()
        return vectors if linear is None else torch.cat([vectors, linear.vectors], 1)

    @property
    def own_vectors(self) -> Tensor:
        """Item vectors of the items that this process has."""
        own, linear = ItemRows.of(self.tables.output_rows()).local, self._linear()
        return own if linear is None else torch.cat([own, linear.own_vectors], 1)

    @property
    def width(self) -> int:
        """Number of columns of the queries and the item vectors."""
        return self.latent + 1 + (0 if self.shortcut is None else self.shortcut.table.shape[1])

    def recommend(self, history: Interactions | Jagged, k: int) -> Tensor:
        """The best k items for each row, without those in it; -1 where none is left."""
        known = history.jagged if isinstance(history, Interactions) else history
        group = self.tables.group
        if group.world > 1:
            own = self.own_vectors
            return sharded_top_k(group, self.queries, own, known, k, exclude=known).ids
        found = top_k(DotProduct(self.queries(known), self.vectors), k, exclude=known).ids
        return found.to(known.values.device)


def _tables(items: int | Tables, **sizes: int | None) -> Tables:
    """Return the tables, or new dense ones of these sizes."""
    given = {name: size for name, size in sizes.items() if size is not None}
    if not isinstance(items, Tables):
        return DenseTables(items, **given)
    if given:
        raise TypeError(
            f"the tables have their own {', '.join(given)}; write FastVAE(tables) without"
        )
    return items


def _without_prefix(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """Name the tables' tensors in a state_dict as if they were the model's own."""
    start = f"{prefix}tables."
    for name in [name for name in state if name.startswith(start)]:
        state[prefix + name.removeprefix(start)] = state.pop(name)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Undo `_without_prefix` before a state_dict is loaded."""
    tables = module.get_submodule("tables")
    for name in tables.state_dict():
        if prefix + name in state:
            state[f"{prefix}tables.{name}"] = state.pop(prefix + name)


def _with_one(latent: Tensor) -> Tensor:
    return F.pad(latent, (0, 1), value=1.0)


class _Dense(nn.Module):
    """Linear layers that add the outputs of all layers before, each with a swish and a norm."""

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


def _latent(
    posterior: Tensor, generator: torch.Generator | None, part: BatchPart | None = None
) -> tuple[Tensor, Tensor]:
    """Sample queries from the posterior; return them and the divergence from the prior, (rows,)."""
    noise = _noise(posterior, generator, part)
    if dispatch.ready(posterior):
        sample: tuple[Tensor, Tensor] = _Latent.apply(posterior, noise)
        return sample
    mean, log_var = posterior.tensor_split(2, 1)
    log_var = log_var.clamp(*_LOG_VAR)
    divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(1) / 2
    return _with_one(mean + noise * (log_var / 2).exp()), divergence


def _noise(posterior: Tensor, generator: torch.Generator | None, part: BatchPart | None) -> Tensor:
    """Return normal numbers, (rows, latent), for these rows of a batch."""
    rows, width = posterior.shape
    shape = rows if part is None else part.rows, width // 2
    whole = randn(shape, posterior.device, dtype=posterior.dtype, generator=generator)
    return whole if part is None else whole[part.slice(rows)]


class _Latent(torch.autograd.Function):
    """`_latent` with a backward pass of its own: fewer small operations per step."""

    @staticmethod
    def forward(ctx: Any, posterior: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = posterior.tensor_split(2, 1)
        log_var = raw.clamp(*_LOG_VAR)
        deviation = (log_var / 2).exp_()
        spread = noise * deviation
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
        to_log_var.mul_((raw == log_var) / 2)  # no gradient where it was clamped
        return grad, None
