"""Trained tables as the first few of ordered anchors, in as few bits as are asked for.

Item i is the mix of the first n_i of K anchors, n_i by how often it is met: no entry has to say
which anchor it belongs to. Anchors and mixes are those with the least squared error *of scores*.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import fewfold as ff
from fewfold.embeddings.schedules import Narrowing

_POPULAR = 0.75  # the power of the count that an item's number of anchors goes with
_FLAT = 1e-2  # of the mean eigenvalue of a metric, so that it can be inverted
_USERS = 1500  # of whom the metric is the mean
_CLIPS = (1.0, 0.8, 0.6, 0.45, 0.35, 0.25)  # of the largest entry, where there are few bits


@dataclass(frozen=True)
class Stairs:
    """How many anchors, how many of them an item has on average, and the bits of an entry."""

    anchors: int
    width: int
    bits: int = 8

    def __str__(self) -> str:
        return f"{self.anchors} anchors, {self.width} for an item, {self.bits} bits"


@dataclass(frozen=True)
class Squeezed:
    """What is kept in the place of both tables."""

    anchors: Tensor  # (K, d) int8
    anchor_steps: Tensor  # (K,)
    values: Tensor  # uint8: all entries in `bits` bits each, item after item
    steps: Tensor  # (K,) of the entries
    lengths: Tensor  # (items,) uint8
    bias: Tensor  # (items,) int8
    bias_step: Tensor  # (1,)
    bits: int

    @property
    def tensors(self) -> list[Tensor]:
        """All that is shipped."""
        return [part for part in vars(self).values() if isinstance(part, Tensor)]

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return sum(part.numel() * part.element_size() for part in self.tensors)

    @property
    def parameters(self) -> int:
        """Anchors and entries; the bias is one of these."""
        return self.anchors.numel() + int(self.lengths.long().sum()) + len(self.bias)

    def table(self) -> Tensor:
        """Both tables side by side, the bias last: (items, d + 1)."""
        lengths, count = self.lengths.long(), len(self.anchors)
        held = torch.arange(count) < lengths.unsqueeze(1)
        codes = unpack(self.values, self.bits, int(lengths.sum()))
        mix = torch.zeros(len(lengths), count)
        mix[held] = (codes - _top(self.bits)).float()
        anchors = self.anchors.float() * self.anchor_steps.unsqueeze(1)
        bias = self.bias.float() * self.bias_step
        return torch.cat([(mix * self.steps) @ anchors, bias.unsqueeze(1)], 1)


def squeeze(model: ff.FastVAE, interactions: ff.Interactions, stairs: Stairs) -> Squeezed:
    """The best there is for the tables of a trained model; nothing is trained on."""
    weights = interactions.counts().double() + 1
    metric, back = score_metric(model, interactions)
    both = torch.cat([model.inputs, model.items[:, :-1]], 1).detach().double() @ metric
    shares = weights**_POPULAR
    lengths = Narrowing(first=stairs.anchors, last=stairs.width, over=1, shares=shares).of_rows(1)
    lengths = lengths.clamp(min=1)
    mix, anchors = alternate(both, weights, lengths, stairs.anchors)
    codes, steps, anchors = to_grid(both, weights, lengths, mix, anchors, stairs.bits)
    kept, anchor_steps = _bytes(anchors @ back)
    bias, bias_step = _bytes(model.items[:, -1:].detach().T.double())
    held = torch.arange(stairs.anchors) < lengths.unsqueeze(1)
    return Squeezed(
        kept, anchor_steps, pack(codes[held] + _top(stairs.bits), stairs.bits), steps.float(),
        lengths.to(torch.uint8), bias[0], bias_step, stairs.bits,
    )  # fmt: skip


def load(model: ff.FastVAE, squeezed: Squeezed) -> None:
    """Give the model these tables."""
    hidden = model.inputs.shape[1]
    with torch.no_grad():
        table = squeezed.table()
        model.inputs.copy_(table[:, :hidden])
        model.items.copy_(table[:, hidden:])


def score_metric(
    model: ff.FastVAE, interactions: ff.Interactions, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """By what to multiply both tables so that squared distances are those of scores; the inverse.

    An error e of an output row moves its scores by z . e, that of an input row the mean of the
    latent by J e and with it the scores of all items, by q . J e: in the mean over users and items

        E[(z . e)^2] = e' E[z z'] e,      E[(q . J e)^2] = e' E[J' Cov(q) J] e,

    where items count by how often they are met, and a shift of all scores does not matter.
    """
    weights = interactions.counts().double() + 1
    weights /= weights.sum()
    generator = torch.Generator().manual_seed(seed)
    users = torch.randperm(interactions.users, generator=generator)[:_USERS]
    history = interactions.rows(users)
    by = history.lengths.clamp(min=1).to(model.inputs.dtype).rsqrt()
    with torch.no_grad():
        bag = model._bag(history, by)
    bag.requires_grad_()
    latent = model.posterior(model.layers(bag + model.shift))[:, : model.latent]
    outputs = model.items.detach()[:, :-1].double()
    outputs = outputs - weights @ outputs
    turn = _root(outputs.T * weights @ outputs)[0].to(latent.dtype)
    into = bag.new_zeros(bag.shape[1], bag.shape[1])
    for direction in turn:
        (slope,) = torch.autograd.grad((latent @ direction).sum(), bag, retain_graph=True)
        into += slope.T @ slope / len(slope)
    queries = latent.detach().double()
    pairs = [_root(part.double()) for part in (into, queries.T @ queries / len(queries))]
    roots, inverses = zip(*pairs, strict=True)
    return torch.block_diag(*roots), torch.block_diag(*inverses)


def _root(square: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh((square + square.T) / 2)
    values = values.clamp(min=0)
    values = (values + _FLAT * values.mean().clamp(min=1e-30)).sqrt()
    return (vectors * values) @ vectors.T, (vectors / values) @ vectors.T


def alternate(
    both: Tensor, weights: Tensor, lengths: Tensor, count: int, rounds: int = 12
) -> tuple[Tensor, Tensor]:
    """Least squares for the mixes and the anchors in turn, from the principal axes.

    Returns:
        Mixes (items, K), zero from an item's length on, and anchors (K, d).
    """
    _, axes = torch.linalg.eigh(both.T * weights @ both)
    anchors = axes.flip(1)[:, :count].T
    mix = _mixes(both, lengths, anchors)
    for _ in range(rounds):
        anchors = _anchors(both, weights, mix)
        mix = _mixes(both, lengths, anchors)
    return mix, anchors


def _anchors(both: Tensor, weights: Tensor, mix: Tensor) -> Tensor:
    heavy = mix.T * weights
    found: Tensor = torch.linalg.solve(_firm(heavy @ mix), heavy @ both)
    return found


def _mixes(both: Tensor, lengths: Tensor, anchors: Tensor) -> Tensor:
    products, square = both @ anchors.T, _firm(anchors @ anchors.T)
    mix = torch.zeros_like(products)
    for length in lengths.unique().tolist():
        some = (lengths == length).nonzero()[:, 0]
        found = torch.linalg.solve(square[:length, :length], products[some, :length].T)
        mix[some, :length] = found.T
    return mix


def _firm(square: Tensor) -> Tensor:
    return square + 1e-9 * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)


def to_grid(
    both: Tensor, weights: Tensor, lengths: Tensor, mix: Tensor, anchors: Tensor, bits: int,
    rounds: int = 3,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Entries as small integers, a step per anchor, and the anchors that suit them.

    After a first rounding the anchors are fitted again, and each entry in turn is moved to the
    place on the grid that is best given all others.
    """
    top, held = _top(bits), torch.arange(len(anchors)) < lengths.unsqueeze(1)
    steps = _steps(mix * held, weights, top)
    codes = (mix / steps).round().clamp(-top, top) * held
    for _ in range(rounds):
        anchors = _anchors(both, weights, codes * steps)
        square = anchors @ anchors.T
        left = both @ anchors.T - (codes * steps) @ square
        for k in range(len(anchors)):
            some = held[:, k].nonzero()[:, 0]
            old = codes[some, k]
            best = (old + left[some, k] / (square[k, k] * steps[k]).clamp(min=1e-30)).round()
            codes[some, k] = best = best.clamp(-top, top)
            left[some] -= ((best - old) * steps[k]).unsqueeze(1) * square[k]
    return codes.long(), steps, _anchors(both, weights, codes * steps)


