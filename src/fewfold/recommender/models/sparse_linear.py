"""Sparse EASE: a linear model from items to items with few weights per item."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from fewfold._check import positive_number, whole_number
from fewfold._resources import format_bytes, free_memory
from fewfold._tensors import Found, Spec
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model_options import SPARSE_EASE as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import register
from fewfold.recommender.models.sparse_item_rows import SparseRows, SparseRowsBaseline
from fewfold.recommender.models.sparse_ridge import HUBS, rounds, sparse_ridge

__all__ = ["SparseEASE"]

_ENTRY = 8  # bytes of a weight and its item
_TUNED_ITEMS = 50_000  # most items for which `compare` tries several penalties
_L2 = (20.0, 100.0, 400.0)
_LARGE_ITEMS = 200_000  # more items have fewer predictors in `compare`, and most have few users
_LARGE = (20.0, 50)  # penalty and predictors for them


@register
@dataclass(eq=False)
class SparseEASE(SparseRowsBaseline):
    """Linear item-to-item model with a zero diagonal and few weights per item.

    Each item is regressed on at most `predictors` others with penalty l2:
    ``min |x_i - X b|^2 + l2 |b|^2``, and ``score_i = sum over the user's j of B_ji``. With all
    others as predictors this is `EASE`. Predictors are chosen greedily by how much each would
    explain of what is left. Memory is 8 bytes for each weight and, while fitting, 4 for each pair
    of items that share a user; no items x items matrix is formed.

    Example:
        >>> from fewfold.recommender import Interactions, SparseEASE
        >>> train = Interactions.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3])
        >>> SparseEASE(l2=1.0).fit(train).recommend(Interactions.from_pairs([0], [3]).jagged, 2)
        tensor([[2, 0]])

    Reference:
        Steck (2019). Markov random fields for collaborative filtering. NeurIPS. Spišák et al.
        (2023). Scalable approximate NonSymmetric autoencoder for collaborative filtering. RecSys.
    """

    name: ClassVar[str] = "sparse-ease"
    colour: ClassVar[str] = "#26828e"
    l2: float = field(default=250.0, metadata=setting(OPTIONS["l2"], "l2 {:g}"))
    predictors: int = field(default=200, metadata=setting(OPTIONS["predictors"], "{} predictors"))
    counts: Tensor = field(init=False, repr=False)
    offsets: Tensor = field(init=False, repr=False)
    ids: Tensor = field(init=False, repr=False)
    weights: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive_number(self.l2, "l2")
        whole_number(self.predictors, "predictors")

    @classmethod
    def grid(cls, items: int) -> "Sequence[SparseEASE]":
        """Several penalties for a small catalogue, one and fewer predictors for a large one."""
        if items > _LARGE_ITEMS:
            return [cls(*_LARGE)]
        return [cls(l2) for l2 in (_L2 if items <= _TUNED_ITEMS else _L2[:2])]

    @classmethod
    def too_large(cls, items: int) -> str:
        """Why the weights do not fit into memory; empty if they do."""
        width = cls.grid(items)[0].predictors
        need = 2 * _ENTRY * items * width
        if need > 0.6 * free_memory():
            return f"{width} predictors of {items:,} items need {format_bytes(need)}"
        return ""

    @property
    def rows(self) -> SparseRows:
        """The weights of each predictor."""
        return SparseRows(self.offsets, self.ids, self.weights)

    def work(self, log: Interactions) -> float:
        """Multiply-adds of the regressions, and of reading the Gram matrix for them."""
        width = min(self.predictors, log.items)
        lengths = log.jagged.lengths.double()
        # At most so many items share a user with each; its row of the Gram matrix is as long.
        shared = torch.zeros(log.items, dtype=torch.float64).index_add(0, log.ids, lengths[log.row])
        shared.clamp_(max=log.items)
        chosen = shared.clamp(max=width)
        hubs = min(HUBS, log.items // 4)
        short = shared.where(shared < shared.topk(hubs).values[-1], 0.0) if hubs else shared
        # Mean rows of a usual predictor: all of them once for the second round.
        read = (short + 0.5 * (rounds(log.items) - 1) * shared)[log.ids]
        row = float(read.mean()) if log.pairs else 0.0
        return float((chosen**3).sum()) + 8.0 * row * float(chosen.sum())

    def fit(self, train: Interactions) -> Self:
        """Solve the regressions of all items; weights of pairs are ignored."""
        train = replace(train, weights=None)  # the kernels count users
        found = sparse_ridge(train, self.l2, self.predictors)
        self.offsets, self.ids, self.weights = found.offsets, found.ids, found.weights
        self.counts, self.items = train.counts().float(), train.items
        return self

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of the counts and of the sparse item-to-item matrix."""
        yield from super().layout(found, items)
        entries = found["ids"][1][0] if "ids" in found and len(found["ids"][1]) == 1 else None
        yield "offsets", Spec((items + 1,), torch.int64, least=0)
        yield "ids", Spec((entries,), torch.int32, least=0, below=items)
        yield "weights", Spec((entries,))

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of all scores: a user has every item, and each weight is the largest."""
        return super().largest({name: ranges[name] for name in ("weights", "counts")}, items)

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Self:
        """A copy with these tensors; ValueError if the offsets do not fit the entries."""
        offsets, entries = tensors["offsets"], len(tensors["ids"])
        if int(offsets[0]) != 0 or int(offsets[-1]) != entries or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must rise from 0 to the number of ids, {entries}")
        return super().from_state(tensors, items)

    def to_onnx(self) -> nn.Module:
        """Module from padded histories to scores."""
        return _PaddedScores(self.rows, self.counts)


class _PaddedScores(nn.Module):
    """From (rows, length) item numbers, padded with -1, to (rows, items) scores."""

    def __init__(self, matrix: SparseRows, counts: Tensor) -> None:
        super().__init__()
        # By predicted item: as many predictors each as the widest has, of weight 0 where it has
        # fewer. By predictor, the rows of popular items would be as long as the catalogue.
        target, order = matrix.ids.long().sort(stable=True)
        source = torch.repeat_interleave(torch.arange(matrix.items), matrix.offsets.diff())[order]
        sizes = torch.bincount(target, minlength=matrix.items)
        place = torch.arange(len(target)) - (sizes.cumsum(0) - sizes)[target]
        width = int(sizes.max()) if len(target) else 1
        ids = torch.zeros(matrix.items, width, dtype=torch.int64)
        weights = torch.zeros(ids.shape)
        ids[target, place], weights[target, place] = source, matrix.weights[order]
        self.ids, self.weights, self.counts = nn.Buffer(ids), nn.Buffer(weights), nn.Buffer(counts)

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).float()
        rows, items = history.shape[0], self.counts.shape[0]
        user = torch.zeros(rows, items).scatter_add(1, history.clamp(min=0), there)
        scores = (user[:, self.ids] * self.weights).sum(2)
        return torch.where((there > 0).any(1, keepdim=True), scores, self.counts)
