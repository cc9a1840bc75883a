"""Losses over very many items from a few that are drawn."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import fits, jagged
from fewfold.losses.sampled_scores import Anchored, Items, Jagged, log_sum_picked, picked_scores
from fewfold.losses.targets import check_options
from fewfold.sampling.proposal import Proposal, check_ids

__all__ = ["noise_contrastive_loss", "sampled_softmax_loss"]

Reduce = Literal["none", "mean", "sum"]


def sampled_softmax_loss(
    queries: Tensor,
    items: Items,
    positives: Tensor | Jagged,
    proposal: Proposal,
    *,
    samples: int = 200,
    shared: bool = False,
    remove_hits: bool = False,
    ignore_index: int = -100,
    reduction: Reduce = "mean",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Softmax cross-entropy over all items, estimated from `samples` of them.

    With scores o = query . item and n draws Phi from the proposal q(. | query), the loss of a
    positive i is

        -o_i + log( 1/n ( exp(o_i) / q_i + sum_{j in Phi} exp(o_j) / q_j ) ),

    the cross-entropy with its normaliser estimated, the positive counting as one more draw. It
    tends to that of the full softmax as n grows, whatever the proposal; a good one needs few.
    Only rows of the table that are positives or were drawn are read, and only they get a gradient,
    a sparse one if the table is a leaf: see `fewfold.optim`.

    Args:
        queries: (B, d), or any leading shape in the place of B.
        items: the table (M, d), an `nn.Embedding`, or a function from ids to their vectors.
        positives: (B,), (B, m), or any number per row as a pair: values (n,), offsets (B + 1,).
        proposal: fitted to the items.
        samples: drawn per query, or for all of them if `shared`.
        shared: draw once for the whole batch, from the mixture of its queries' proposals.
        remove_hits: leave out draws that are positives of the same row.
        ignore_index: a positive with this id is none: padding.
        reduction: "none" (shape of the positives, 0 where ignored; (n,) if jagged), "mean" or "sum"
            over positives.
        generator: where the draws come from.

    Example:
        >>> import torch, fewfold as ff
        >>> generator = torch.Generator().manual_seed(0)
        >>> items = torch.randn(1000, 8, generator=generator)
        >>> queries = torch.randn(2, 8, generator=generator)
        >>> positives = torch.tensor([3, 14])
        >>> proposal = ff.MultiIndex(codewords=8).fit(items)
        >>> loss = ff.sampled_softmax_loss(
        ...     queries, items, positives, proposal, samples=500, generator=generator)
        >>> full = torch.nn.functional.cross_entropy(queries @ items.T, positives)
        >>> bool((loss - full).abs() < 0.3)
        True

    Reference: Bengio and Senecal, "Adaptive importance sampling to accelerate training of a neural
    probabilistic language model", 2008.
    """
    given = _positives(positives, queries, _checked_size(items, queries), ignore_index)
    drawn = _draw(queries, given, proposal, samples, shared, remove_hits, generator)
    rest, scores = log_sum_picked(drawn.queries, items, drawn.ids, drawn.log_q, drawn.positives)
    rest = rest.index_select(0, drawn.row)  # all positives of a row share its draws
    losses = F.softplus(rest - scores + drawn.positive_q) - (math.log(samples) + drawn.positive_q)
    return given.reduced(losses, reduction)


