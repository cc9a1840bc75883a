"""Inverted multi-index: softmax over quantised item vectors as a proposal."""

from collections.abc import Mapping
from typing import Literal, Self

import torch
from torch import Tensor

from fewfold.sampling.categorical_draws import GivenExact
from fewfold.sampling.codebooks import product_codes, residual_codes
from fewfold.sampling.inverted_index import Cells, GivenCells
from fewfold.sampling.item_rows import ItemRows
from fewfold.sampling.proposal import (
    Given,
    Proposal,
    check_counts,
    check_items,
    check_queries,
    check_rows,
    stored,
)
from fewfold.sampling.static import powered, unfitted

__all__ = ["MultiIndex"]

Within = Literal["exact", "uniform", "popularity"]


class MultiIndex(Proposal):
    """Exact softmax over quantised item vectors, in time independent of the number of items.

    Item vectors are quantised to the sum of one codeword from each codebook. Items with the same
    codewords share a cell, and

        q(i | z)  =  mass_i exp(z . quantised_i) / sum_j mass_j exp(z . quantised_j),

    sampled by drawing a cell, then an item. `within` is the distribution inside a cell: "uniform"
    (mass 1) or "popularity" (mass = counts). With "exact", q is the softmax of z . item itself, at
    the cost of the scores of all items.

    Args:
        codewords: number per codebook; at most the number of items.
        codebooks: number of codebooks; of codewords ** codebooks cells only non-empty ones exist.
        within: distribution over the items of a cell.
        residual: use residual quantisation instead of product quantisation.
        seed: seed of k-means.

    Shapes:
        fit: item_vectors (items, d), counts (items,). sample: queries (B, d) -> (B, n).

    Example:
        >>> import torch, fewfold as ff
        >>> items = torch.tensor([[1., 0.], [1.1, 0.], [0., 2.], [0., 2.1]])
        >>> proposal = ff.MultiIndex(codewords=2).fit(items)
        >>> every = torch.arange(4).expand(1, 4)
        >>> proposal.log_prob(torch.tensor([[1., 0.]]), every).exp()
        tensor([[0.3704, 0.3704, 0.1296, 0.1296]])

    Reference: Chen, Lian, Jin, Huang, Zheng and Chen, "Fast Variational AutoEncoder with
    Inverted Multi-Index for Collaborative Filtering", WWW 2022.
    """

    def __init__(
        self,
        codewords: int = 16,
        *,
        codebooks: int = 2,
        within: Within = "uniform",
        residual: bool = False,
        seed: int = 0,
    ) -> None:
        for name, value in (("codewords", codewords), ("codebooks", codebooks)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        if within not in ("exact", "uniform", "popularity"):
            raise ValueError(f"within must be 'exact', 'uniform' or 'popularity', got {within!r}")
        self.codewords, self.codebooks, self.within = codewords, codebooks, within
        self.residual = residual
        self._generator = torch.Generator().manual_seed(seed)
        self._books: Tensor | None = None  # (books, words, d)
        self._cells: Cells | None = None
        self._mass: Tensor | None = None
        self._items: Tensor | None = None

    def fit(self, item_vectors: Tensor | ItemRows, counts: Tensor | None = None) -> Self:
        vectors = check_rows(item_vectors)
        items, d = vectors.shape
        if self.codewords > items:
            raise ValueError(
                f"codewords must be at most the number of items={items}, got {self.codewords}"
            )
        if not self.residual and self.codebooks > d:
            raise ValueError(
                f"codebooks must be at most the length of a vector d={d}, got {self.codebooks}; "
                "or write residual=True"
            )
        device = vectors.local.device
        self._mass = powered(counts, items, device=device) if self.within == "popularity" else None
        self._books = None
        return self.refresh(vectors)

    def refresh(self, item_vectors: Tensor | ItemRows) -> Self:
        """Quantise again, starting k-means from the current codebooks; counts stay as fitted."""
        exact = self.within == "exact"
        vectors = check_rows(check_items(item_vectors) if exact else item_vectors)
        if self._mass is not None and vectors.count != len(self._mass):
            raise ValueError(
                f"refresh expects the {len(self._mass)} items of the last fit, got "
                f"{vectors.count}; for other items call fit"
            )
        quantise = residual_codes if self.residual else product_codes
        before = self._books
        if before is not None and before.shape[2] != vectors.shape[1]:
            raise ValueError(
                f"refresh expects vectors of length {before.shape[2]}, got {vectors.shape[1]}; "
                "for other vectors call fit"
            )
        self._books, codes = quantise(
            vectors, self.codewords, self.codebooks, self._generator, before
        )
        shift = torch.arange(self.codebooks, device=codes.device) * self.codewords
        self._cells = Cells.build(codes + shift, self._mass)
        self._items = vectors.local.clone() if exact else None
        return self

    @property
    def mass(self) -> Tensor | None:
        """(items,) weight of each item in its cell; None if all are equal or within is "exact"."""
        return self._mass

    def state_dict(self) -> dict[str, Tensor]:
        """Return the fitted state and the state of the generator of k-means."""
        state = {"generator": self._generator.get_state()}
        if self._books is not None and self._cells is not None:
            # Items of mass zero are in no cell; their code is arbitrary and stays unused.
            cell = self._cells.cell_of.clamp(min=0)
            state["books"] = self._books
            state["codes"] = self._cells.code.index_select(1, cell).T.contiguous()
        for name, value in (("mass", self._mass), ("items", self._items)):
            if value is not None:
                state[name] = value
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        generator = torch.Generator()
        try:
            generator.set_state(stored(state, "generator", self).cpu())
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"the state of MultiIndex has no usable generator: {error}") from error
        books = codes = mass = items = None
        if "books" in state or "codes" in state:
            books, codes = self._checked_codes(
                stored(state, "books", self), stored(state, "codes", self)
            )
            if self.within == "popularity":
                mass = check_counts(stored(state, "mass", self).clone(), len(codes), "mass")
            if self.within == "exact":
                items = check_items(stored(state, "items", self)).clone()
                if items.shape != (len(codes), books.shape[2]):
                    raise ValueError(
                        f"the state of MultiIndex must hold items {len(codes), books.shape[2]}, "
                        f"like its codes and books, got {tuple(items.shape)}"
                    )
        # Assign after all checks: an invalid state must leave the proposal unchanged.
        self._cells = None if codes is None else Cells.build(codes, mass)
        self._books, self._mass, self._items = books, mass, items
        self._generator = generator

    def _checked_codes(self, books: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return books (books, words, d) and codes (items, books) of a checked state."""
        if (
            books.dim() != 3
            or books.shape[:2] != (self.codebooks, self.codewords)
            or not books.shape[2]
            or not books.is_floating_point()
            or not books.isfinite().all()
        ):
            raise ValueError(
                "the state of MultiIndex must hold books of finite numbers "
                f"({self.codebooks}, {self.codewords}, d), for its codebooks and codewords, got "
                f"{books.dtype} {tuple(books.shape)}"
            )
        if codes.is_floating_point() or codes.dim() != 2 or codes.shape[1] != self.codebooks:
            raise ValueError(
                f"the state of MultiIndex must hold whole numbers codes (items, {self.codebooks}), "
                f"got {codes.dtype} {tuple(codes.shape)}"
            )
        codes = codes.long()
        first = torch.arange(self.codebooks, device=codes.device) * self.codewords
        bad = (codes < first) | (codes >= first + self.codewords)
        if len(codes) == 0 or bad.any():
            what = "none" if len(codes) == 0 else f"codes[{', '.join(map(str, _first(bad)))}]"
            raise ValueError(
                f"codes of a MultiIndex name one of {self.codewords} codewords of each codebook, "
                f"numbered on from one codebook to the next; {what} does not"
            )
        return books.float().clone(), codes

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        if self._books is None or self._cells is None:
            raise unfitted(self)
        queries = check_queries(queries, self._books.shape[2])
        if self._items is not None:
            return GivenExact(queries @ self._items.T, shared=shared)
        return GivenCells(self._cells, queries @ self._books.flatten(0, 1).T, shared=shared)

    def quantised(self) -> Tensor:
        """Return the quantised item vectors (items, d); zeros for items of mass zero."""
        if self._books is None or self._cells is None:
            raise unfitted(self)
        words = self._books.flatten(0, 1)[self._cells.code.long()].sum(0)
        listed = self._cells.cell_of >= 0
        return torch.where(listed[:, None], words[self._cells.cell_of.long()], 0.0)


def _first(bad: Tensor) -> list[int]:
    """Return the index of the first True."""
    return [int(place) for place in bad.nonzero()[0]]
