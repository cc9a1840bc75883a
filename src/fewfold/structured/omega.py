"""SparseMAP as a regulariser, so that losses and energies need no code of their own for it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.structured.sparsemap import sparsemap, sparsemap_solution
from fewfold.structured.structure import Structure, by_row

__all__ = ["SparseMAP"]


@dataclass(frozen=True)
class SparseMAP:
    """Half the squared norm of marginals, `<mu, mu> / 2`, over the mixes of structures.

    It is an `Omega` over the last dimensions of the scores, as many as an instance has.

    Args:
        structure: see `fewfold.structures`.
        max_iter: calls of the oracle for an instance, at most.

    Example:
        >>> import torch, fewfold as ff
        >>> omega = ff.SparseMAP(ff.structures.Assignment())
        >>> scores = torch.tensor([[1.0, 0.2], [0.6, 0.5]])
        >>> ff.fenchel_young_loss(scores, torch.eye(2), omega)
        tensor(0.2113)
    """

    structure: Structure
    max_iter: int = 1000

    @property
    def event_dim(self) -> int:
        """Dimensions of an instance."""
        return self.structure.event_dim

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        """`<mu, mu> / 2`, less additional scores; where there are such, mu must be a structure."""
        structure, event = self.structure, self.structure.event_of(probs)
        batch = probs.shape[: probs.dim() - self.event_dim]
        flat = by_row(probs, batch.numel())
        half = structure.regulariser(flat).view(batch)
        if not structure.additional:
            return half
        rounded = flat.detach().round()
        if bool(((flat.detach() - rounded).abs() > 1e-6).any()):
            raise ValueError(
                "with additional scores the value of marginals is known for structures alone; "
                "got entries other than 0 and 1"
            )
        made = structure.flat(batch, event)
        codes = structure.codes(rounded.view(-1, *event).cpu(), event)
        extra = made.extra(codes, torch.arange(len(codes)), event)
        return half - extra.view(batch).to(half)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """The marginals."""
        return sparsemap(scores, self.structure, mask=mask, max_iter=self.max_iter)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """The score of the best mix less its regulariser; the gradient are the marginals."""
        structure = self.structure
        if structure.additional:
            found = sparsemap_solution(scores, structure, mask=mask, max_iter=self.max_iter)
            return found.objective
        probs = self.argmax(scores, mask=mask)
        used = torch.where(probs.detach() != 0, scores, 0.0)  # an unused score may be -inf
        batch = scores.shape[: scores.dim() - self.event_dim]
        own = by_row(probs * used, batch.numel()).sum(1)
        return (own - structure.regulariser(by_row(probs, batch.numel()))).view(batch)

    @property
    def margin(self) -> None:
        """How far a structure must lead depends on how many parts it does not share."""
        return None
