"""EASE: a linear model from items to items, with an exact solution."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._check import positive_number, whole_number
from fewfold._resources import format_bytes, free_memory
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.baseline import Baseline
from fewfold.recommender.models.ease_update import with_new_items
from fewfold.recommender.models.model import Fitted, Model, relative
from fewfold.recommender.models.model_options import EASE as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import register

__all__ = ["EASE"]

MAX_ITEMS = 40_000  # for the command line and `compare`; 32 GB while fitting
_TUNED_ITEMS = 8_000  # most items for which `compare` tries several penalties
_L2 = (5.0, 20.0, 100.0, 500.0, 2500.0)
_NEAR = 6.5  # factor between two penalties that may both be the best one


@register
@dataclass(eq=False)
class EASE(Baseline):
    """Linear item-to-item model with a zero diagonal, in closed form.

    ``min |X - X B|^2 + l2 |B|^2`` with a zero diagonal: ``B = -P / diag(P)`` off the diagonal,
    ``P = (X^T X + l2 I)^-1``, and ``score = x B``. Hard to beat, but B has items^2 numbers:
    `fit` raises ValueError above `most_items` items. It takes about 20 items^2 bytes of memory, and
    time proportional to items^3. Entries of X are 1, or the roots of `Interactions.weights`, so
    that the Gram matrix holds sums of weights instead of counts.

    Example:
        >>> from fewfold.recommender import EASE, Interactions
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> EASE(l2=1.0).fit(train).recommend(Interactions.from_pairs([0], [3]).jagged, 2)
        tensor([[2, 0]])

    Reference:
        Steck (2019). Embarrassingly shallow autoencoders for sparse data. WWW.
    """

    name: ClassVar[str] = "ease"
    colour: ClassVar[str] = "#31688e"
    cheap_version: ClassVar[str | None] = "sparse-ease"
    weighted: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new items are regressed on the nearest ones, others stay"
    l2: float = field(default=250.0, metadata=setting(OPTIONS["l2"], "l2 {:g}"))
    most_items: int = 20_000
    counts: Tensor = field(init=False, repr=False)
    weights: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive_number(self.l2, "l2")
        whole_number(self.most_items, "most_items")

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """Construct from values of the command line, which allows larger catalogues."""
        return cls(values["l2"], most_items=MAX_ITEMS)

    @classmethod
    def grid(cls, items: int) -> "Sequence[EASE]":
        """Several penalties for a small catalogue, the default for a large one."""
        penalties = _L2 if items <= _TUNED_ITEMS else (250.0,)
        return [cls(l2, most_items=max(items, 1)) for l2 in penalties]

    @classmethod
    def grid_after(cls, items: int, cheap: Model) -> "Sequence[Model]":
        """The penalty that suits the sparse model; for a small catalogue those near it, too."""
        l2: float = getattr(cheap, "l2", 250.0)
        if items <= _TUNED_ITEMS:
            return [one for one in cls.grid(items) if l2 / _NEAR <= one.l2 <= l2 * _NEAR]
        return [cls(l2, most_items=items)]

    @classmethod
    def too_large(cls, items: int) -> str:
        """Why an items x items matrix does not fit into memory; empty if it does."""
        need = 20 * items**2
        if items > MAX_ITEMS or need > 0.6 * free_memory():
            return f"it needs an items x items matrix, {format_bytes(need)} for {items:,} items"
        return ""

    def work(self, log: Interactions) -> float:
        """Multiply-adds of the Gram matrix, its factorisation and its inverse, which run fast."""
        return 0.4 * float(log.items) ** 3 + 20.0 * float((log.jagged.lengths.double() ** 2).sum())

    def fit(self, train: Interactions) -> Self:
        """Solve for the item-to-item matrix."""
        if train.items > self.most_items:
            raise ValueError(
                f"EASE holds items x items matrices: {train.items} items need about "
                f"{20e-9 * train.items**2:.1f} GB, and the limit is most_items={self.most_items}; "
                "drop rare items with k_core, raise most_items, or use SparseEASE"
            )
        matrix = train.to_csr(None if train.weights is None else train.weights.sqrt())
        gram = torch.from_numpy((matrix.T @ matrix).toarray())
        gram.diagonal().add_(self.l2)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        # LAPACK answers column by column; scoring reads whole rows.
        self.weights = inverse.div_(-inverse.diagonal().clone()).contiguous()
        self.weights.fill_diagonal_(0.0)
        self.counts, self.items = train.popularity(), train.items
        return self

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """A copy with rows and columns for new items; see `with_new_items`."""
        again = super().updated(fitted, log, added)
        assert isinstance(again, EASE)
        if log.items > again.items:
            again.weights = with_new_items(again.weights, log, self.l2)
            again.items = log.items
        return again

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice)."""
        table = self.weights[:, items]
        # Sums the rows of B of the user's items; a product would read all of B.
        return F.embedding_bag(
            history.values, table, history.offsets, mode="sum", include_last_offset=True
        )

    def similarity_to(self, others: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from (rows,) items to their weights for `others`, (rows, n).

        They are relative to the largest weight of the item; negative ones count as 0.
        """

        def similarity(items: Tensor) -> Tensor:
            rows = self.weights[items]
            return relative(rows.gather(1, others), rows.amax(1, keepdim=True))

        return similarity

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of the counts and of the item-to-item matrix."""
        yield from super().layout(found, items)
        yield "weights", Spec((items, items))

    def to_onnx(self) -> nn.Module:
        """Module from padded histories to scores."""
        return _PaddedScores(self.weights, self.counts)


class _PaddedScores(nn.Module):
    """EASE from (rows, length) item numbers, padded with -1, to (rows, items) scores."""

    def __init__(self, weights: Tensor, counts: Tensor) -> None:
        super().__init__()
        self.weights, self.counts = nn.Buffer(weights), nn.Buffer(counts)

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).unsqueeze(2).float()
        scores = (self.weights[history.clamp(min=0)] * there).sum(1)
        return torch.where(there.any(1), scores, self.counts)
