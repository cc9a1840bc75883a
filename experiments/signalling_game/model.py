"""The two agents of the game of Lazaridou et al., of whom the sender sees the target alone."""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff

MOST_NODES = 384  # beyond, all sigmoids are as cheap
_NEARBY = 12  # pairs per row beyond which all symbols are scored at once


class Units(nn.Module):
    """One function of a number, the same for every entry: `sum_j v_j sigmoid(w_j x)`.

    A few thousand entries times 512 sigmoids would be most of the work of a step. As all entries go
    through the same smooth function, it is evaluated at Chebyshev nodes only and interpolated; its
    nearest pole, `i pi / max |w|`, says how many nodes leave an error at the rounding of float32.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(nn.Conv2d(1, units, 1, bias=False).weight.detach().view(-1))
        self.outer = nn.Parameter(nn.Linear(units, 1, bias=False).weight.detach().view(-1))

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of `x`."""
        radius = max(float(x.detach().abs().max()), 1e-6)
        nodes = self.nodes(radius)
        if nodes > MOST_NODES or nodes >= x.numel():
            return self.plain(x)
        places, transform = _cosines(nodes)
        coefficients = transform @ self.plain(radius * places)  # few: in double
        return _Series.apply(x, coefficients, radius)  # type: ignore[no-any-return]

    def plain(self, x: Tensor) -> Tensor:
        """Every sigmoid of every entry."""
        return torch.sigmoid(x[..., None] * self.inner.to(x.dtype)) @ self.outer.to(x.dtype)

    def nodes(self, radius: float) -> int:
        """How many are needed between plus and minus this."""
        steepest = max(float(self.inner.detach().abs().max()), 1e-6)
        return math.ceil(17 / math.asinh(math.pi / (radius * steepest))) + 2


@cache
def _cosines(nodes: int) -> tuple[Tensor, Tensor]:
    """Where to evaluate between -1 and 1, and what makes coefficients of the values there."""
    angles = (torch.arange(nodes, dtype=torch.float64) + 0.5) * (math.pi / nodes)
    transform = torch.arange(nodes, dtype=torch.float64)[:, None].mul(angles).cos() * (2 / nodes)
    transform[0] /= 2
    return angles.cos(), transform


class _Series(torch.autograd.Function):
    """`sum_k c_k T_k(x / radius)`, with the polynomials kept for the gradient."""

    @staticmethod
    def forward(ctx, x, coefficients, radius):  # type: ignore[no-untyped-def]
        """All polynomials by doubling: `T_(k+j) = 2 T_k T_j - T_(k-j)`."""
        terms = len(coefficients)
        flat = x.reshape(-1) / radius
        basis = flat.new_empty(terms, len(flat))
        basis[0], basis[1] = 1, flat
        known = 1
        while known < terms - 1:
            more = min(known, terms - 1 - known)
            fresh = basis[known + 1 : known + 1 + more]
            torch.mul(basis[1 : more + 1], 2 * basis[known], out=fresh)
            fresh -= basis[known - more : known].flip(0)
            known += more
        ctx.save_for_backward(basis, coefficients)
        ctx.radius = radius
        return (coefficients.to(flat.dtype) @ basis).view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        """The derivative of a series is another one."""
        basis, coefficients = ctx.saved_tensors
        flat = grad.reshape(-1)
        slope = torch.zeros(len(coefficients) + 1, dtype=torch.float64)
        scaled = coefficients * torch.arange(len(coefficients)) * (2 / ctx.radius)
        slope[:-2] = scaled[1:]
        for parity in (0, 1):
            part = slope[parity::2]
            slope[parity::2] = part.flip(0).cumsum(0).flip(0)
        slope[0] /= 2
        steep = slope[:-1].to(flat.dtype) @ basis
        return (flat * steep).view_as(grad), (basis @ flat).double(), None


class Sender(nn.Module):
    """A score for each symbol, from the target."""

    def __init__(self, dim: int, symbols: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.see = nn.Linear(dim, embedding, bias=False)
        self.units = Units(hidden)
        self.say = nn.Linear(embedding, symbols, bias=False)
        self.temperature = 10.0

    def forward(self, target: Tensor) -> Tensor:
        """(games, dim) to (games, symbols)."""
        scores: Tensor = self.say(torch.sigmoid(self.units(self.see(target)))) / self.temperature
        return scores


class Receiver(nn.Module):
    """A score for each candidate, from a symbol."""

    def __init__(self, dim: int, symbols: int, embedding: int, relaxed: bool) -> None:
        super().__init__()
        self.see = nn.Linear(dim, embedding, bias=False)
        first = torch.randn(symbols, embedding)
        if relaxed:  # a linear layer of vectors starts smaller than a table of symbols
            first = nn.Linear(symbols, embedding, bias=False).weight.detach().T.contiguous()
        self.meaning = nn.Parameter(first)

    def forward(self, atoms: Tensor, row: Tensor, seen: Tensor) -> Tensor:
        """(m, candidates) scores of the candidates of `row`, given each symbol.

        A product per pair where pairs are few. Where most symbols of every game are asked for, one
        product of everything seen with all symbols takes less than copying what was seen.
        """
        games, candidates, _ = seen.shape
        if atoms.is_floating_point() or len(row) <= _NEARBY * games:
            meaning = ff.embed_atoms(atoms, self.meaning)
            return torch.bmm(seen.index_select(0, row), meaning.unsqueeze(2)).squeeze(2)
        every = (seen.view(games * candidates, -1) @ self.meaning.T).view(games, candidates, -1)
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
    """What the cost will be, from all candidates: the mean of a network over them (NVIL)."""

    def __init__(self, dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(first, second)
            for first, second in ((dim, hidden), (hidden, hidden), (hidden, hidden), (hidden, 1))
        )

    def forward(self, candidates: Tensor) -> Tensor:
        """(games, candidates, dim) to (games,)."""
        *inner, last = self.layers
        for layer in inner:
            candidates = F.relu(layer(candidates))
        mean: Tensor = last(candidates).squeeze(-1).mean(-1)
        return mean
