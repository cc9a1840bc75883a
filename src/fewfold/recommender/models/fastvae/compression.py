"""Trained tables as mixes of the first few of ordered anchors, nearest in the scores they give.

Item i is the mix of the first n_i of K anchors, n_i by how often it is met, so that nothing has to
say which anchor an entry belongs to; and entries are whole numbers of few bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.embeddings.sparsify.schedules import Narrowing
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.network import FastVAE

__all__ = ["Squeezed", "score_metric", "squeeze"]

_POPULAR = 0.75  # the power of its count that an item's number of anchors goes with
_FLAT = 1e-2  # of the mean of a metric's diagonal: no direction is free of charge
_USERS = 1500  # of whom the metric is the mean
_ROUNDS, _SWEEPS = 12, 16  # of least squares in turn, and over the entries on their grid
_BLOCK = 4096  # items whose entries are moved at once, such that they stay in the cache
_CLIPS = (1.0, 0.8, 0.6, 0.45, 0.35, 0.25)  # of the largest entry, where there are few bits


@dataclass(frozen=True, eq=False)
class Squeezed:
    """Both tables side by side, (items, hidden + latent + 1), as `transform @ anchors`.

    Attributes:
        transform: (items, K + 1), zero from an item's number of anchors on.
        anchors: (K + 1, hidden + latent + 1), a byte a number and a step for each; the first is a
            one in the column of the bias.
        steps: (K + 1,) of which the entries of a column are whole multiples.
    """

    transform: Tensor
    anchors: Tensor
    steps: Tensor


@torch.no_grad()
def squeeze(
    model: FastVAE, interactions: Interactions, *, count: int, width: int, bits: int, seed: int = 0
) -> Squeezed:
    """The nearest to the tables of a trained model that is this small; nothing is trained on.

    Minimises  sum_i w_i |t_i A - x_i|_M^2  over anchors A and mixes t_i of the first n_i of them,
    where x_i is an item's row in both tables, w_i how often it is met and M the metric of scores.
    Least squares for mixes and anchors in turn; then both are rounded, and entries moved in turn to
    the whole number that is best given all others.

    Args:
        model: which.
        interactions: it was trained on.
        count: K, anchors beside the one of the bias.
        width: the mean of n_i.
        bits: of an entry.
        seed: of the users who tell the metric.
    """
    if not all(table.isfinite().all() for table in (model.inputs, model.items)):
        raise ValueError("the tables of the model are not finite; has training diverged?")
    if not interactions.pairs:
        raise ValueError("there are no interactions to see scores by; give those of the training")
    kind = model.items.dtype
    metric = score_metric(model, interactions, seed=seed).to(kind)
    weights = interactions.counts().to(kind) + 1
    lengths = _lengths(weights, count, width)
    # In the order of their lengths, so that those who have an anchor are the first so many.
    order = lengths.argsort(descending=True, stable=True)
    both = torch.cat([model.inputs[order], model.items[order]], 1)
    fit = _Fit(both, metric, weights[order], lengths[order])
    mix, anchors, steps = fit.to_grid(*fit.alternate(count), (1 << bits - 1) - 1)
    return Squeezed(torch.empty_like(mix).index_copy_(0, order, mix), anchors, steps)


def _lengths(weights: Tensor, count: int, width: int) -> Tensor:
    """How many entries each item has, that of its bias included."""
    if width >= count:
        return torch.full(weights.shape, count + 1)
    shares = Narrowing(first=count, last=width, over=1, shares=weights**_POPULAR)
    return shares.of_rows(1).clamp(min=1) + 1


def score_metric(model: FastVAE, interactions: Interactions, *, seed: int = 0) -> Tensor:
    """What errors of a row of both tables do to scores: e' M e, in the mean over users and items.

    An error e of an output row moves its scores by q . e. One of an input row moves the latent by
    J e and with it the scores of all items j, by q_j . J e:

        E[(q . e)^2] = e' E[q q'] e,      E[(q_j . J e)^2] = e' E[J' Cov(q_j) J] e,

    where items count by how often they are met, and a shift of all scores does not matter.

    Returns:
        (hidden + latent + 1, hidden + latent + 1) in double precision.
    """
    weights = interactions.counts().double() + 1
    weights /= weights.sum()
    generator = torch.Generator().manual_seed(seed)
    users = torch.randperm(interactions.users, generator=generator)[:_USERS]
    history = interactions.rows(users)
    by = history.lengths.clamp(min=1).to(model.shift.dtype).rsqrt()
    with torch.no_grad():
        bag = model._bag(history, by)
    outputs = model.outputs()[:, :-1].double()
    outputs = outputs - weights @ outputs
    values, vectors = torch.linalg.eigh(outputs.T * weights @ outputs)
    directions = (vectors * values.clamp(min=0).sqrt()).T.to(bag.dtype)
    into = torch.zeros(bag.shape[1], bag.shape[1], dtype=torch.float64)
    with torch.enable_grad():
        bag.requires_grad_()
        latent = model.posterior(model.layers(bag + model.shift))[:, : model.latent]
        for direction in directions:
            total = (latent @ direction).sum()
            (slope,) = torch.autograd.grad(total, bag, retain_graph=True)
            into += (slope.T @ slope / len(slope)).double()
    queries = torch.nn.functional.pad(latent.detach().double(), (0, 1), value=1.0)
    out = queries.T @ queries / len(queries)
    metric: Tensor = torch.block_diag(*(_firm(part, _FLAT) for part in (into, out)))
    return metric


class _Fit:
    """Rows (n, d) by descending length, what an error of theirs is worth, and their best mixes."""

    def __init__(self, both: Tensor, metric: Tensor, weights: Tensor, lengths: Tensor) -> None:
        self.both, self.metric, self.weights, self.lengths = both, metric, weights, lengths

    def alternate(self, count: int) -> tuple[Tensor, Tensor]:
        """Mixes (n, count + 1) and anchors (count + 1, d), from the principal axes."""
        spread = (self.both.T * self.weights @ self.both).double()
        values, vectors = torch.linalg.eigh(self.metric.double())
        root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        _, axes = torch.linalg.eigh(root @ spread @ root)
        first = axes.flip(1)[:, :count].T @ root @ spread  # the axes, before the root was applied
        bias = torch.zeros(1, len(root), dtype=first.dtype)
        bias[0, -1] = 1
        anchors = torch.cat([bias, first / first.norm(dim=1, keepdim=True).clamp(min=1e-30)])
        anchors = anchors.to(self.both.dtype)
        anchors = self._apart(anchors)
        mix = self._mixes(anchors)
        for _ in range(_ROUNDS):
            anchors = self._apart(self._anchors(mix))
            mix = self._mixes(anchors)
        return mix, anchors

    def to_grid(self, mix: Tensor, anchors: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Entries at most `top` steps from zero, anchors of a byte a number, and the steps."""
        steps = self._steps(mix, top)
        mix = (mix / steps).round().clamp(-top, top) * steps
        for _ in range(_SWEEPS):
            anchors = _in_bytes(self._anchors(mix))  # before the entries, which make up for it
            products, square = self._products(anchors)
            parts = (whole.split(_BLOCK) for whole in (mix, products, self.lengths))
            for some, aims, lengths in zip(*parts, strict=True):
                few = int(lengths[0])  # the longest comes first
                for k, step in enumerate(steps[:few]):
                    have = int((lengths > k).sum())
                    left = aims[:have, k] - some[:have, :few] @ square[:few, k]
                    best = some[:have, k] + left / square[k, k].clamp(min=1e-30)
                    some[:have, k] = (best / step).round().clamp(-top, top) * step
        return mix, anchors, steps

    def _products(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows and of anchors with the anchors, in the metric."""
        lifted = self.metric @ anchors.T
        return self.both @ lifted, anchors @ lifted

    def _apart(self, anchors: Tensor) -> Tensor:
        """Orthogonal in the metric, of length one but for the bias; so many span what they did.

        Or those of the last, which few items have, may come to cancel each other, and rounding does
        to scores what it does to the sizes that cancel.
        """
        lower = torch.linalg.cholesky(_firm(self.metric.double(), 1e-12))
        axes, _ = torch.linalg.qr((anchors.double() @ lower).T)
        apart = torch.linalg.solve_triangular(lower.T, axes, upper=True).T.to(anchors.dtype)
        return torch.cat([anchors[:1], apart[1:]])

    def _mixes(self, anchors: Tensor) -> Tensor:
        """The best there are with anchors that are orthogonal."""
        products, square = self._products(anchors)
        there = torch.arange(len(anchors)) < self.lengths[:, None]
        return products.div_(square.diagonal()).mul_(there)

    def _anchors(self, mix: Tensor) -> Tensor:
        """The best there are with these mixes; the first stays what it is."""
        heavy = (mix[:, 1:].T * self.weights).contiguous()
        wanted = heavy @ self.both
        wanted[:, -1] -= heavy @ mix[:, 0]
        square = _firm((heavy @ mix[:, 1:]).double(), 1e-9)
        found = torch.linalg.solve(square, wanted.double()).to(mix.dtype)
        bias = torch.zeros_like(found[:1])
        bias[0, -1] = 1
        return torch.cat([bias, found])

    def _steps(self, mix: Tensor, top: int) -> Tensor:
        """Of the clippings of a column that with the least error."""
        largest = mix.abs().amax(0).clamp(min=1e-30)
        tried = torch.stack([largest * clip / top for clip in _CLIPS])
        errors = torch.stack([
            self.weights @ ((mix / step).round().clamp(-top, top) * step - mix).square()
            for step in tried
        ])  # fmt: skip
        return tried.gather(0, errors.argmin(0, keepdim=True))[0]


def _in_bytes(anchors: Tensor) -> Tensor:
    """Whole numbers of steps of their own, from -127 to 127, as anchors are kept."""
    step = anchors.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (anchors / step).round() * step


def _firm(square: Tensor, share: float) -> Tensor:
    """A square matrix that can be inverted."""
    size = square.diagonal().mean().clamp(min=1e-30)
    return square + share * size * torch.eye(len(square), dtype=square.dtype)
