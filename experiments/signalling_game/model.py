"""The two agents of the game of Lazaridou et al.; the sender sees the target alone."""

import math

import torch
from torch import Tensor, nn

import fewfold as ff
from experiments.networks import perceptron

_NODE_DISTANCE = 0.1  # of nodes, where the steepest sigmoid has a slope of 1/4
_NEARBY = 12  # pairs per row beyond which all symbols are scored at once


class Units(nn.Module):
    """An elementwise function `sum_j v_j sigmoid(w_j x)`, shared by all entries.

    A few thousand entries times 512 sigmoids would be most of the work of a step. As all entries go
    through the same smooth function, it and its slope are evaluated at equal distances only, and
    interpolated by cubics between. The distance leaves an error at the rounding of float32.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(nn.Conv2d(1, units, 1, bias=False).weight.detach().view(-1))
        self.outer = nn.Parameter(nn.Linear(units, 1, bias=False).weight.detach().view(-1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to every entry of `x`."""
        radius = max(float(x.detach().abs().max()), 1e-6)
        nodes = self.nodes(radius)
        if 2 * nodes >= x.numel():
            return self.plain(x)
        step = 2 * radius / (nodes - 1)
        sigmoids = torch.sigmoid(torch.linspace(-radius, radius, nodes)[:, None] * self.inner)
        value = sigmoids @ self.outer
        slope = step * ((sigmoids * (1 - sigmoids)) @ (self.outer * self.inner))
        place = ((x + radius) / step).clamp(0, nodes - 1)
        left = place.detach().long().clamp(max=nodes - 2)
        t = place - left
        ends = (torch.stack([value, slope], 1)[end] for end in (left, left + 1))
        (first, rising), (last, arriving) = (end.unbind(-1) for end in ends)
        bend = 2 * (first - last) + rising + arriving
        return first + t * (rising + t * (last - first - rising - bend + t * bend))

    def plain(self, x: Tensor) -> Tensor:
        """Evaluate every sigmoid at every entry."""
        return torch.sigmoid(x[..., None] * self.inner.to(x.dtype)) @ self.outer.to(x.dtype)

    def nodes(self, radius: float) -> int:
        """Return the number of interpolation nodes required on [-radius, radius]."""
        return math.ceil(2 * radius * float(self.inner.detach().abs().max()) / _NODE_DISTANCE) + 2


class Sender(nn.Module):
    """Maps the target to a score for each symbol."""

    def __init__(self, dim: int, symbols: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.see = nn.Linear(dim, embedding, bias=False)
        self.units = Units(hidden)
        self.say = nn.Linear(embedding, symbols, bias=False)
        self.temperature = 10.0

    def forward(self, target: Tensor) -> Tensor:
        """Return scores (games, symbols) of targets (games, dim)."""
        scores: Tensor = self.say(torch.sigmoid(self.units(self.see(target)))) / self.temperature
        return scores


class Receiver(nn.Module):
    """Maps a symbol to a score for each candidate."""

    def __init__(self, dim: int, symbols: int, embedding: int, relaxed: bool) -> None:
        super().__init__()
        self.see = nn.Linear(dim, embedding, bias=False)
        first = torch.randn(symbols, embedding)
        if relaxed:  # a linear layer of vectors starts smaller than a table of symbols
            first = nn.Linear(symbols, embedding, bias=False).weight.detach().T.contiguous()
        self.meaning = nn.Parameter(first)

    def forward(self, atoms: Tensor, row: Tensor, shown: Tensor) -> Tensor:
        """Return scores (m, candidates) of the images in the game `row`, given each symbol.

        The score is that of an image as it is seen next to a meaning, `(W x) m`. There are fewer
        meanings than images, so that `x (W' m)` is less work. A product per pair where pairs are
        few; where most symbols of every game are asked for, one product of all images with all
        symbols takes less than copying images.
        """
        games, candidates, _ = shown.shape
        if atoms.is_floating_point() or len(row) <= _NEARBY * games:
            sought = ff.expectation.embed_atoms(atoms, self.meaning) @ self.see.weight
            return torch.bmm(sought.unsqueeze(1), shown.index_select(0, row).mT).squeeze(1)
        sought = self.meaning @ self.see.weight
        every = (shown.view(games * candidates, -1) @ sought.T).view(games, candidates, -1)
        table = every.transpose(1, 2).reshape(-1, candidates)
        which = row * every.shape[2] + atoms
        if len(which) == len(table) and torch.equal(which, torch.arange(len(table))):
            return table
        return table.index_select(0, which)


class Agents(nn.Module):
    """The sender and the receiver."""

    def __init__(
        self,
        dim: int,
        *,
        symbols: int = 256,
        embedding: int = 256,
        hidden: int = 512,
        relaxed: bool = False,
    ) -> None:
        super().__init__()
        self.sender = Sender(dim, symbols, embedding, hidden)
        self.receiver = Receiver(dim, symbols, embedding, relaxed)


class Expected(nn.Module):
    """Baseline network (NVIL): the mean of a network over all candidates."""

    def __init__(self, dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.each = perceptron(dim, hidden, hidden, hidden, 1)

    def forward(self, candidates: Tensor) -> Tensor:
        """Return predicted costs (games,) of candidates (games, candidates, dim)."""
        mean: Tensor = self.each(candidates).squeeze(-1).mean(-1)
        return mean
