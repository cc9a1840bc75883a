"""The law of structures: one of many, with a share of exp(its score)."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fewfold._torch import check_values, has_values, under_vmap
from fewfold.expectation.latents.latent import Law, countable, listed, pairs, zeroed
from fewfold.structured.structures.batch_rows import clone_if_inference
from fewfold.structured.structures.score_errors import raise_infeasible
from fewfold.structured.structures.structure import Structure

__all__ = ["GibbsLaw"]


@dataclass(frozen=True, eq=False)
class GibbsLaw(Law):
    """One structure of many; atoms are 0/1 tensors of the shape of an instance.

    Attributes:
        over: the structure, with its additional scores.
        level: whether all scores are 0, or -inf.
    """

    over: Structure
    level: bool = False

    @property
    def structure(self) -> Structure:
        return self.over

    @property
    def event(self) -> torch.Size:
        return self.over.event_of(self.scores)

    @property
    def kept(self) -> Tensor:
        """Which parts there may be."""
        return self.flat.detach() > -math.inf

    @property
    def wide(self) -> Tensor:
        """The scores of parts, 0 for -inf; double, as sums of many of them are compared."""
        return zeroed(self.flat).double()

    @property
    def own(self) -> Structure:
        """The structure with the additional scores of each row."""
        return self.over.flat(self.batch, self.event)

    def totals(self, atoms: Tensor, row: Tensor) -> Tensor:
        """(m,) the score of each structure, double."""
        found = torch.where(atoms > 0.5, self.flat.double()[row], 0.0).flatten(1).sum(1)
        if not self.over.additional:
            return found
        check_values(
            atoms,
            f"the additional scores of {self.told} are picked by the values of structures",
            "leave them out, or use another device",
        )
        codes = self.over.codes((atoms > 0.5).cpu(), self.event)
        own = self.own.with_additional([value.cpu() for value in self.own.additional])
        return found + own.additional_score(codes, row.cpu(), self.event).to(found)

    def log_partition(self) -> Tensor:
        """(rows,) logarithm of the sum of exp(score) over all structures, double."""
        try:
            found = self.own.log_partition(self.wide, mask=self.kept)
        except NotImplementedError:
            if self.level and self._all_possible():
                count = math.log(self.over.count(self.event))
                return self.wide.new_full((self.rows,), count)
            if not countable(self.over, self.event):
                raise
            return self._listed()[1].logsumexp(-1)
        raise_infeasible(found.detach() == -math.inf, self.over)
        return found

    def sample(self, draws: int, generator: torch.Generator | None) -> Tensor:
        if under_vmap():
            raise RuntimeError(
                f"{self.told} cannot be drawn inside torch.func.vmap; give expect the whole batch, "
                "whose rows are independent, or use Dense()"
            )
        found = self.own.sample(self.wide.detach(), draws, mask=self.kept, generator=generator)
        return found.transpose(0, 1).to(self.scores)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        return (self.totals(atoms, row) - self.log_partition()[row]).to(self.wide_type)

    def entropy(self) -> Tensor:
        """The log-partition less its slope as all scores grow in proportion."""
        given = (self.scores, *self.over.additional)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
        with torch.inference_mode(False), torch.enable_grad():
            factor = torch.ones(self.rows, dtype=self.wide.dtype, device=self.wide.device)
            factor.requires_grad_()
            grown = [_grown(clone_if_inference(value), factor) for value in self.own.additional]
            scores = _grown(clone_if_inference(self.wide), factor)
            total = self.own.with_additional(grown).log_partition(
                scores, mask=clone_if_inference(self.kept)
            )
            (slope,) = torch.autograd.grad(total.sum(), factor, create_graph=tracked)
            found = (total - slope).clamp(min=0).to(self.scores)
        return found if tracked else found.detach()

    def kl(self, prior: Self) -> Tensor:
        """Log-partitions, and by how much the mean structure scores more here than there.

        How often a score is met in the mean is the slope of the log-partition in it.
        """
        if prior.level:
            return prior.log_partition().to(self.scores) - self.entropy()
        own, its = _with_the_same_names(self.own, prior.own)
        given = (self.scores, *own.additional)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in given)
        with torch.inference_mode(False), torch.enable_grad():
            mine = [_tracked(value) for value in (self.wide, *own.additional)]
            total = own.with_additional(mine[1:]).log_partition(
                mine[0], mask=clone_if_inference(self.kept)
            )
            met = torch.autograd.grad(total.sum(), mine, create_graph=tracked)
        if not tracked:
            total, mine = total.detach(), [value.detach() for value in mine]
        found = prior.log_partition() - total
        for often, here, there in zip(met, mine, (prior.flat, *its.additional), strict=True):
            others = torch.where(often.detach() > 0, there.double(), 0.0)
            found = found + (often * (zeroed(here) - others)).flatten(1).sum(1)
        return found.to(self.scores)

    def every(self) -> tuple[Tensor, Tensor]:
        atoms, totals = self._listed()
        return atoms, totals.log_softmax(-1).to(self.wide_type)

    def _listed(self) -> tuple[Tensor, Tensor]:
        """`(structures, *event)`, all there are, and (rows, structures) their scores, double."""
        every = listed(self.over, self.event).to(self.scores)
        atoms, row = pairs(every.expand(self.rows, *every.shape))
        totals = self.totals(atoms, row).view(self.rows, len(every))
        never = (totals.detach() == -math.inf).all(1)
        blocked = never & self.kept.flatten(1).any(1)
        if under_vmap():  # no row can be refused; one with no structure becomes NaN
            never = never & ~blocked
        elif not has_values(never) or not bool(never.any()):
            return every, totals
        elif bool(blocked.any()):
            raise ValueError(
                f"row {int(never.nonzero()[0])} has no {self.told} of {tuple(self.event)} that its "
                "mask allows, and Dense lists no smaller ones; use SparseMarginal or ScoreFunction"
            )
        # with nothing to choose from there is the empty structure, and only then
        empty = totals.new_full((self.rows, 1), -math.inf).masked_fill(never.unsqueeze(1), 0.0)
        every = torch.cat([every, torch.zeros_like(every[:1])])
        return every, torch.cat([totals, empty], 1)

    def uniform(self) -> Self:
        over = self.over.with_additional([_level(value) for value in self.over.additional])
        return replace(self, scores=_level(self.scores), over=over, level=True)

    def like(self, scores: Tensor, over: Structure | None = None) -> Self:
        if over is None and self.over.additional:
            raise ValueError(
                f"{self.told} has scores of its own, and the prior must say which are its; write "
                "prior_over=, a structure with those of the prior or the one of the latent"
            )
        found = super().like(scores)
        if over is None:
            return found
        if not self.over.same_set(over):
            raise ValueError(
                f"prior_over must be {self.over!r} but for its additional scores, got {over!r}"
            )
        return replace(found, over=over)

    def _all_possible(self) -> bool:
        """Whether nothing is masked."""
        given = (self.scores, *self.over.additional)
        return all(bool((value > -math.inf).all()) for value in given)


def _grown(value: Tensor, factor: Tensor) -> Tensor:
    """Each row times its factor; what is impossible stays so."""
    grown = zeroed(value) * factor.view(-1, *[1] * (value.dim() - 1))
    return torch.where(value.detach() == -math.inf, -math.inf, grown)


def _tracked(value: Tensor) -> Tensor:
    """The same, in the graph it is in or in one of its own."""
    return value if value.requires_grad else clone_if_inference(value).detach().requires_grad_()


def _with_the_same_names(one: Structure, other: Structure) -> tuple[Structure, Structure]:
    """Both with the same additional scores, of the same shapes; zeros where one has none."""
    both = [one, other]
    for name in one.additional_names:
        values = [getattr(each, name) for each in both]
        if not any(isinstance(value, Tensor) for value in values):
            continue
        like = next(value for value in values if isinstance(value, Tensor))
        filled = [v if isinstance(v, Tensor) else torch.zeros_like(like) for v in values]
        # one table for all positions meets a table for each
        for i, value in enumerate(torch.broadcast_tensors(*filled)):
            both[i] = replace(both[i], **{name: value.double()})  # type: ignore[type-var]
    return both[0], both[1]


def _level(scores: Tensor) -> Tensor:
    """No difference but between what is possible and what is not."""
    return torch.zeros_like(scores).masked_fill(scores == -math.inf, -math.inf)
