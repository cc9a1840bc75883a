"""Sampled softmax of a batch whose rows are encoded by several processes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.distributed.entries import Entries, SharedEntries, request
from fewfold.distributed.group import Group
from fewfold.losses.sampled import check_positive_probabilities, softmax_losses
from fewfold.losses.sampled_scores import log_sum
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.models.fastvae.own_scores import OwnScores
from fewfold.sampling.batch_part import BatchPart

__all__ = ["batch_loss"]

Scorer = Callable[[Tensor, Tensor], OwnScores]


def batch_loss(
    group: Group,
    queries: Tensor,
    objective: Objective,
    history: Jagged,
    generator: torch.Generator | None,
    scorer: Scorer,
) -> Tensor:
    """Return the part of a batch's objective that is of the rows of this process.

    The owners of items score them for the queries of all rows, and send the scores to the processes
    of the rows, which compute the loss.

    Args:
        group, queries, objective, history, generator: as in `Tables.loss`.
        scorer: from the queries of this process, and those of all processes, to scores.
    """
    if not isinstance(objective, SampledSoftmax):
        raise ValueError(
            f"{type(objective).__name__} needs the scores of all items, which no process has; "
            "in several processes use SampledSoftmax"
        )
    own = group.share(len(history.lengths))
    mine, score = history.rows(own), _shared_samples if objective.shared else _own_samples
    found = score(group, queries, objective, history, mine, generator, scorer)
    check_positive_probabilities(mine.values, found.positive_q)
    rest = log_sum(found.scores, found.log_q)
    losses = softmax_losses(
        rest, found.positive_scores, found.positive_q, mine.row, objective.samples
    )
    if objective.weights is None:
        return losses.sum()
    first, last = history.offsets[own.start], history.offsets[own.stop]
    return losses @ objective.weights[first:last].to(losses)


class _Scored(NamedTuple):
    """Samples of the rows of this process.

    Attributes:
        scores: (own rows, n).
        log_q: of the samples, of the same shape or (n,).
        positive_scores: (m,) of the items of the rows.
        positive_q: (m,) their log q.
    """

    scores: Tensor
    log_q: Tensor
    positive_scores: Tensor
    positive_q: Tensor


def _own_samples(
    group: Group,
    queries: Tensor,
    objective: SampledSoftmax,
    history: Jagged,
    mine: Jagged,
    generator: torch.Generator | None,
    scorer: Scorer,
) -> _Scored:
    """Draw samples of each row in the process that encodes it, as one process draws them."""
    rows, n = len(history.lengths), objective.samples
    given = objective.proposal.given(queries.detach())
    given.part = BatchPart(group.share(rows).start, rows)
    ids, log_q = given.sample(n, generator=generator)
    positive_q = given.log_prob(mine.values, mine.row)
    entries, every = request(group, rows, queries.detach(), ids, mine)
    found = entries.answer(scorer(queries, every).picked(entries), "scores")
    split = len(queries) * n
    return _Scored(found[:split].view(len(queries), n), log_q, found[split:], positive_q)


def _shared_samples(
    group: Group,
    queries: Tensor,
    objective: SampledSoftmax,
    history: Jagged,
    mine: Jagged,
    generator: torch.Generator | None,
    scorer: Scorer,
) -> _Scored:
    """Draw samples for all rows from the mixture of all queries; all processes draw the same."""
    rows = len(history.lengths)
    every = group.gather(queries.detach(), group.shares(rows), "queries")
    given = objective.proposal.given(every, shared=True)
    ids, log_q = given.sample(objective.samples, generator=generator)
    positive_q = given.log_prob(mine.values)
    samples, positives = SharedEntries.of(group, rows, ids), Entries.known(group, history)
    scores = scorer(queries, every)
    return _Scored(
        samples.answer(scores.products(samples), "scores"),
        log_q,
        positives.answer(scores.picked(positives), "scores"),
        positive_q,
    )
