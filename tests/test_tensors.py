"""Headers of safetensors files, and tensor specifications."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fewfold._tensors import AtMost, HeaderError, Spec, check_names, extremes, read_header


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {
        "dtype": dtype, "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
    }  # fmt: skip


def written(file: Path, header: Any, size: int, length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    length = len(text) if length is None else length
    file.write_bytes(length.to_bytes(8, "little") + text + bytes(size))
    return file


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6).view(2, 3), "b": torch.tensor(1.5), "c": torch.zeros(0, 4).half(),
        "d": torch.tensor([True]), "e": torch.tensor([7, 8], dtype=torch.uint16),
    }  # fmt: skip
    save_file(tensors, tmp_path / "file", {"about": "naïve"})
    header = read_header(tmp_path / "file")
    assert header.tensors == {name: (it.dtype, tuple(it.shape)) for name, it in tensors.items()}
    assert header.metadata == {"about": "naïve"}
    import numpy as np

    assert header.numbers("a", np.dtype("<i8")).tolist() == [0, 1, 2, 3, 4, 5]
    assert header.numbers("a", np.dtype("<i8"), last=True).tolist() == [5]
    assert header.numbers("e", np.dtype("<u2"), last=True).tolist() == [8]
    assert header.numbers("c", np.dtype("<f2"), last=True).tolist() == []


BAD: dict[str, tuple[Any, int, int | None, str]] = {
    "longer than the file": ({"a": entry(0, 4)}, 4, 500, "header should have 500 bytes"),
    "by one": ({}, 0, 3, "header should have 3 bytes, the file has 10"),
    "a gap before": ({"a": entry(1, 4)}, 4, None, "overlap or leave a gap"),
    "a gap between": ({"a": entry(0, 2), "b": entry(3, 5)}, 5, None, "overlap or leave a gap"),
    "an overlap": ({"a": entry(0, 3), "b": entry(2, 5)}, 5, None, "overlap or leave a gap"),
    "bytes too many": ({"a": entry(0, 4)}, 5, None, "end at byte"),
    "bytes too few": ({"a": entry(0, 4)}, 3, None, "end at byte"),
    "bytes of nobody": ({}, 1, None, "end at byte 10, the file has 11"),
    "shape": ({"a": entry(0, 4, [5])}, 4, None, r"a of shape \[5\] does not fit 4 bytes"),
    "dtype": ({"a": entry(0, 4, [4], "F32")}, 4, None, "does not fit 4 bytes"),
    "no dtype": ({"a": entry(0, 4, [4], "F31")}, 4, None, "a has dtype 'F31', which is none of"),
    "a list of dtypes": ({"a": entry(0, 4, [4], ["U8"])}, 4, None, "which is none of"),
    "below zero": ({"a": entry(0, 4, [-2, -2])}, 4, None, "a has shape"),
    "truth": ({"a": entry(0, 1, [True])}, 1, None, "a has shape"),
    "backwards": ({"a": {**entry(0, 0), "data_offsets": [4, 0]}}, 4, None, "does not fit -4"),
    "one offset": ({"a": {**entry(0, 4), "data_offsets": [4]}}, 4, None, "and offsets"),
    "keys": ({"a": {"dtype": "U8"}}, 0, None, "a needs dtype, shape and data_offsets"),
    "more keys": ({"a": {**entry(0, 4), "x": 1}}, 4, None, "a needs dtype"),
    "a number": ({"a": 1}, 0, None, "a needs dtype"),
    "a list": ([], 0, None, "is not a JSON object"),
    "metadata": ({"__metadata__": {"a": 1}}, 0, None, "metadata values are not strings"),
    "no metadata": ({"__metadata__": None}, 0, None, "metadata values are not strings"),
}


@pytest.mark.parametrize(("header", "size", "length", "words"), BAD.values(), ids=BAD)
def test_headers_that_are_not_true_are_refused(
    header: Any, size: int, length: int | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(HeaderError, match=words):
        read_header(written(tmp_path / "file", header, size, length))


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 7, b"\x02" + bytes(7) + b"{", b"\x01" + bytes(7) + b"\xff"]
)
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(HeaderError):
        read_header(tmp_path / "file")


def test_a_spec_says_what_is_wrong() -> None:
    spec = Spec((2, AtMost(3), None), (torch.int8, torch.uint8), least=-1, below=5)
    assert spec.fault(torch.int8, (2, 3, 99)) is None
    assert spec.fault(torch.uint8, (2, 1, 0)) is None
    for shape in ((2, 4, 1), (2, 0, 1), (1, 3, 1), (2, 3), (2, 3, 1, 1), ()):
        words = "must be torch.int8 or torch.uint8 of shape (2, 1 to 3, any), got torch.int8 of "
        assert spec.fault(torch.int8, shape) == f"{words}shape {shape}"
    assert spec.fault(torch.int16, (2, 3, 9)) is not None
    assert spec.value_fault(-1, 4) is None
    assert spec.value_fault(-2, 4) == "must hold numbers of at least -1, got -2"
    assert spec.value_fault(0, 5) == "must hold numbers below 5, got 5"
    assert Spec((1,), positive=True).value_fault(0.0, 1.0) == "must be positive, got 0"
    for low, high in ((-torch.inf, 0.0), (0.0, torch.inf), (torch.nan, torch.nan)):
        assert Spec((1,)).value_fault(low, high) == "must be finite, got inf or nan"


def test_the_extremes_of_every_dtype() -> None:
    assert extremes(torch.tensor([1.0, torch.nan, 2.0]))[0] != 1.0
    assert extremes(torch.tensor([3, 60000], dtype=torch.uint16)) == (3, 60000)
    assert extremes(torch.tensor([0, 7], dtype=torch.uint8).view(torch.bool)) == (0, 7)
    assert extremes(torch.zeros(0)) == (0, 0)
    assert extremes(torch.tensor(-2.0, dtype=torch.bfloat16)) == (-2.0, -2.0)


def test_names_are_compared_one_by_one() -> None:
    def fail(name: str, what: str) -> Any:
        raise KeyError(f"{name} {what}")

    def endless() -> Any:
        number = 0
        while True:
            yield f"t{number}", Spec(())
            number += 1

    with pytest.raises(KeyError, match="t2 is missing"):
        check_names(["t0", "t1"], endless(), fail)
    with pytest.raises(KeyError, match="t1 does not belong there"):
        check_names(["t0", "t1"], [("t0", Spec(()))], fail)
    assert list(check_names(["t0"], [("t0", Spec(()))], fail)) == ["t0"]
