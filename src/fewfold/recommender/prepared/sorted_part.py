"""Sort the rows of one part of a log by user and item, and merge those of the same pair."""

from typing import Any

import numpy as np

from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions, from_keys
from fewfold.recommender.prepared.item_codes import ItemNumbers
from fewfold.recommender.prepared.part_files import Part
from fewfold.recommender.prepared.scatter import Scattered
from fewfold.recommender.prepared.spill import Columns
from fewfold.recommender.reading.log_rows import before_all, no_time
from fewfold.recommender.reading.numbering import texts
from fewfold.recommender.reading.table_source import library

__all__ = ["sorted_part"]


def sorted_part(rows: Columns, items: ItemNumbers, facts: Scattered) -> Part:
    """Return the users of a part and their interactions, merged as `read_log` merges them.

    Args:
        rows: columns of the part; its arrays are released.
        items: numbers of the items.
        facts: of the whole log.
    """
    if not rows:
        empty = Texts.of([]) if facts.textual else np.empty(0, dtype=np.int64)
        return Part(Ids(empty), _empty(facts, len(items)))
    numbers = items.of(rows.pop("item"))
    moments, given = _moments(rows.pop("time", None), facts), rows.pop("weight", None)
    high = rows.pop("liked", None)
    order, users, ids = _by_user(rows.pop("user"))
    keys = numbers[order].astype(np.int64)
    bad = None if not facts.rated else keys < 0  # of items that nobody likes
    keys += users * len(items)
    moments = None if moments is None else moments[order]
    given = None if given is None else given[order]
    shape = (len(ids), len(items))
    if not facts.rated or high is None or bad is None:
        return Part(ids, from_keys(keys, moments, shape, given))
    high = high[order]
    likes = from_keys(
        keys[high], None if moments is None else moments[high], shape,
        None if given is None else given[high],
    )  # fmt: skip
    low = ~high & ~bad
    dislikes = from_keys(keys[low], None if moments is None else moments[low], shape)
    return _compact(likes, dislikes, ids)


def _empty(facts: Scattered, items: int) -> Interactions:
    none = np.empty(0, dtype=np.int64)
    times = None if facts.timed is None else np.empty(0, dtype=facts.timed)
    weights = np.empty(0) if "weight" in facts.columns else None
    return from_keys(none, times, (0, items), weights)


def _moments(times: Any, facts: Scattered) -> np.ndarray | None:
    """Return the times, those that are missing before all others; None if the log has none."""
    if times is None or facts.timed is None:
        return None
    moments: np.ndarray = times.astype(facts.timed, copy=False)
    missing = no_time(moments)
    if missing.any():
        moments[missing] = before_all(moments.dtype.type(facts.oldest), moments.dtype)
    return moments


def _by_user(users: Any) -> tuple[np.ndarray, np.ndarray, Ids]:
    """Return the order of the rows by user, the user number of each in it, and the sorted ids."""
    if isinstance(users, Texts):
        pl = library("polars")
        column = pl.from_arrow(users.to_arrow())
        coded = column.cast(pl.Categorical(pl.Categories.random()))
        codes = coded.to_physical().to_numpy()
        names = pl.Series(np.arange(int(codes.max()) + 1, dtype=np.uint32))
        names = names.cat.to(coded.dtype).cast(pl.String)
        place = names.arg_sort().to_numpy()
        table = np.empty(len(place), dtype=np.int64)
        table[place] = np.arange(len(place))
        order, numbers = _sorted(table[codes])
        return order, numbers, Ids(texts(names.gather(place)))
    order, values = _sorted(users)
    new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    ids = values[new].astype(np.int64, copy=False)
    return order, np.cumsum(new, dtype=np.int64) - 1, Ids(ids)


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stable order of integers, and the integers in it as int64."""
    low, bits = int(values.min()), len(values).bit_length()
    if (int(values.max()) - low).bit_length() + bits > 63:
        order = np.argsort(values, kind="stable")
        return order, values[order].astype(np.int64, copy=False)
    # Sorting with the position in the low bits is several times faster than argsort.
    packed = values.astype(np.int64)
    packed -= low
    packed <<= bits
    packed |= np.arange(len(values))
    packed.sort()
    found = packed >> bits
    found += low
    packed &= (1 << bits) - 1
    return packed, found


def _compact(likes: Interactions, dislikes: Interactions, users: Ids) -> Part:
    """Leave out users without a like; a pair that is both is liked."""
    other = dislikes.keep(~dislikes.jagged.isin(likes.jagged))
    kept = likes.jagged.lengths.nonzero().squeeze(1)
    found = likes.with_values(dislikes=other).select(kept)
    return Part(users.select(kept.numpy()), found)
