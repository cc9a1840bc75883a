"""The cheapest subsets, against enumeration."""

import itertools
import math

import pytest
import torch

from fewfold.structured.structures.flips import MAX_LISTED, cheapest_sets


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 9])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 10, MAX_LISTED])
def test_they_are_the_cheapest_of_all(size: int, k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    price = torch.rand(20, size, generator=generator, dtype=torch.double).pow(3).sort(1).values
    if size > 2:  # some that cannot be, some that are equal, some that cost nothing
        price[:3, -1], price[3:6], price[6:9, :2] = math.inf, 1.0, 0.0
    sets, costs = cheapest_sets(price, k)
    listed = torch.tensor(list(itertools.product([False, True], repeat=size)), dtype=torch.bool)
    every = listed.view(2**size, size)
    expected = torch.where(every, price.unsqueeze(1), 0.0).sum(-1).sort(1).values
    expected = torch.nn.functional.pad(expected, (0, k), value=math.inf)[:, :k]
    torch.testing.assert_close(costs, expected)
    there = costs < math.inf
    own = torch.where(sets, price.unsqueeze(1), 0.0).sum(-1)
    torch.testing.assert_close(own[there], costs[there])
    for row, count in zip(sets, there.sum(1), strict=True):
        assert len({tuple(one) for one in row[:count].tolist()}) == count