def noise_contrastive_loss(
    queries: Tensor,
    items: Items,
    positives: Tensor | Jagged,
    proposal: Proposal,
    *,
    samples: int = 200,
    shared: bool = False,
    remove_hits: bool = False,
    ignore_index: int = -100,
    reduction: Reduce = "mean",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Tell positives from draws of the proposal: noise-contrastive estimation.

    With c = o - log(samples q), the loss of a positive i is

        -log sigmoid(c_i) - sum_{j in Phi} log sigmoid(-c_j),

    whose optimum has exp(o) as normalised probabilities. Arguments as in `sampled_softmax_loss`.

    Example:
        >>> import torch, fewfold as ff
        >>> items = torch.eye(3)
        >>> noise = ff.Uniform().fit(items)
        >>> ff.noise_contrastive_loss(10 * items, items, torch.arange(3), noise, samples=1) > 0
        tensor(True)

    Reference: Gutmann and Hyvarinen, "Noise-contrastive estimation of unnormalized statistical
    models", 2012.
    """
    given = _positives(positives, queries, _checked_size(items, queries), ignore_index)
    drawn = _draw(queries, given, proposal, samples, shared, remove_hits, generator)
    negatives, scores = picked_scores(drawn.queries, items, drawn.ids, drawn.positives)
    shift = math.log(samples)
    noise = F.softplus(negatives - drawn.log_q - shift).sum(1).index_select(0, drawn.row)
    return given.reduced(F.softplus(shift + drawn.positive_q - scores) + noise, reduction)


@dataclass(frozen=True)
class _Positives:
    """The positives of all rows, one after the other, and the shape they came in."""

    values: Tensor  # (n,)
    offsets: Tensor  # (B + 1,)
    shape: torch.Size
    kept: Tensor | None  # of that shape: which are not padding; None: all
    items: int | None  # how many there are to choose from; None: not known

    def reduced(self, losses: Tensor, reduction: Reduce) -> Tensor:
        check_options(reduction, 0.0)
        if reduction == "none":
            if self.kept is None:
                return losses.view(self.shape)
            return losses.new_zeros(self.shape).masked_scatter(self.kept, losses)
        if reduction == "sum" or len(losses) == 0:
            return losses.sum()
        return losses.mean()


@dataclass(frozen=True)
class _Drawn:
    """What the losses are computed from: a batch and its draws."""

    queries: Tensor  # (B, d)
    positives: Jagged
    row: Tensor  # (n,): whose each positive is
    positive_q: Tensor  # (n,) log q
    ids: Tensor  # (B, samples), or (samples,) for all
    log_q: Tensor  # of the same shape


def _draw(
    queries: Tensor,
    positives: _Positives,
    proposal: Proposal,
    samples: int,
    shared: bool,
    remove_hits: bool,
    generator: torch.Generator | None,
) -> _Drawn:
    if not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive int, got {samples!r}")
    values, offsets = positives.values, positives.offsets
    queries = queries.flatten(0, -2)
    shared = shared and len(queries) > 0  # there is no mixture of nothing, and nothing to draw for
    row = torch.repeat_interleave(offsets.diff(), output_size=len(values))
    given = proposal.given(queries.detach(), shared=shared)
    ids, log_q = given.sample(samples, generator=generator)
    positive_q = given.log_prob(values, row)
    _check_drawn(ids, log_q, positive_q, proposal, len(queries), samples, len(values))
    _check_values(ids, log_q, positive_q, proposal, positives.items)
    never = positive_q == -torch.inf
    if never.any():
        raise ValueError(
            f"item {values[never][0].item()} is a positive but the proposal never draws it; "
            "give it a count, for example counts + 1"
        )
    if remove_hits:
        hit = _hits(ids, values, row, len(queries))
        # Not inf: a row that loses all its draws would have no gradient to speak of, but a NaN.
        log_q = log_q.expand(hit.shape).masked_fill(hit, torch.finfo(log_q.dtype).max / 2)
    return _Drawn(queries, (values, offsets), row, positive_q, ids, log_q)


def _check_drawn(
    ids: Tensor, log_q: Tensor, positive_q: Tensor, proposal: Proposal, rows: int, samples: int,
    positives: int,
) -> None:  # fmt: skip
    """Raise unless a proposal, perhaps of the user's own, has answered in the shapes it must."""
    name = type(proposal).__name__
    for what, answer in (("ids", ids), ("log q", log_q), ("log q of positives", positive_q)):
        if not isinstance(answer, Tensor):
            raise TypeError(f"{name} must return {what} as a tensor, got {type(answer).__name__}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must draw whole numbers as ids, got {ids.dtype}")
    if ids.shape not in ((rows, samples), (samples,)):
        raise ValueError(
            f"{name} must draw ids ({rows}, {samples}), or ({samples},) if shared, "
            f"got {tuple(ids.shape)}"
        )
    if not fits(log_q.shape, (rows, samples)):
        raise ValueError(f"log q of {name} must be shaped like its ids, got {tuple(log_q.shape)}")
    if positive_q.shape != (positives,):
        raise ValueError(
            f"{name} must answer ids ({positives},) with log q of that shape, "
            f"got {tuple(positive_q.shape)}"
        )


def _check_values(
    ids: Tensor, log_q: Tensor, positive_q: Tensor, proposal: Proposal, items: int | None
) -> None:
    """Raise unless the ids drawn are of items, and all log q are numbers."""
    name = type(proposal).__name__
    if items is not None:
        check_ids(ids, items, f"{name} must draw ids", "; fit it to the items of the loss")
    for what, answer in (("log q", log_q), ("log q of positives", positive_q)):
        fine = answer < torch.inf  # which NaN is not
        if not bool(fine.all()):
            flat = answer.flatten()
            at = int(fine.flatten().logical_not().nonzero()[0])
            raise ValueError(
                f"{what} of {name} must be numbers below inf, got {flat[at].item()} at position "
                f"{at}; check its sample and log_prob"
            )


def _checked_size(items: Items, queries: Tensor) -> int | None:
    """How many items there are, None if a function has them; an error if queries do not fit."""
    if isinstance(items, nn.Linear):
        raise TypeError(
            "items must be a table (M, d), an nn.Embedding, or a function from ids to their "
            "vectors; an nn.Linear maps vectors. Write items=linear.weight"
        )
    if isinstance(items, Anchored):
        size, d = items.num_embeddings, items.anchors.shape[1]
    elif isinstance(items, (nn.Embedding, Tensor)):
        table = items.weight if isinstance(items, nn.Embedding) else items
        if table.dim() != 2:
            raise ValueError(f"items must be a table (M, d), got shape {tuple(table.shape)}")
        size, d = table.shape
    elif callable(items):
        return None
    else:
        raise TypeError(
            "items must be a table (M, d), an nn.Embedding, or a function from ids to their "
            f"vectors, got {type(items).__name__}"
        )
    if isinstance(queries, Tensor) and queries.dim() > 1 and queries.shape[-1] != d:
        raise ValueError(
            f"queries must be (B, {d}), as wide as the items ({size}, {d}), "
            f"got {tuple(queries.shape)}"
        )
    return size


def _positives(
    positives: Tensor | Jagged, queries: Tensor, size: int | None, ignore_index: int
) -> _Positives:
    if not isinstance(queries, Tensor) or queries.dim() < 2 or not queries.is_floating_point():
        came = tuple(queries.shape) if isinstance(queries, Tensor) else type(queries).__name__
        raise ValueError(f"queries must be a floating-point tensor (B, d), got {came}")
    lead = queries.shape[:-1]
    rows = lead.numel()
    if isinstance(positives, Tensor):
        shape = positives.shape
        if shape[: len(lead)] != lead or len(shape) > len(lead) + 1:
            stem = ", ".join(map(str, lead))
            raise ValueError(
                f"positives must be ({stem},), ({stem}, m) or a pair (values, offsets), "
                f"got shape {tuple(shape)}"
            )
        each = shape[-1] if len(shape) > len(lead) else 1
        positives = positives.reshape(-1), torch.arange(rows + 1) * each
    else:
        shape = positives[0].shape
    values, offsets = jagged(*positives, rows=rows)
    if len(values) == 0:
        return _Positives(values, offsets, shape, None, size)
    low, high = torch.aminmax(values)
    real = values != ignore_index if low <= ignore_index <= high else None
    if size is not None and (low < 0 or high >= size):
        bad = (values < 0) | (values >= size)
        if real is not None:
            bad &= real
        if bad.any():
            at = int(bad.nonzero()[0])
            raise ValueError(
                f"positives must be ids between 0 and {size - 1}, got {values[at].item()} at {at}"
            )
    if real is None:
        return _Positives(values, offsets, shape, None, size)
    offsets = F.pad(real.cumsum(0), (1, 0))[offsets]
    return _Positives(values[real], offsets, shape, real.view(shape), size)


def _hits(ids: Tensor, values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Which draws (rows, n) are positives of their row."""
    if ids.numel() == 0:
        return torch.zeros(rows, ids.shape[-1], dtype=torch.bool)
    span = int(max(ids.max(), values.max() if len(values) else 0)) + 1
    mine = (row * span + values).sort().values
    drawn = torch.arange(rows)[:, None] * span + ids
    if len(mine) == 0:
        return torch.zeros_like(drawn, dtype=torch.bool)
    place = torch.searchsorted(mine, drawn).clamp_(max=len(mine) - 1)
    return mine[place] == drawn
