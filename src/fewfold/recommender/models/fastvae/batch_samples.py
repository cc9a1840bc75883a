"""Samples of a batch whose rows are encoded by several processes, and their scores."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import Owners, with_summed_gradients
from fewfold.losses.sampled import check_positive_probabilities
from fewfold.losses.sampled_scores import picked_scores
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import SampledSoftmax
from fewfold.sampling.batch_part import BatchPart

__all__ = ["OwnSamples", "SharedSample"]


@dataclass(frozen=True, eq=False)
class _BatchSamples:
    """Queries and samples of all rows of a batch, the same in all processes.

    Attributes:
        group: the processes.
        queries: (rows, d), with a gradient for those of this process.
        ids: the samples, (rows, n) or (n,).
        log_q: of the samples, of the same shape.
        positive_q: (m,) log q of the items of the rows.
    """

    group: Group
    queries: Tensor
    ids: Tensor
    log_q: Tensor
    positive_q: Tensor

    def _picked(self, items: Tensor, owners: Owners) -> Tensor:
        """Return the scores of entries of rows, (n,), each computed by its owner."""
        none = owners.ids.new_empty(len(self.queries), 0)
        _, scores = picked_scores(self.queries, items, none, (owners.ids, owners.offsets))
        return owners.assemble(scores, "scores")


class OwnSamples(_BatchSamples):
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
        every = with_summed_gradients(group, queries, all_queries.view(rows, -1), counts)
        return cls(
            group, every, all_ids.view(rows, n).long(), all_log_q.view(rows, n), all_positive_q
        )

    def scores(self, items: Tensor, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        rows, n = self.ids.shape
        row = torch.cat([torch.arange(rows).repeat_interleave(n), history.row])
        flat = torch.cat([self.ids.flatten(), history.values])
        found = self._picked(items, Owners.of(self.group, flat, row, rows))
        return found[: rows * n].view(rows, n), found[rows * n :]


class SharedSample(_BatchSamples):
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
        every = with_summed_gradients(group, queries, all_queries, counts)
        return cls(group, every, ids, log_q, positive_q)

    def scores(self, items: Tensor, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        rows, n = len(self.queries), len(self.ids)
        owners = Owners.of(self.group, self.ids, torch.zeros(n, dtype=torch.int64), 1)
        vectors = F.embedding(owners.ids, items, sparse=True)
        scores = owners.assemble(vectors @ self.queries.T, "scores").T
        positives = Owners.of(self.group, history.values, history.row, rows)
        return scores, self._picked(items, positives)
