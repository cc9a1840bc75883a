"""Losses over large numbers of items, estimated from samples of a proposal."""

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

__all__ = [
    "check_positive_probabilities",
    "noise_contrastive_loss",
    "sampled_softmax_loss",
    "softmax_losses",
]

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

    With scores o = query . item and n samples Phi of the proposal q(. | query), the loss of a
    positive i is

        -o_i + log( 1/n ( exp(o_i) / q_i + sum_{j in Phi} exp(o_j) / q_j ) ),

    the cross-entropy with its normaliser estimated by importance sampling, with the positive as an
    additional sample. It converges to the full cross-entropy as n grows, for every proposal; the
    closer the proposal to the softmax, the fewer samples are needed. Only rows of the table that
    are positives or samples are read and receive a gradient, a sparse one if the table is a leaf;
    see `fewfold.optim`.

    Args:
        queries: (B, d), or with any leading dimensions instead of B.
        items: the table (M, d), an `nn.Embedding`, or a function from ids to their vectors.
        positives: (B,), (B, m), or a variable number per row as a pair: values (n,), offsets
            (B + 1,).
        proposal: fitted to the items.
        samples: number of samples per query, or for the whole batch if `shared`.
        shared: sample once for the whole batch, from the mixture of the proposals of its queries.
        remove_hits: exclude samples that are positives of the same row.
        ignore_index: id of padding among the positives.
        reduction: "none" (shape of the positives, 0 where ignored; (n,) if jagged), "mean" or "sum"
            over positives.
        generator: source of randomness.

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
    given = _flat_positives(positives, queries, _checked_size(items, queries), ignore_index)
    sampled = _sample(queries, given, proposal, samples, shared, remove_hits, generator)
    rest, scores = log_sum_picked(
        sampled.queries, items, sampled.ids, sampled.log_q, sampled.positives
    )
    losses = softmax_losses(rest, scores, sampled.positive_q, sampled.row, samples)
    return given.reduced(losses, reduction)


def softmax_losses(
    rest: Tensor, scores: Tensor, positive_q: Tensor, row: Tensor, samples: int
) -> Tensor:
    """Return the sampled softmax loss of each positive, (n,).

    Args:
        rest: (B,) log-sum-exp of score - log q over the samples of each row.
        scores: (n,) of the positives.
        positive_q: (n,) their log q.
        row: (n,) their rows.
        samples: number of samples of a row.
    """
    rest = rest.index_select(0, row)  # all positives of a row share its samples
    return F.softplus(rest - scores + positive_q) - (math.log(samples) + positive_q)


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
    """Noise-contrastive loss: classify positives against samples of the proposal.

    With c = o - log(samples q), the loss of a positive i is

        -log sigmoid(c_i) - sum_{j in Phi} log sigmoid(-c_j),

    at whose optimum exp(o) are normalised probabilities. Arguments as in `sampled_softmax_loss`.

    Example:
        >>> import torch, fewfold as ff
        >>> items = torch.eye(3)
        >>> noise = ff.Uniform().fit(items)
        >>> ff.noise_contrastive_loss(10 * items, items, torch.arange(3), noise, samples=1) > 0
        tensor(True)

    Reference: Gutmann and Hyvarinen, "Noise-contrastive estimation of unnormalized statistical
    models", 2012.
    """
    given = _flat_positives(positives, queries, _checked_size(items, queries), ignore_index)
    sampled = _sample(queries, given, proposal, samples, shared, remove_hits, generator)
    negatives, scores = picked_scores(sampled.queries, items, sampled.ids, sampled.positives)
    shift = math.log(samples)
    noise = F.softplus(negatives - sampled.log_q - shift).sum(1).index_select(0, sampled.row)
    return given.reduced(F.softplus(shift + sampled.positive_q - scores) + noise, reduction)


@dataclass(frozen=True)
class _Positives:
    """The positives of all rows, concatenated, and their original shape."""

    values: Tensor  # (n,)
    offsets: Tensor  # (B + 1,)
    shape: torch.Size
    valid: Tensor | None  # of that shape: not padding; None if all are valid
    items: int | None  # number of items; None if unknown

    def reduced(self, losses: Tensor, reduction: Reduce) -> Tensor:
        """Reduce the losses of all valid positives."""
        check_options(reduction, 0.0)
        if reduction == "none":
            if self.valid is None:
                return losses.view(self.shape)
            return losses.new_zeros(self.shape).masked_scatter(self.valid, losses)
        if reduction == "sum" or len(losses) == 0:
            return losses.sum()
        return losses.mean()


@dataclass(frozen=True)
class _Sampled:
    """A batch and its samples."""

    queries: Tensor  # (B, d)
    positives: Jagged
    row: Tensor  # (n,) row of each positive
    positive_q: Tensor  # (n,) log q
    ids: Tensor  # (B, samples), or (samples,) if shared
    log_q: Tensor  # of the same shape


