"""Checks of blocks of text: the kernels and numpy against a count byte by byte."""

import random
import re
from collections.abc import Iterator

import pytest

from fewfold._native import dispatch
from fewfold.recommender.reading import text_blocks as blocks

pytestmark = pytest.mark.native

# Around the 64 bytes of a step, the 255 steps of a counter of eight bits, and a block of 4096.
LENGTHS = (
    0,
    1,
    2,
    3,
    63,
    64,
    65,
    127,
    128,
    4095,
    4096,
    4097,
    4098,
    254 * 64,
    255 * 64,
    256 * 64 + 7,
)


@pytest.fixture(params=["kernels", "numpy"])
def _path(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels":
        if not dispatch.enabled():
            pytest.skip("needs the kernels")
        yield
    else:
        with dispatch.disabled():
            yield


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("length", LENGTHS)
def test_count(length: int) -> None:
    draw = random.Random(length)
    for text in (bytes(length), b"," * length, bytes(draw.choices(b",\n0a", k=length))):
        for sign in (0, 10, 44, 255):
            assert blocks.count(text, sign) == list(text).count(sign)


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("length", LENGTHS)
def test_usual_numbers(length: int) -> None:
    draw = random.Random(length)
    for _ in range(20):
        # Mostly without a zero that leads, at any place with one.
        text = bytearray(draw.choices(b"12345,\n", k=length))
        text[:1] = b"1"
        if length > 4 and draw.random() < 0.5:
            at = draw.randrange(1, length - 1)
            text[at : at + 2] = draw.choice([b",0", b"\n0", b"10", b";0"])
        data = bytes(text)
        assert blocks.usual_numbers(data, 44) == (re.search(rb"[,\n]0[0-9]", data) is None)


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize(
    ("text", "usual"),
    [
        (b"1,0\n0,2\n", True),
        (b"1,0", True),
        (b"1,00", False),
        (b"1,2\n07,3\n", False),
        (b"1,2\n0a,3\n", True),
        (b"0,1\n", False),  # not certain: the first field
        (b"1,-0\n", False),
        (b"1,+2\n", False),
        (b"1, 2\n", False),
        (b"1;02\n", True),  # another separator
        (b"", True),
    ],
)
def test_numbers_in_other_forms(text: bytes, usual: bool) -> None:
    assert blocks.usual_numbers(text, 44) == usual
