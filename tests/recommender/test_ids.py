"""Ids: as they were written, found leniently, never twice."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfold.recommender import ids as ids_module
from fewfold.recommender import text_index
from fewfold.recommender.ids import Ids, Texts

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXT))
def test_texts_come_back(texts: list[str]) -> None:
    kept = Texts.of(texts)
    assert kept.tolist() == texts == list(kept)
    assert kept[:2] == texts[:2]


@given(st.lists(TEXT, unique=True, min_size=1), st.randoms(use_true_random=False))
def test_strings_are_found(texts: list[str], random: object) -> None:
    ids = Ids.of(texts)
    assert ids.take(ids.find(texts)) == texts
    assert ids.find(["\x00 not one of them \x00"]).tolist() == [-1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1))
def test_numbers_are_found_as_numbers_and_as_text(numbers: list[int]) -> None:
    ids = Ids.of(numbers)
    assert not ids.textual
    expected = list(range(len(numbers)))
    assert ids.find(numbers).tolist() == expected
    assert ids.find(map(str, numbers)).tolist() == expected
    assert ids.find(np.array(numbers)).tolist() == expected
    assert ids.tolist() == numbers


def test_asking_is_lenient_but_not_loose() -> None:
    words, numbers = Ids.of(["7", "007", "x"]), Ids.of([7, 8])
    assert words.find([7, "007", "07"]).tolist() == [0, 1, -1]
    odd = ["7", "07", " 7", "+7", "7.0", 7.0, 7.5, True, None, "x" * 30, float("nan")]
    assert numbers.find(odd).tolist() == [0, -1, -1, -1, -1, 0, -1, -1, -1, -1, -1]
    arrays = [np.int32(8), np.float32(8), np.array(8), torch.tensor(8), np.bool_(True)]
    assert numbers.find(arrays).tolist() == [1, 1, 1, 1, -1]
    assert words.find([7.0, np.int64(7), "x"]).tolist() == [0, 0, 2]
    assert numbers.find(["9" * 19, "9" * 25]).tolist() == [-1, -1]
    assert numbers.find(["9" * 5000, "-" + "9" * 5000]).tolist() == [-1, -1]  # int() refuses them


def test_an_id_comes_once() -> None:
    with pytest.raises(ValueError, match="one twice"):
        Ids.of(["a", "b", "a"])
    both = Ids.of([1, 2]).extended(Ids.of(["a"]))
    assert both.tolist() == ["1", "2", "a"]
    with pytest.raises(IndexError):
        Ids.of(["a"])[5]


@pytest.mark.parametrize("texts", [["a", "b", ""], ["", "a", ""], ["ab", "ba", "é"], ["a"] * 2, []])
def test_texts_that_come_twice_are_noticed(texts: list[str]) -> None:
    assert Ids(Texts.of(texts)).distinct() == (len(set(texts)) == len(texts))


def test_equal_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # Then the order of letters does not matter, and the halves of all hashes are 0.
    monkeypatch.setattr(text_index, "_MULTIPLIER", np.uint64(1))
    monkeypatch.setattr(text_index, "_BLOCK", 2)
    texts = ["ab", "ba", "abc", "cab", "x"]
    assert Ids(Texts.of(texts)).distinct()
    assert not Ids(Texts.of([*texts[:4], "ab"])).distinct()
    assert Texts.of(texts).find(["cab", "bca", None, "ab", "", "x"]).tolist() == [
        3, -1, -1, 0, -1, 4,
    ]  # fmt: skip


@given(st.lists(TEXT, unique=True, min_size=1), st.lists(TEXT | st.none()))
def test_many_texts_are_found_as_few_are(texts: list[str], others: list[str | None]) -> None:
    few, wanted = Ids.of(texts), [*others, *texts[::-1]]
    assert Texts.of(texts).find(wanted).tolist() == [
        -1 if one is None else int(few.find([one])[0]) for one in wanted
    ]


WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(WHOLE, unique=True, min_size=1), st.lists(st.integers() | TEXT | st.none()))
def test_many_numbers_are_found_as_few_are(numbers: list[int], others: list[object]) -> None:
    few, wanted = Ids.of(numbers), [*others, *numbers, *map(str, numbers)]
    many = Ids.of(numbers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ids_module, "_MOST_IN_DICT", 0)
        assert many.find(wanted).tolist() == few.find(wanted).tolist()
        assert many.find([]).tolist() == []


def test_many_ids_are_found_without_a_dict() -> None:
    count = ids_module._MOST_IN_DICT + 2
    ids = Ids(Texts.of(f"item {number}" for number in range(count)))
    wanted = ["item 0", f"item {count - 1}", f"item {count}", "item", "", 7, "item 00", "\ud800"]
    assert ids.find(wanted).tolist() == [0, count - 1, *[-1] * 6]
    assert "_number" not in vars(ids)