def _sample(
    queries: Tensor,
    positives: _Positives,
    proposal: Proposal,
    samples: int,
    shared: bool,
    remove_hits: bool,
    generator: torch.Generator | None,
) -> _Sampled:
    if not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive int, got {samples!r}")
    values, offsets = positives.values, positives.offsets
    queries = queries.flatten(0, -2)
    shared = shared and len(queries) > 0  # an empty batch has no mixture
    row = torch.repeat_interleave(offsets.diff(), output_size=len(values))
    given = proposal.given(queries.detach(), shared=shared)
    ids, log_q = given.sample(samples, generator=generator)
    positive_q = given.log_prob(values, row)
    _check_shapes(ids, log_q, positive_q, proposal, len(queries), samples, len(values))
    _check_values(ids, log_q, positive_q, proposal, positives.items)
    check_positive_probabilities(values, positive_q)
    if remove_hits:
        hit = _hits(ids, values, row, len(queries))
        # Not inf: the gradient of a row without remaining samples would be NaN.
        log_q = log_q.expand(hit.shape).masked_fill(hit, torch.finfo(log_q.dtype).max / 2)
    return _Sampled(queries, (values, offsets), row, positive_q, ids, log_q)


def check_positive_probabilities(positives: Tensor, positive_q: Tensor) -> None:
    """Raise ValueError if the proposal never samples one of the positives (n,), by log q (n,)."""
    never = positive_q == -torch.inf
    if never.any():
        raise ValueError(
            f"item {positives[never][0].item()} is a positive but its proposal probability is 0; "
            "give it a count, for example counts + 1"
        )


def _check_shapes(
    ids: Tensor, log_q: Tensor, positive_q: Tensor, proposal: Proposal, rows: int, samples: int,
    positives: int,
) -> None:  # fmt: skip
    """Raise unless the proposal, possibly user-defined, returned tensors of the right shapes."""
    name = type(proposal).__name__
    for what, value in (("ids", ids), ("log q", log_q), ("log q of positives", positive_q)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must return {what} as a tensor, got {type(value).__name__}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must return integer ids, got {ids.dtype}")
    if ids.shape not in ((rows, samples), (samples,)):
        raise ValueError(
            f"{name} must return ids ({rows}, {samples}), or ({samples},) if shared, "
            f"got {tuple(ids.shape)}"
        )
    if not fits(log_q.shape, (rows, samples)):
        raise ValueError(f"log q of {name} must be shaped like its ids, got {tuple(log_q.shape)}")
    if positive_q.shape != (positives,):
        raise ValueError(
            f"{name} must return log q of shape ({positives},) for the positives, "
            f"got {tuple(positive_q.shape)}"
        )


def _check_values(
    ids: Tensor, log_q: Tensor, positive_q: Tensor, proposal: Proposal, items: int | None
) -> None:
    """Raise unless all sampled ids are valid and all log q are below inf and not NaN."""
    name = type(proposal).__name__
    if items is not None:
        check_ids(ids, items, f"{name} must return ids", "; fit it to the items of the loss")
    for what, value in (("log q", log_q), ("log q of positives", positive_q)):
        fine = value < torch.inf  # false for NaN
        if not bool(fine.all()):
            flat = value.flatten()
            at = int(fine.flatten().logical_not().nonzero()[0])
            raise ValueError(
                f"{what} of {name} must be numbers below inf, got {flat[at].item()} at position "
                f"{at}; check its sample and log_prob"
            )


def _checked_size(items: Items, queries: Tensor) -> int | None:
    """Return the number of items, None for a function; raise if the queries do not fit."""
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


def _flat_positives(
    positives: Tensor | Jagged, queries: Tensor, size: int | None, ignore_index: int
) -> _Positives:
    """Validate the positives and remove padding."""
    if not isinstance(queries, Tensor) or queries.dim() < 2 or not queries.is_floating_point():
        got = tuple(queries.shape) if isinstance(queries, Tensor) else type(queries).__name__
        raise ValueError(f"queries must be a floating-point tensor (B, d), got {got}")
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
        positives = positives.reshape(-1), each * torch.arange(rows + 1, device=positives.device)
    else:
        shape = positives[0].shape
    values, offsets = jagged(*positives, rows=rows)
    if len(values) == 0:
        return _Positives(values, offsets, shape, None, size)
    low, high = torch.aminmax(values)
    valid = values != ignore_index if low <= ignore_index <= high else None
    if size is not None and (low < 0 or high >= size):
        bad = (values < 0) | (values >= size)
        if valid is not None:
            bad &= valid
        if bad.any():
            at = int(bad.nonzero()[0])
            raise ValueError(
                f"positives must be ids between 0 and {size - 1}, got {values[at].item()} at {at}"
            )
    if valid is None:
        return _Positives(values, offsets, shape, None, size)
    offsets = F.pad(valid.cumsum(0), (1, 0))[offsets]
    return _Positives(values[valid], offsets, shape, valid.view(shape), size)


def _hits(ids: Tensor, values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return a mask (rows, n) of samples that are positives of their row."""
    if ids.numel() == 0:
        return torch.zeros(rows, ids.shape[-1], dtype=torch.bool, device=ids.device)
    span = int(max(ids.max(), values.max() if len(values) else 0)) + 1
    positives_sorted = (row * span + values).sort().values
    sampled = torch.arange(rows, device=ids.device)[:, None] * span + ids
    if len(positives_sorted) == 0:
        return torch.zeros_like(sampled, dtype=torch.bool)
    place = torch.searchsorted(positives_sorted, sampled).clamp_(max=len(positives_sorted) - 1)
    return positives_sorted[place] == sampled
