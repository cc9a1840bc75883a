"""Approximate search over item vectors, with its measured recall."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewfold._optional import optional_import
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.model import Fitted, single_item_rows
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.shared_tensors import SharedTensors

__all__ = ["Search"]

_SAMPLE = 500  # users on which recall is measured


@dataclass(frozen=True, eq=False, repr=False)
class Search:
    """Inverted lists of item vectors (faiss), of which a query scans only a part.

    Attributes:
        fitted: the model whose item vectors are indexed.
        index: the faiss index.
        recall: share of the exact top `k` that it finds, measured on users of the log, or, in a
            model saved without users, on histories of one item.
        k: number of items for which recall is measured.
        lists: number of lists.
        probes: number of lists that are scanned for each query.
    """

    fitted: Fitted
    index: Any
    recall: float
    k: int
    lists: int
    probes: int

    @classmethod
    def build(
        cls,
        fitted: Fitted,
        log: Interactions | None,
        *,
        recall: float = 0.95,
        k: int = 10,
        seed: int = 0,
    ) -> "Search":
        """Build the index, and double the number of scanned lists until the recall is reached."""
        if not 0 < recall <= 1:
            raise ValueError(f"recall must be above 0 and at most 1, got {recall}")
        vectors = fitted.vectors
        if vectors is None:
            raise ValueError(
                f"a {type(fitted.recipe).__name__} has no item vectors to index and ranks exactly; "
                "fit fastvae or als"
            )
        faiss = _faiss()
        lists = max(1, min(len(vectors) // 40, int(4 * len(vectors) ** 0.5)))
        # The quantizer must outlive the index, so the index owns it.
        quantizer = faiss.IndexFlatIP(vectors.shape[1])
        index = faiss.IndexIVFFlat(quantizer, vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        quantizer.this.disown()
        index.cp.seed = seed + 1
        index.cp.min_points_per_centroid = 1  # no warning for few items
        index.train(vectors.numpy())
        index.add(vectors.numpy())
        generator = torch.Generator().manual_seed(seed)
        # Without a log, histories of one item each.
        count = len(vectors) if log is None else log.users
        sample = torch.randperm(count, generator=generator)[:_SAMPLE]
        if log is None:
            history = single_item_rows(sample)
        else:
            history = log.rows(sample, ordered=fitted.recipe.ordered)
        exact = fitted.rank(history, k, exclude=history).ids
        probes, found = 1, 0.0
        while True:
            search = cls(fitted, index, found, k, lists, probes)
            found = _recall(search.rank(history, k, exclude=history).ids, exact)
            if found >= recall or probes >= lists:
                return cls(fitted, index, found, k, lists, probes)
            probes = min(2 * probes, lists)

    @classmethod
    def mapped(
        cls,
        fitted: Fitted,
        log: Interactions | None,
        shared: SharedTensors,
        *,
        recall: float = 0.95,
        k: int = 10,
        seed: int = 0,
    ) -> "Search":
        """Build the index in one of several processes, and map it from its file in all of them."""
        faiss, name = _faiss(), f"index-{recall:g}-{k}-{seed}"
        found: list[Search] = []

        def built() -> "Search":
            if not found:
                found.append(cls.build(fitted, log, recall=recall, k=k, seed=seed))
            return found[0]

        def read(path: Path) -> Any:
            if not path.exists():
                raise FileNotFoundError(path)
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            # Starting threads that read ahead would take longer than a search in memory.
            faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
            return index

        def write(path: Path) -> None:
            faiss.write_index(built().index, str(path))

        def figures() -> dict[str, Tensor]:
            one = built()
            return {"figures": torch.tensor([one.recall, one.lists, one.probes]).double()}

        index = shared.opened(f"{name}.faiss", write, read)
        reached, lists, probes = shared.tensors(name, figures)["figures"].tolist()
        return cls(fitted, index, reached, k, int(lists), int(probes))

    def __repr__(self) -> str:
        return (
            f"Search(recall@{self.k}={self.recall:.3f}, {self.probes} of {self.lists} lists "
            "scanned)"
        )

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank as `Fitted.rank` does, approximately."""
        faiss = _faiss()
        items = self.fitted.items
        spare = 0 if exclude is None or not len(exclude.lengths) else int(exclude.lengths.max())
        count = min(items, k + spare)
        options = faiss.SearchParametersIVF(nprobe=self.probes)
        if allowed is not None:
            chosen = allowed.nonzero().squeeze(1).numpy()
            options.sel = selector = faiss.IDSelectorBatch(chosen)  # noqa: F841 (kept alive)
        queries = self.fitted.queries(history)
        scores, ids = self.index.search(queries.numpy(), count, params=options)
        found = Ranking(torch.from_numpy(ids), torch.from_numpy(scores))
        return _first(found, k, exclude, items)


def _first(found: Ranking, k: int, exclude: Jagged | None, items: int) -> Ranking:
    """Return the first k items of each row that are not excluded."""
    ids, scores = found
    gone = ids < 0
    if exclude is not None:
        row = torch.arange(len(ids)).unsqueeze(1)
        gone |= torch.isin(row * items + ids, exclude.row * items + exclude.values)
    order = gone.to(torch.int8).argsort(dim=1, stable=True)[:, :k]
    gone = gone.gather(1, order)
    ids, scores = ids.gather(1, order), scores.gather(1, order)
    missing = k - ids.shape[1]
    ids = torch.nn.functional.pad(ids.masked_fill(gone, -1), (0, missing), value=-1)
    scores = scores.masked_fill(gone, -torch.inf)
    return Ranking(ids, torch.nn.functional.pad(scores, (0, missing), value=-torch.inf))


def _recall(found: Tensor, exact: Tensor) -> float:
    both = (found.unsqueeze(2) == exact.unsqueeze(1)) & (exact >= 0).unsqueeze(1)
    return float(both.sum() / (exact >= 0).sum().clamp(min=1))


def _faiss() -> Any:
    with optional_import("faiss", "recommender", "an index"):
        import faiss
    return faiss
