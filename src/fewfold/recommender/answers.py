"""Recommendation lists: item ids with scores and attributes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.attributes import Attributes
from fewfold.recommender.ids import Id, Ids
from fewfold.recommender.ranking.exact_ranking import Ranking

__all__ = ["Recommendations"]


@dataclass(frozen=True, eq=False)
class Recommendations:
    """Recommended items, best first: a list for one query, a list of lists for a batch.

    Iteration yields (item, score) pairs of one list, or the `Recommendations` of each query.

    Attributes:
        items: item ids as in the log; fewer than k if there are no more candidates.
        scores: scores, comparable only within one query.
        of: the query: a user, an item, or None for a history; a list for a batch.
        attributes: attributes of each item (see `Recommender.attach`), structured like `items`.
        unknown: ids of a history that the model does not know and ignored, like `of`.

    Example:
        >>> from fewfold.recommender import Recommendations
        >>> one = Recommendations(["zlib1g-dev", "bison"], [2.5, 0.25])
        >>> dict(one)
        {'zlib1g-dev': 2.5, 'bison': 0.25}
        >>> print(one)
           1  zlib1g-dev  2.500
           2  bison       0.250
    """

    items: list[Any]
    scores: list[Any]
    of: Any = None
    attributes: list[Any] | None = None
    unknown: list[Any] | None = None

    @classmethod
    def read(
        cls,
        found: Ranking,
        ids: Ids,
        of: list[Any],
        attributes: Attributes | None = None,
        unknown: list[Any] | None = None,
    ) -> "Recommendations":
        """Construct from a ranking by item number, with one list per row."""
        counts = (found.ids >= 0).sum(1).tolist()
        flat = iter(ids.take(found.ids[found.ids >= 0]))
        items = [[next(flat) for _ in range(count)] for count in counts]
        scores = [row[:n] for row, n in zip(found.scores.tolist(), counts, strict=True)]
        more = None
        if attributes is not None:
            rows = zip(found.ids.tolist(), counts, strict=True)
            more = [[attributes[number] for number in row[:n]] for row, n in rows]
        return cls(items, scores, of, more, unknown)

    @property
    def batch(self) -> bool:
        """Whether this is the result of several queries."""
        return isinstance(self.of, list)

    def first(self) -> "Recommendations":
        """Return the recommendations of the first query of a batch."""
        one: Recommendations = next(iter(self))
        return one

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        if not self.batch:
            yield from zip(self.items, self.scores, strict=True)
            return
        for row in range(len(self)):
            attributes, unknown = (
                None if many is None else many[row] for many in (self.attributes, self.unknown)
            )
            yield Recommendations(
                self.items[row], self.scores[row], self.of[row], attributes, unknown
            )

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict per item: `of` (in a batch), rank, item, score and its attributes."""
        if self.batch:
            return [
                {"of": one.of, **entry} if one.of is not None else {"of": number, **entry}
                for number, one in enumerate(self)
                for entry in one.to_dicts()
            ]
        attributes = self.attributes or [{}] * len(self)
        return [
            {"rank": rank, "item": item, "score": score, **_without_clashes(more)}
            for rank, ((item, score), more) in enumerate(zip(self, attributes, strict=True), 1)
        ]

    def __str__(self) -> str:
        if self.batch:
            parts = (
                f"{number if one.of is None else one.of}\n{one}" for number, one in enumerate(self)
            )
            return "\n\n".join(parts)
        if not self.items:
            return "  nothing left to recommend"
        wide = max(len(_one_line(item)) for item in self.items)
        far = max(len(f"{score:.3f}") for score in self.scores)
        lines = []
        attributes = self.attributes or [{}] * len(self)
        for rank, ((item, score), known) in enumerate(zip(self, attributes, strict=True), 1):
            more = "  ".join(_one_line(value) for value in known.values())
            lines.append(f"{rank:4}  {_one_line(item):{wide}}  {score:{far}.3f}  {more}".rstrip())
        return "\n".join(lines)


def _without_clashes(attributes: dict[str, str]) -> dict[str, str]:
    """Rename attributes that clash with the keys of `to_dicts`."""
    own = ("of", "rank", "item", "score")
    return {f"{name}_" if name in own else name: value for name, value in attributes.items()}


def _one_line(value: Id) -> str:
    """Format an id on one line."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]
