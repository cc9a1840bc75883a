"""Causal transformer over the last items of a user, with one normalised item table."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._random import random_words
from fewfold.attention.sparse_attention import sparse_attention
from fewfold.maps.entropies import Tsallis
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.next_item.windows import Windows

__all__ = ["NextItemNetwork"]

_PLACES = 32_768  # padded positions that are encoded at once


class NextItemNetwork(nn.Module):
    """Transformer from the items so far to scores of the next one.

    With E the table of item vectors::

        e_t = E_t / |E_t|,    x = sqrt(d) e,    x = x + attend(x),    x = x + W_2 gelu(W_1 norm(x)),
        query_t = scale unit(sum_{s <= t} weight_ts e_s + W norm(x_t)),    score_i = query_t . e_i.

    The last attention averages the item vectors themselves, so that a session is close to its own
    items from the first step on, and W, zero at first, learns what follows beyond them; without
    `correction` there is no W. Position t attends to positions s <= t, with a learned bias for each
    head and distance t - s: a position knows how far back an item is, and one pass gives the query
    of every prefix. One table is input and output. Scores are cosines times `scale`, so that
    popular items do not win by the length of their vectors.

    Args:
        items: number of items.
        width: of the item vectors.
        layers: number of blocks.
        heads: of attention, a divisor of the width.
        length: number of last items that are read.
        dropout: share of the entries of item vectors and of block outputs set to zero in training.
        scale: of the cosine scores, the inverse temperature of their softmax.
        alpha: of the entmax that makes attention weights: 1 is softmax, more is sparser.
        correction: add W norm(x_t) to the average.
        seed: of the initial weights.

    Example:
        >>> import torch
        >>> from fewfold.recommender import Jagged, NextItemNetwork
        >>> network = NextItemNetwork(items=5, width=8, heads=2)
        >>> network.queries(Jagged(torch.tensor([3, 1, 4]), torch.tensor([0, 2, 3]))).shape
        torch.Size([2, 8])

    Reference: Kang and McAuley, "Self-attentive sequential recommendation", ICDM 2018; Gupta, Garg,
    Malhotra, Vig and Shroff, "NISER: normalized item and session representations", 2019.
    """

    def __init__(
        self, items: int, *, width: int = 96, layers: int = 1, heads: int = 2, length: int = 50,
        dropout: float = 0.5, scale: float = 16.0, alpha: float = 1.0,
        correction: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        whole_number(items, "items")
        self.check(width=width, layers=layers, heads=heads, length=length, dropout=dropout)
        self.length, self.dropout = length, dropout
        self.scale, self.alpha = scale, alpha
        generator = torch.Generator().manual_seed(seed)
        table = dispatch.table(items, width)
        self.table = nn.Parameter(table.normal_(0, width**-0.5, generator=generator))
        self.blocks = nn.ModuleList(
            _Block(width, heads, length, alpha, generator) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.average = _Average(width, length, alpha, generator)
        self.beyond = _linear(width, width, 0.0, generator) if correction else None
        # The query of users without items.
        self.start = nn.Buffer(torch.zeros(width))

    @staticmethod
    def check(*, width: int, layers: int, heads: int, length: int, dropout: float) -> None:
        """Raise ValueError unless a network can be built with these settings."""
        for name, value in (("width", width), ("heads", heads), ("length", length)):
            whole_number(value, name)
        whole_number(layers, "layers", least=0)
        if width % heads:
            raise ValueError(
                f"width must be a multiple of heads={heads}, got {width}; "
                f"write width={-(-width // heads) * heads}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")

    @property
    def device(self) -> torch.device:
        """Device of the parameters, to which histories are moved."""
        return self.table.device

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.table)

    @property
    def dense_parameters(self) -> list[nn.Parameter]:
        """All parameters but the table."""
        return [each for each in self.parameters() if each is not self.table]

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors of these items, of length one; the table gets a sparse gradient."""
        return F.normalize(F.embedding(ids, self.table, sparse=True), dim=-1)

    @property
    def vectors(self) -> Tensor:
        """The vectors of all items, of length one, (items, width), without gradient."""
        return F.normalize(self.table.detach(), dim=-1)

    def forward(self, ids: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the query of every prefix, (rows, positions, width).

        Args:
            ids: (rows, positions) items, oldest first, padded on the right.
            generator: of the dropout in training mode.
        """
        share = self.dropout if self.training else 0.0
        vectors = _drop(self.items(ids), share, generator)
        x = vectors * self.table.shape[1] ** 0.5
        for block in self.blocks:
            x = block(x, share, generator)
        x = self.norm(x)
        query = self.average(x, vectors)
        if self.beyond is not None:
            query = query + self.beyond(x)
        return F.normalize(query, dim=-1) * self.scale

    @torch.no_grad()
    def queries(self, history: Jagged) -> Tensor:
        """Return the query of the next item of each row, (rows, width); items oldest first."""
        windows = Windows.last(history, self.length)
        found = self.start.expand(len(windows.lengths), -1).clone()
        order = windows.lengths.argsort(stable=True)
        order = order[windows.lengths[order] > 0]
        for rows in order.split(max(1, _PLACES // self.length)):
            ids = windows.padded(rows)[0].to(self.device)
            rows, last = rows.to(self.device), (windows.lengths[rows] - 1).to(self.device)
            found[rows] = self(ids)[torch.arange(len(rows), device=self.device), last]
        return found

    @torch.no_grad()
    def fit_start(self, counts: Tensor) -> None:
        """Set the query of users without items: its scores are a regression of log counts.

        Args:
            counts: (items,) number of interactions.
        """
        vectors, wanted = self.vectors, counts.to(self.table).log1p()
        wanted -= wanted.mean()
        gram = vectors.T @ vectors
        gram.diagonal().add_(1e-3 * gram.diagonal().mean())
        self.start.copy_(torch.linalg.solve(gram, vectors.T @ wanted))


class _Block(nn.Module):
    """Causal attention with a bias for each distance, then two linear layers; both pre-norm."""

    def __init__(
        self, width: int, heads: int, length: int, alpha: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.heads, self.alpha = heads, alpha
        self.attention_norm, self.linear_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = _linear(width, 3 * width, width**-0.5, generator)
        self.attended = _linear(width, width, 0.02, generator)
        self.hidden = _linear(width, 2 * width, width**-0.5, generator)
        self.output = _linear(2 * width, width, 0.02, generator)
        self.distance = nn.Parameter(torch.zeros(heads, length))

    def forward(self, x: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
        rows, steps, width = x.shape
        parts = self.projections(self.attention_norm(x))
        parts = parts.view(rows, steps, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = _attend(query, key, value, self.distance, self.alpha)
        attended: Tensor = self.attended(heads.transpose(1, 2).reshape(rows, steps, width))
        x = x + _drop(attended, dropout, generator)
        hidden: Tensor = self.output(F.gelu(self.hidden(self.linear_norm(x))))
        return x + _drop(hidden, dropout, generator)


class _Average(nn.Module):
    """Weighted average of the item vectors so far, with weights from one head of attention."""

    def __init__(self, width: int, length: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.alpha = alpha
        self.projections = _linear(width, 2 * width, width**-0.5, generator)
        self.distance = nn.Parameter(torch.zeros(1, length))

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        query, key = self.projections(x).unsqueeze(1).chunk(2, -1)
        return _attend(query, key, vectors.unsqueeze(1), self.distance, self.alpha).squeeze(1)


def _attend(query: Tensor, key: Tensor, value: Tensor, distance: Tensor, alpha: float) -> Tensor:
    """Causal attention (rows, heads, positions, d) with a bias (heads, length) by distance."""
    ages = torch.arange(query.shape[2], device=query.device)
    ages = ages.unsqueeze(1) - ages
    bias = distance[:, ages.clamp(min=0)].masked_fill(ages < 0, -torch.inf)
    if alpha == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return sparse_attention(query, key, value, Tsallis(alpha), attn_mask=bias)


def _linear(into: int, out: int, deviation: float, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(into, out)
    nn.init.normal_(layer.weight, 0, deviation, generator=generator)  # zeros without deviation
    nn.init.zeros_(layer.bias)
    return layer


def _drop(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose random numbers come from the generator; the share is rounded to 1/256."""
    dropped = min(round(256 * share), 255)
    if not dropped:
        return x
    # A byte for each entry, since drawing floats would take a tenth of the time of a step.
    words = random_words(-(-x.numel() // 7), x.device, generator=generator)
    random = words.view(torch.uint8).view(-1, 8)[:, :7]
    kept = (random.reshape(-1)[: x.numel()] >= dropped).view(x.shape)
    return x * kept.to(x.dtype).mul_(256 / (256 - dropped))
