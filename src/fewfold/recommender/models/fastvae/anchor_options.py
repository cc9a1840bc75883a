"""Options of tables made of anchors: how many, how many per item, in how many bits."""

from dataclasses import dataclass, field

from fewfold._check import whole_number

__all__ = ["Anchors"]

_MOST = 256  # anchors, where their number is found in training
_FULL = 1 << 25  # entries of the largest transform that is held in full
_CUT, _TRAINED = 24, 8  # default number of entries per item


@dataclass(frozen=True)
class Anchors:
    """Size of the tables of a recommender, and how they are found.

    Attributes:
        count: number of anchors, each of the width of both tables together. None: found in
            training, by the loss of a twentieth of the users, which are held out for that.
        width: non-zeros per item, on average over the items. By default 24 if trained tables are
            cut, not counting the bias: cut entries are cheap, because the anchors that they belong
            to need not be stored. By default 8 if anchors are trained, counting the bias (not
            counting it if there are too many items for a transform that is held in full).
        bits: of a stored non-zero, from 2 to 8.
        from_scratch: train the anchors from the start, without dense tables. Needs less memory; the
            quality at the same size may be better or worse. Otherwise dense tables are trained
            and cut to anchors, unless `count` is None or there are too many items for it. Says how
            a model is fitted, not what it is: it is neither saved nor compared.
    """

    count: int | None = 64
    width: int | None = None
    bits: int = 8
    from_scratch: bool = field(default=False, compare=False, metadata={"saved": False})

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number(self.count, "count")
        if not 2 <= whole_number(self.bits, "bits") <= 8:
            raise ValueError(f"bits must be between 2 and 8, got {self.bits}")
        if self.width is not None and whole_number(self.width, "width") > self.most:
            raise ValueError(f"width must be at most count={self.most}, got {self.width}")

    @classmethod
    def of(cls, value: "int | str | Anchors") -> "Anchors":
        """Return the options for a number of anchors, or for `"auto"`; `Anchors` as they are.

        Example:
            >>> Anchors.of("auto") == Anchors(count=None), Anchors.of(16).count
            (True, 16)
        """
        if isinstance(value, Anchors):
            return value
        if value == "auto":
            return cls(None)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f'anchors must be how many, "auto" or Anchors(...), got {value!r}')
        return cls(value)

    def per_item(self, *, cut: bool) -> int:
        """Return the width, or the default one of tables that are cut or trained."""
        return min(_CUT if cut else _TRAINED, self.most) if self.width is None else self.width

    @property
    def most(self) -> int:
        """Largest number of anchors, without that of the bias."""
        return _MOST if self.count is None else self.count

    def held_in_full(self, items: int) -> bool:
        """Whether the transform of as many items is stored with all its entries in training."""
        return items * (self.most + 1) <= _FULL

    def can_cut(self, items: int) -> bool:
        """Whether trained dense tables of as many items can be cut to these anchors."""
        return self.count is not None and self.held_in_full(items)

    def cuts(self, items: int) -> bool:
        """Whether to train dense tables of as many items and cut them, or to train the anchors."""
        return self.can_cut(items) and not self.from_scratch
