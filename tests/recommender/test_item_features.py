"""Features of items from a table of attributes."""

import math
import zlib

import numpy as np
import pytest

from fewfold.recommender.attributes import Attributes
from fewfold.recommender.item_features import item_features

_GENRES = ["Action|RPG", "RPG", "Action", "Puzzle|RPG", "", "Unique|Action"]


def test_each_column_is_used_by_its_values() -> None:
    count = 60
    columns = {
        "price": [str(0.5 + n) for n in range(count)],
        "stars": [str(n % 3) for n in range(count)],
        "day": [f"2020-01-{1 + n % 28:02}" if n else "soon" for n in range(count)],
        "maker": [f"maker {n % 7}" for n in range(count)],
        "tags": [("a,b", "b,c", "a")[n % 3] for n in range(count)],
        "title": [f"The story of hero{n}, part {n}" for n in range(count)],
        "nothing": [""] * count,
        "code": [f"x{n:03}z{n}" for n in range(count)],
    }
    found = item_features(Attributes.of(columns))
    assert found.columns == {
        "price": "number", "stars": "category", "day": "date", "maker": "category",
        "tags": "tags separated by ','", "title": "text",
        "nothing": "not used: no value is shared by two items", "code": "text",
    }  # fmt: skip
    assert found.matrix.shape[0] == count
    again = item_features(Attributes.of(columns))
    assert (found.matrix != again.matrix).nnz == 0
    assert "price: number" in str(found)


def test_tags_are_weighted_as_in_the_formula() -> None:
    found = item_features(Attributes.of({"genres": _GENRES})).matrix.todense()
    tags = ["Action", "RPG"]  # those that two items have, sorted
    naive = np.zeros((len(_GENRES), len(tags)))
    for row, value in enumerate(_GENRES):
        for column, tag in enumerate(tags):
            frequency = sum(tag in other.split("|") for other in _GENRES)
            if tag in value.split("|"):
                naive[row, column] = 1 + math.log(len(_GENRES) / frequency)
        length = np.sqrt((naive[row] ** 2).sum())
        naive[row] /= length or 1
    np.testing.assert_allclose(found, naive, rtol=1e-6)


def test_words_are_hashed_with_a_sign() -> None:
    titles = ["red tea", "red tea pot", "green tea", "blue nut"]
    width = 64
    found = np.asarray(
        item_features(Attributes.of({"title": titles}), width=width).matrix.todense()
    )
    naive = np.zeros((len(titles), width))
    tokens = [
        {*t.split(), *(" ".join(p) for p in zip(t.split(), t.split()[1:], strict=False))}
        for t in titles
    ]
    for row, mine in enumerate(tokens):
        for token in mine:
            frequency = sum(token in other for other in tokens)
            if frequency > 1:
                code = zlib.crc32(token.encode())
                sign = 1 if code >= 2**31 else -1
                naive[row, code % width] += sign * (1 + math.log(len(titles) / frequency))
        naive[row] /= np.linalg.norm(naive[row]) or 1
    np.testing.assert_allclose(found[:, :width], naive * math.sqrt(0.5), rtol=1e-6, atol=1e-7)
    lengths = np.linalg.norm(found[:, width:], axis=1)
    assert lengths[:3] == pytest.approx(math.sqrt(0.5))  # n-grams of "tea" and "red"


def test_numbers_are_standardised_and_missing_ones_flagged() -> None:
    values = [*map(float, range(30)), None, 1000.0]
    found = np.asarray(item_features(Attributes.of({"price": values})).matrix.todense())
    there = np.array([value for value in values if value is not None])
    standard = np.clip((there - there.mean()) / there.std(), -3, 3)
    ratio = found[[*range(30), 31], 0] / found[[*range(30), 31], 1:11].sum(1)
    np.testing.assert_allclose(ratio, standard, rtol=1e-5)
    assert found[30].tolist() == [0] * 11 + [1]
    assert found[[0, 31], 1:11].argmax(1).tolist() == [0, 9]


def test_a_table_without_shared_values_has_no_features() -> None:
    found = item_features(Attributes.of({"same": ["3", "3"], "code": ["ab", "cd"]}))
    assert found.matrix.shape == (2, 0)
    assert set(found.columns.values()) == {"not used: no value is shared by two items"}
