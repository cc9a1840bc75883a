"""Subspaces of logs: block by block as in memory, and their orthonormal bases."""

import pytest
import torch
from torch import Tensor

from fewfold.distributed.group import Group
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.subspace import (
    _inverse_root,
    _orthonormal,
    item_scale,
    subspace_of_blocks,
    subspace_of_log,
)
from tests.distributed.jobs import log


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_blocks_of_a_log_have_the_subspace_of_the_whole() -> None:
    train: Interactions = log(150, 40)
    powers, scale = (0.4, 0.3), item_scale(train.counts(), (0.4, 0.3))
    basis, gram = subspace_of_log(train, 6, scale, powers, seed=1)
    mean = train.jagged.lengths.double().mean().item()
    blocks = [train.select(torch.arange(a, min(a + 40, 150))) for a in range(0, 150, 40)]
    found, sums = subspace_of_blocks(
        lambda: iter(blocks), 6, scale, powers, 1, mean=mean, group=Group()
    )
    torch.testing.assert_close(found @ found.T, basis @ basis.T, atol=2e-4, rtol=0)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(sums), torch.linalg.eigvalsh(gram), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [
        ([1.0, 1.0, 1.0, 1.0], 4),
        ([1e4, 1e2, 1.0, 1e-2], 4),  # a condition number of 1e12 in the Gram matrix: Cholesky
        ([1e4, 1e2, 1.0, 0.0], 3),  # singular: its factor does not exist, or ends in rounding
        ([1.0, 0.0, 0.0, 0.0], 1),
    ],
)
def test_inverse_root_of_independent_and_dependent_columns(sizes: list[float], rank: int) -> None:
    turn = torch.linalg.qr(torch.randn(4, 4, generator=seeded(0), dtype=torch.float64))[0]
    gram: Tensor = turn @ torch.tensor(sizes, dtype=torch.float64).square().diag() @ turn.T
    root = _inverse_root(gram)
    values = torch.linalg.eigvalsh(root.T @ gram @ root)
    expected = torch.tensor([0.0] * (4 - rank) + [1.0] * rank, dtype=torch.float64)
    torch.testing.assert_close(values, expected, atol=1e-2, rtol=0)


@pytest.mark.parametrize("dependent", [False, True])
def test_orthonormal_columns_span_the_same_space(dependent: bool) -> None:
    rows = torch.randn(50, 5, generator=seeded(2)) * torch.tensor([1e3, 30.0, 1.0, 1.0, 1e-2])
    if dependent:
        rows[:, 3] = rows[:, 2]
    found = _orthonormal(rows.clone(), Group())
    rank = 4 if dependent else 5
    projector = found @ found.T
    torch.testing.assert_close(projector @ projector, projector, atol=1e-4, rtol=0)
    assert projector.trace().item() == pytest.approx(rank, abs=1e-3)
    torch.testing.assert_close(projector @ rows, rows, atol=1e-2, rtol=1e-4)
