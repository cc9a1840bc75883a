"""Compression of trained dense tables to ordered anchors, with the least squared error of scores.

Item i is a combination of the first n_i of K anchors, where n_i grows with its number of
interactions, so that the anchors of its entries need not be stored; entries are whole numbers of
few bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.embeddings.sparsify.schedules import Narrowing
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE

__all__ = ["CompressedTables", "compress", "score_metric"]

_POPULAR = 0.75  # an item's number of anchors is proportional to its count to this power
_RIDGE = 1e-2  # added to a metric's diagonal, times its mean: every direction has a cost
_USERS = 1500  # sampled for the metric
_ROUNDS, _SWEEPS = 12, 16  # of alternating least squares, and over the rounded entries
_BLOCK = 4096  # items updated at once, which fit into the cache
_CLIPS = (1.0, 0.8, 0.6, 0.45, 0.35, 0.25)  # tried ranges, relative to the largest entry


@dataclass(frozen=True, eq=False)
class CompressedTables:
    """Both tables side by side, (items, hidden + latent + 1), as `transform @ anchors`.

    Attributes:
        transform: (items, K + 1), zero beyond an item's number of anchors.
        anchors: (K + 1, hidden + latent + 1), whole multiples, up to 127, of a step per anchor; the
            first is a one in the column of the bias.
        steps: (K + 1,) the entries of a column of the transform are whole multiples of its step.
    """

    transform: Tensor
    anchors: Tensor
    steps: Tensor


@torch.no_grad()
def compress(
    model: FastVAE, interactions: Interactions, *, count: int, width: int, bits: int, seed: int = 0
) -> CompressedTables:
    """Compress the tables of a trained model, without further training.

    Minimises  sum_i w_i |t_i A - x_i|_M^2  over anchors A and coefficients t_i of the first n_i of
    them, where x_i is an item's row in both tables, w_i its number of interactions plus one and M
    the metric of scores. Alternating least squares for coefficients and anchors; then both are
    rounded, and coordinate descent sets each entry to the best whole number given all others.

    Args:
        model: with dense tables.
        interactions: it was trained on.
        count: K, the number of anchors without that of the bias.
        width: the mean of n_i.
        bits: of an entry.
        seed: of the users sampled for the metric.
    """
    inputs, outputs = model.entries(), model.outputs()
    if not all(table.isfinite().all() for table in (inputs, outputs)):
        raise ValueError("the tables of the model are not finite; has training diverged?")
    if not interactions.pairs:
        raise ValueError(
            "there are no interactions to compare scores on; give those of the training"
        )
    dtype = outputs.dtype
    metric = score_metric(model, interactions, seed=seed).to(dtype)
    weights = interactions.counts().to(dtype) + 1
    lengths = _lengths(weights, count, width)
    # Sorted by length: the items that have a given anchor are the first rows.
    order = lengths.argsort(descending=True, stable=True)
    both = torch.cat([inputs[order], outputs[order]], 1)
    fit = _Fit(both, metric, weights[order], lengths[order])
    transform, anchors, steps = fit.round(*fit.alternate(count), (1 << bits - 1) - 1)
    in_order = torch.empty_like(transform).index_copy_(0, order, transform)
    return CompressedTables(in_order, anchors, steps)


def _lengths(weights: Tensor, count: int, width: int) -> Tensor:
    """Return the number of entries of each item, including that of its bias."""
    if width >= count:
        return torch.full(weights.shape, count + 1)
    shares = Narrowing(first=count, last=width, over=1, shares=weights**_POPULAR)
    return shares.of_rows(1).clamp(min=1) + 1


def score_metric(model: FastVAE, interactions: Interactions, *, seed: int = 0) -> Tensor:
    """Return the metric M of errors e of an item's row: e' M e is the mean squared error of scores.

    An error e of an output row moves its scores by q . e. One of an input row moves the latent by
    J e and with it the scores of all items j, by q_j . J e:

        E[(q . e)^2] = e' E[q q'] e,      E[(q_j . J e)^2] = e' E[J' Cov(q_j) J] e,

    where items are weighted by their number of interactions, and a shift of all scores is ignored.

    Returns:
        (hidden + latent + 1, hidden + latent + 1) in double precision.
    """
    weights = interactions.counts().double() + 1
    weights /= weights.sum()
    generator = torch.Generator().manual_seed(seed)
    users = torch.randperm(interactions.users, generator=generator)[:_USERS]
    history = interactions.rows(users)
    with torch.no_grad():
        bag = model.bag(history)
    outputs = model.outputs()[:, :-1].double()
    outputs = outputs - weights @ outputs
    values, vectors = torch.linalg.eigh(outputs.T * weights @ outputs)
    directions = (vectors * values.clamp(min=0).sqrt()).T.to(bag.dtype)
    into = torch.zeros(bag.shape[1], bag.shape[1], dtype=torch.float64)
    with torch.enable_grad():
        bag.requires_grad_()
        latent = model.mean_queries(bag)[:, : model.latent]
        for direction in directions:
            total = (latent @ direction).sum()
            (slope,) = torch.autograd.grad(total, bag, retain_graph=True)
            into += (slope.T @ slope / len(slope)).double()
    queries = torch.nn.functional.pad(latent.detach().double(), (0, 1), value=1.0)
    out = queries.T @ queries / len(queries)
    metric: Tensor = torch.block_diag(*(_with_ridge(part, _RIDGE) for part in (into, out)))
    return metric


class _Fit:
    """Weighted least squares for rows (n, d), sorted by descending number of entries."""

    def __init__(self, both: Tensor, metric: Tensor, weights: Tensor, lengths: Tensor) -> None:
        self.both, self.metric, self.weights, self.lengths = both, metric, weights, lengths

    def alternate(self, count: int) -> tuple[Tensor, Tensor]:
        """Return coefficients (n, count + 1) and anchors (count + 1, d)."""
        spread = (self.both.T * self.weights @ self.both).double()
        values, vectors = torch.linalg.eigh(self.metric.double())
        root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        _, axes = torch.linalg.eigh(root @ spread @ root)
        first = axes.flip(1)[:, :count].T @ root @ spread  # in the coordinates of the rows
        bias = torch.zeros(1, len(root), dtype=first.dtype)
        bias[0, -1] = 1
        anchors = torch.cat([bias, first / first.norm(dim=1, keepdim=True).clamp(min=1e-30)])
        anchors = anchors.to(self.both.dtype)
        anchors = self._orthonormalize(anchors)
        mix = self._mixes(anchors)
        for _ in range(_ROUNDS):
            anchors = self._orthonormalize(self._anchors(mix))
            mix = self._mixes(anchors)
        return mix, anchors

    def round(self, mix: Tensor, anchors: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return entries of at most `top` steps, anchors rounded to bytes, and the steps."""
        steps = self._steps(mix, top)
        mix = (mix / steps).round().clamp(-top, top) * steps
        for _ in range(_SWEEPS):
            anchors = _round_to_bytes(self._anchors(mix))  # first: entries then correct its error
            products, square = self._products(anchors)
            blocks = (tensor.split(_BLOCK) for tensor in (mix, products, self.lengths))
            for entries, targets, lengths in zip(*blocks, strict=True):
                longest = int(lengths[0])
                for k, step in enumerate(steps[:longest]):
                    rows = int((lengths > k).sum())  # those that have anchor k
                    residual = targets[:rows, k] - entries[:rows, :longest] @ square[:longest, k]
                    best = entries[:rows, k] + residual / square[k, k].clamp(min=1e-30)
                    entries[:rows, k] = (best / step).round().clamp(-top, top) * step
        return mix, anchors, steps

    def _products(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inner products of rows and of anchors with the anchors, in the metric."""
        lifted = self.metric @ anchors.T
        return self.both @ lifted, anchors @ lifted

    def _orthonormalize(self, anchors: Tensor) -> Tensor:
        """Orthonormalise the anchors in the metric (bias excluded), preserving leading spans.

        Otherwise contributions of the last anchors, which few items have, may nearly cancel, and
        rounding errors are relative to the contributions, not to their sum.
        """
        lower = torch.linalg.cholesky(_with_ridge(self.metric.double(), 1e-12))
        axes, _ = torch.linalg.qr((anchors.double() @ lower).T)
        unit = torch.linalg.solve_triangular(lower.T, axes, upper=True).T.to(anchors.dtype)
        return torch.cat([anchors[:1], unit[1:]])

    def _mixes(self, anchors: Tensor) -> Tensor:
        """Return the least-squares coefficients for orthogonal anchors."""
        products, square = self._products(anchors)
        mask = torch.arange(len(anchors)) < self.lengths[:, None]
        return products.div_(square.diagonal()).mul_(mask)

    def _anchors(self, mix: Tensor) -> Tensor:
        """Return the least-squares anchors for these coefficients; that of the bias is fixed."""
        weighted = (mix[:, 1:].T * self.weights).contiguous()
        right = weighted @ self.both
        right[:, -1] -= weighted @ mix[:, 0]
        square = _with_ridge((weighted @ mix[:, 1:]).double(), 1e-9)
        found = torch.linalg.solve(square, right.double()).to(mix.dtype)
        bias = torch.zeros_like(found[:1])
        bias[0, -1] = 1
        return torch.cat([bias, found])

    def _steps(self, mix: Tensor, top: int) -> Tensor:
        """Return the step of each column, by the clipping range with the least error."""
        largest = mix.abs().amax(0).clamp(min=1e-30)
        tried = torch.stack([largest * clip / top for clip in _CLIPS])
        errors = torch.stack([
            self.weights @ ((mix / step).round().clamp(-top, top) * step - mix).square()
            for step in tried
        ])  # fmt: skip
        return tried.gather(0, errors.argmin(0, keepdim=True))[0]


def _round_to_bytes(anchors: Tensor) -> Tensor:
    """Round each anchor to whole multiples, from -127 to 127, of a step of its own."""
    step = anchors.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (anchors / step).round() * step


def _with_ridge(square: Tensor, share: float) -> Tensor:
    """Add a multiple of the mean of its diagonal to a square matrix, so that it is invertible."""
    size = square.diagonal().mean().clamp(min=1e-30)
    return square + share * size * torch.eye(len(square), dtype=square.dtype)
