"""Item vectors to which a proposal is fitted: all in this process, or some of them."""

from typing import Self

from torch import Tensor

__all__ = ["ItemRows"]


class ItemRows:
    """Vectors of all items in one tensor. A subclass has some of them, and others have the rest.

    What is computed of each vector is computed where it is, and `gather` has it for all items.

    Attributes:
        local: (n, d) the vectors in this process.
    """

    def __init__(self, local: Tensor) -> None:
        self.local = local

    @classmethod
    def of(cls, vectors: "Tensor | ItemRows") -> "ItemRows":
        """Return the vectors as `ItemRows`."""
        return vectors if isinstance(vectors, ItemRows) else ItemRows(vectors)

    @property
    def count(self) -> int:
        """Number of all items."""
        return len(self.local)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of all items, and the length of their vectors."""
        return self.count, self.local.shape[1]

    def with_rows(self, local: Tensor) -> Self:
        """Return other vectors of the same items."""
        return type(self)(local)

    def take(self, ids: Tensor) -> Tensor:
        """Return the vectors of these items, (n, d)."""
        return self.local[ids]

    def whole(self) -> Tensor:
        """Return the vectors of all items; TypeError if they are not in this process."""
        if len(self.local) != self.count:
            raise TypeError(
                "this proposal needs the vectors of all items in one process; in several processes "
                "use MultiIndex (but not within='exact'), Popularity or Uniform"
            )
        return self.local

    def gather(self, values: Tensor) -> Tensor:
        """Return what was computed of the vectors, (n, ...), for all items in their order."""
        return values
