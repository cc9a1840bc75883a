"""Anchors for a trained table, and the entries that the loss would miss most."""

import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments.language_model.run import batches
from experiments.ptb_language_model.models import Budget, LanguageModel

_TOKENS = 20_000
_POWER = 0.5  # of the count of a word, in what its entries are worth


def sensitivity(model: LanguageModel, tokens: Tensor, budget: Budget, seed: int) -> Tensor:
    """M (d, d): a row that is wrong by e costs, for each occurrence of its word, about e' M e / 2.

    That is Fisher's information. As the next word it costs E[z z'] over the states z, times the
    chance of the word; as the last word E[g g'] over the gradients g of the loss at the input of
    the LSTM, where next words are drawn from the model itself.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    rows = model.rows(torch.arange(len(model.bias))).detach()
    total, count, state = torch.zeros(budget.width, budget.width), 0, None
    for words, after in batches(tokens[:_TOKENS], budget.batch, budget.length):
        vectors = model.table(words).detach().requires_grad_()
        hidden, (h, c) = model.lstm(vectors, state)
        state, hidden = (h.detach(), c.detach()), hidden.flatten(0, 1)
        scores = F.pad(hidden, (0, 1), value=1.0) @ rows.T
        drawn = scores.detach().softmax(-1).multinomial(1, generator=generator).squeeze(1)
        loss = F.cross_entropy(scores, drawn, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, vectors)
        for part in (hidden.detach(), gradient.flatten(0, 1)):
            total += part.T @ part
        count += len(after)
    model.train()
    return total / count


def weighted_axes(table: Tensor, metric: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The principal axes of weighted rows (words, d) where lengths are those of a metric (d, d).

    Returns:
        Anchors (d, d) of unit length, the most important first; the transform (words, d) that gives
        the table back; and how long each anchor is in the metric (d,).
    """
    values, vectors = torch.linalg.eigh(metric.double())
    lengths = values.clamp(min=1e-6 * values[-1]).sqrt()
    root, inverse = (vectors * lengths) @ vectors.T, (vectors / lengths) @ vectors.T
    there = table.double() @ root
    axes = torch.linalg.eigh(there.T @ (weights.double().unsqueeze(1) * there)).eigenvectors.flip(1)
    anchors = axes.T @ inverse
    norms = anchors.norm(dim=1)
    parts = anchors / norms.unsqueeze(1), there @ axes * norms, 1 / norms
    first, second, third = (part.to(table.dtype) for part in parts)
    return first, second, third


@torch.no_grad()
def anchored(
    table: Tensor, anchors: int, keep: int, *, metric: Tensor, counts: Tensor
) -> ff.AnchorEmbedding:
    """A table as mixes of its axes, of the entries only those that matter most.

    Entry k of a word is worth its square, times that of the length of anchor k in the metric, times
    a root of the count of the word. Anchors beyond the axes are the most frequent words themselves.

    Args:
        table: (words, d), the most frequent first.
        anchors: how many.
        keep: entries per word, on average.
        metric: of `sensitivity`.
        counts: (words,).
    """
    made = unfilled(len(table), table.shape[1], anchors)
    weights = counts.clamp(min=1) ** _POWER
    axes, transform, lengths = weighted_axes(table, metric, weights)
    few = min(anchors, len(axes))
    more = anchors - few
    made.anchors.copy_(torch.cat([axes[:few], table[:more]]))
    made.transform[more:, :few] = transform[more:, :few]
    worth = made.transform[:, :few].abs() * lengths[:few] * weights.sqrt().unsqueeze(1)
    number = min(keep * len(table) - more, worth.numel())
    best = worth.flatten().topk(number, sorted=False).indices
    kept = torch.zeros(worth.numel(), dtype=torch.bool).index_fill_(0, best, True)
    made.transform[:, :few] *= kept.view_as(worth)
    made.transform[:more, few:] = torch.eye(more)
    return made


def unfilled(words: int, width: int, anchors: int) -> ff.AnchorEmbedding:
    """One whose transform is zero."""
    made = ff.AnchorEmbedding(words, width, sparse=True, anchors=anchors, signed=True)
    with torch.no_grad():
        made.transform.zero_()
    return made