def _steps(mix: Tensor, weights: Tensor, top: int) -> Tensor:
    """Of the clippings of an anchor's entries that with the least error."""
    largest = mix.abs().amax(0).clamp(min=1e-30)
    tried = [largest * clip / top for clip in _CLIPS]
    errors = torch.stack([
        weights @ ((mix / step).round().clamp(-top, top) * step - mix).square() for step in tried
    ])  # fmt: skip
    return torch.stack(tried).gather(0, errors.argmin(0, keepdim=True))[0]


def _bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 with a step each."""
    steps = rows.abs().amax(1).clamp(min=1e-30) / 127
    return (rows / steps.unsqueeze(1)).round().to(torch.int8), steps.float()


def _top(bits: int) -> int:
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be between 2 and 8, got {bits}")
    return (1 << bits - 1) - 1


def pack(codes: Tensor, bits: int) -> Tensor:
    """Numbers from 0 to 2 ** bits - 1, (n,), in as many bytes as they need."""
    single = (codes.unsqueeze(1) >> torch.arange(bits)) & 1
    flat = torch.nn.functional.pad(single.flatten(), (0, -single.numel() % 8)).view(-1, 8)
    return (flat << torch.arange(8)).sum(1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The numbers again, (count,)."""
    single = (packed.long().unsqueeze(1) >> torch.arange(8)) & 1
    return (single.flatten()[: count * bits].view(count, bits) << torch.arange(bits)).sum(1)
