"""Samples of a batch whose rows are encoded by several processes, and their scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import Owners
from fewfold.losses.sampled import check_positive_probabilities, softmax_losses
from fewfold.losses.sampled_scores import log_sum
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import Objective, SampledSoftmax
from fewfold.recommender.models.fastvae.own_scores import OwnScores
from fewfold.sampling.batch_part import BatchPart

__all__ = ["batch_loss"]


def batch_loss(
    group: Group,
    queries: Tensor,
    objective: Objective,
    history: Jagged,
    generator: torch.Generator | None,
    scorer: Callable[[Tensor, Tensor], OwnScores],
) -> Tensor:
    """Return the objective of a batch: every process scores its items for all rows.

    The value is the share of one process; gradients are those of the rows of this one.

    Args:
        group, queries, objective, history, generator: as in `Tables.loss`.
        scorer: from the queries of this process, and those of all processes, to scores.
    """
    if not isinstance(objective, SampledSoftmax):
        raise ValueError(
            f"{type(objective).__name__} needs the scores of all items, which no process has; "
            "in several processes use SampledSoftmax"
        )
    sample = _SharedSample if objective.shared else _OwnSamples
    batch = sample.of(group, queries, objective, history, generator)
    scores, positive_scores = batch.scores(scorer(queries, batch.queries), history)
    rest = log_sum(scores, batch.log_q)
    losses = softmax_losses(rest, positive_scores, batch.positive_q, history.row, objective.samples)
    total = losses.sum() if objective.weights is None else losses @ objective.weights.to(losses)
    return total - total.detach() * (1 - 1 / group.world)


@dataclass(frozen=True, eq=False)
class _BatchSamples:
    """Queries and samples of all rows of a batch, the same in all processes.

    Attributes:
        group: the processes.
        queries: (rows, d) of all processes, without a gradient.
        ids: the samples, (rows, n) or (n,).
        log_q: of the samples, of the same shape.
        positive_q: (m,) log q of the items of the rows.
    """

    group: Group
    queries: Tensor
    ids: Tensor
    log_q: Tensor
    positive_q: Tensor


class _OwnSamples(_BatchSamples):
    """Samples of each row, drawn by the process that encodes it, as one process draws them."""

    @classmethod
    def of(
        cls,
        group: Group,
        queries: Tensor,
        objective: SampledSoftmax,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Self:
        """Draw samples of the rows of this process, and exchange them together with queries."""
        rows, n = len(history.lengths), objective.samples
        own, counts = group.share(rows), group.shares(rows)
        given = objective.proposal.given(queries.detach())
        given.part = BatchPart(own.start, rows)
        ids, log_q = given.sample(n, generator=generator)
        mine = history.rows(own)
        positive_q = given.log_prob(mine.values, mine.row)
        check_positive_probabilities(mine.values, positive_q)
        parts = [queries.detach(), ids.to(torch.int32), log_q, positive_q]
        words = [part.contiguous().view(torch.int32) for part in parts]
        width = [word.shape[1] for word in words[:3]]
        edges = torch.tensor([0, *counts]).cumsum(0)
        lengths = history.offsets[edges].diff().tolist()
        sizes = [
            (count * width[0], count * width[1], count * width[2], length)
            for count, length in zip(counts, lengths, strict=True)
        ]
        flat = torch.cat([word.flatten() for word in words])
        got = group.gather(flat, [sum(size) for size in sizes], "queries and samples")
        pieces = got.split([n for size in sizes for n in size])
        all_queries, all_ids, all_log_q, all_positive_q = (
            torch.cat(pieces[at::4]).view(part.dtype) for at, part in enumerate(parts)
        )
        return cls(
            group, all_queries.view(rows, -1), all_ids.view(rows, n).long(),
            all_log_q.view(rows, n), all_positive_q,
        )  # fmt: skip

    def scores(self, own: OwnScores, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        rows, n = self.ids.shape
        owners = Owners.of(self.group, self.ids, history)
        found = owners.assemble(own.picked(owners), "scores")
        return found[: rows * n].view(rows, n), found[rows * n :]


class _SharedSample(_BatchSamples):
    """Samples for all rows, from the mixture of all queries; all processes draw the same."""

    @classmethod
    def of(
        cls,
        group: Group,
        queries: Tensor,
        objective: SampledSoftmax,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Self:
        """Gather the queries, and draw."""
        counts = group.shares(len(history.lengths))
        all_queries = group.gather(queries.detach(), counts, "queries")
        given = objective.proposal.given(all_queries, shared=True)
        ids, log_q = given.sample(objective.samples, generator=generator)
        positive_q = given.log_prob(history.values)
        check_positive_probabilities(history.values, positive_q)
        return cls(group, all_queries, ids, log_q, positive_q)

    def scores(self, own: OwnScores, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        nothing = self.ids[:0], torch.zeros(2, dtype=torch.int64)
        owners = Owners.of(self.group, self.ids.unsqueeze(0), nothing)
        samples = owners.assemble(own.products(owners), "scores").T
        positives = Owners.of(self.group, self.ids.new_empty(len(self.queries), 0), history)
        return samples, positives.assemble(own.picked(positives), "scores")
