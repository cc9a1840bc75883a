"""The regulariser of SparseMAP: which vectors it takes for structures."""

import itertools

import pytest
import torch

from fewfold.structured.regularisers import SparseMAP
from fewfold.structured.structures import AtMostOne, Budget, Imply, Or, Structure


@pytest.mark.parametrize(
    ("structure", "size"), [(AtMostOne(), 3), (Or(), 3), (Imply(), 2), (Budget(2), 3)], ids=repr
)
def test_vertices_are_attained_where_they_are_structures(structure: Structure, size: int) -> None:
    """Of all vectors of bits, with and without any bit on."""
    for bits in itertools.product((0.0, 1.0), repeat=size):
        vertex = torch.tensor(bits, dtype=torch.float64)
        scores = 10 * (2 * vertex - 1)
        expected = bool((structure.argmax(scores) == vertex).all())
        assert bool(SparseMAP(structure).attains(vertex, scores)) == expected, bits
