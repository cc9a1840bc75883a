"""Explainers: scores of the words of a review, of which the best are sent.

An explainer is a function `explain(model, words, marked) -> (n, longest)` of a trained classifier,
padded words and which of them people marked; a word with a score of -inf is not sent.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from experiments.explanation_game.classifier import Classifier, Sets
from experiments.translation.corpus import PAD

Explainer = Callable[[Classifier, Tensor, Tensor], Tensor]


def random(model: Classifier, words: Tensor, marked: Tensor) -> Tensor:
    """Return random scores."""
    return torch.rand(words.shape)


def people(model: Classifier, words: Tensor, marked: Tensor) -> Tensor:
    """Return random scores of the marked words."""
    return torch.rand(words.shape).masked_fill(~marked, -math.inf)


@torch.no_grad()
def attention(model: Classifier, words: Tensor, marked: Tensor) -> Tensor:
    """Return attention weights; words without weight are not sent."""
    weights, _ = model.attend(model.embedding(words), words != PAD)
    return weights.masked_fill(weights == 0, -math.inf)


@torch.no_grad()
def erasure(model: Classifier, words: Tensor, marked: Tensor) -> Tensor:
    """Return how much less probable the decision is without each word, for softmax attention.

    Without word i the weighted mean is (mean - p_i v_i) / (1 - p_i).
    """
    if not model.omega.dense:
        raise ValueError("weights of sparse attention are not renormalised when a word is erased")
    weights, values = model.attend(model.embedding(words), words != PAD)
    each = weights.unsqueeze(2) * values
    rest = (1 - weights).clamp(min=1e-6).unsqueeze(2)
    without = (each.sum(1, keepdim=True) - each) / rest
    before = model.judge(each.sum(1)).softmax(1)
    decision = before.argmax(1)[:, None, None].expand(-1, words.shape[1], 1)
    after = model.judge(without).softmax(2).gather(2, decision).squeeze(2)
    return before.amax(1, keepdim=True) - after


def gradient(model: Classifier, words: Tensor, marked: Tensor) -> Tensor:
    """Return the norm of the gradient of the decision's log-probability for each embedding."""
    vectors = model.embedding(words).detach().requires_grad_()
    log_probs = model.classes(vectors, words != PAD).log_softmax(1)
    (found,) = torch.autograd.grad(log_probs.amax(1).sum(), vectors)
    return found.norm(dim=2)


# The map of the classifier that is explained, and the explainer.
METHODS: dict[str, tuple[str, Explainer]] = {
    "random": ("softmax", random),
    "people": ("softmax", people),
    "erasure": ("softmax", erasure),
    "gradient": ("softmax", gradient),
    "softmax, top k": ("softmax", attention),
    "1.5-entmax": ("1.5-entmax", attention),
    "sparsemax": ("sparsemax", attention),
}


def messages(explain: Explainer, model: Classifier, reviews: Sets, k: int) -> list[Tensor]:
    """Return the at most k words that are sent for each review."""
    sent: list[Tensor] = []
    for words, _ in reviews.in_order(64):
        own = reviews.marked[len(sent) : len(sent) + len(words)]
        marked = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
        scores = explain(model, words, marked).masked_fill(words == PAD, -math.inf)
        best, place = scores.topk(min(k, words.shape[1]), dim=1)
        sent += [
            row[chosen[value > -math.inf]]
            for row, chosen, value in zip(words, place, best, strict=True)
        ]
    return sent
