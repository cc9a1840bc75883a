"""Anchors and important entries of a trained table, by the curvature of the loss."""

import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from experiments.language_model.run import batches
from experiments.ptb_language_model.models import Budget, LanguageModel

_TOKENS = 20_000
_POWER = 0.5  # power of the word count in the importance of its entries


def sensitivity(model: LanguageModel, tokens: Tensor, budget: Budget, seed: int) -> Tensor:
    """Return M (d, d): an error e in a row costs about e' M e / 2 per occurrence of its word.

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
    """Return the principal axes of weighted rows (words, d) in the metric (d, d).

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
    """Return the table in its principal axes, with only the most important entries.

    The importance of entry k of a word is its square, times the squared norm of anchor k in the
    metric, times a root of the count of the word. Anchors
    beyond the axes are the vectors of the most frequent words.

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
    axis_count = min(anchors, len(axes))
    more = anchors - axis_count
    made.anchors.copy_(torch.cat([axes[:axis_count], table[:more]]))
    made.transform[more:, :axis_count] = transform[more:, :axis_count]
    importance = (
        made.transform[:, :axis_count].abs() * lengths[:axis_count] * weights.sqrt().unsqueeze(1)
    )
    number = min(keep * len(table) - more, importance.numel())
    best = importance.flatten().topk(number, sorted=False).indices
    selected = torch.zeros(importance.numel(), dtype=torch.bool).index_fill_(0, best, True)
    made.transform[:, :axis_count] *= selected.view_as(importance)
    made.transform[:more, axis_count:] = torch.eye(more)
    return made


def unfilled(words: int, width: int, anchors: int) -> ff.AnchorEmbedding:
    """Return an anchor table with a zero transform."""
    made = ff.AnchorEmbedding(words, width, sparse=True, anchors=anchors, signed=True)
    with torch.no_grad():
        made.transform.zero_()
    return made
