"""Sums, marginals and best structures against torch-struct, at sizes beyond enumeration.

Its alignments need genbmm, a CUDA extension that no wheel provides; those are compared with the
recursion written cell by cell.
"""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff

peer = pytest.importorskip("torch_struct", reason="torch-struct is not installed")
S = ff.structures
NEAR = {"rtol": 1e-7, "atol": 1e-7}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def compare(structure: ff.structures.Structure, scores: Tensor, crf: object, parts) -> None:  # type: ignore[no-untyped-def]
    """Log-partitions, marginals and the best; `parts` brings what the peer says to our parts."""
    torch.testing.assert_close(structure.log_partition(scores), crf.partition, **NEAR)  # type: ignore[attr-defined]
    torch.testing.assert_close(
        ff.structured.gibbs_marginals(scores, structure),
        parts(crf.marginals.detach()),  # type: ignore[attr-defined]
        **NEAR,
    )
    assert torch.equal(structure.argmax(scores), parts(crf.argmax.detach()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [20, 37])
def test_linear_chains(n: int) -> None:
    scores, between = normal(3, n, 6), normal(6, 6, seed=1)
    edges = between.T + scores[:, 1:].unsqueeze(3)  # by position, state and state before
    edges = torch.cat([edges[:, :1] + scores[:, 0, None, None], edges[:, 1:]], 1)

    def states(found: Tensor) -> Tensor:
        return torch.cat([found[:, :1].sum(2), found.sum(3)], 1)

    compare(S.Sequence(between), scores, peer.LinearChainCRF(edges), states)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("n", [20, 40])
def test_projective_trees(n: int, single: bool) -> None:
    scores = normal(3, n, n)
    own = scores.clone().requires_grad_()  # it fills a view, which must not be one of a leaf
    crf = peer.DependencyCRF(own, multiroot=not single)
    structure = S.DependencyTree(projective=True, single_root=single)
    compare(structure, scores, crf, lambda found: found)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("n", [20, 40])
def test_trees(n: int, single: bool) -> None:
    """By determinants there, by an elimination that never subtracts here."""
    scores, structure = normal(3, n, n), S.DependencyTree(single_root=single)
    total = peer.deptree.deptree_part(scores.clone(), not single, eps=0.0)
    torch.testing.assert_close(structure.log_partition(scores), total, **NEAR)
    found = peer.deptree.deptree_nonproj(scores.clone(), not single, eps=0.0)
    torch.testing.assert_close(ff.structured.gibbs_marginals(scores, structure), found, **NEAR)


@pytest.mark.parametrize("labels", [1, 4])
def test_constituency_trees(labels: int) -> None:
    scores = normal(3, 25, 25, labels)
    crf = peer.TreeCRF(scores.clone())
    compare(S.ConstituencyTree(labelled=True), scores, crf, lambda found: found)
    if labels == 1:
        plain = S.ConstituencyTree()
        torch.testing.assert_close(plain.log_partition(scores[..., 0]), crf.partition, **NEAR)


@pytest.mark.parametrize(("n", "longest"), [(20, 4), (31, 7)])
def test_segmentations(n: int, longest: int) -> None:
    labels = 3
    scores, between = normal(2, n, longest, labels), normal(labels, labels, seed=1)
    # by first position, length, label and the label before; the first has the label 0 before it
    edges = torch.full((2, n, longest + 1, labels, labels), -1e9, dtype=torch.float64)
    for first in range(n):
        for length in range(1, min(longest, n - first) + 1):
            own = scores[:, first + length - 1, length - 1].unsqueeze(2)
            edges[:, first, length] = own + between.T
            if not first:
                edges[:, 0, length] = -1e9
                edges[:, 0, length, :, 0] = own[..., 0]

    def segments(found: Tensor) -> Tensor:
        own = torch.zeros_like(scores)
        for first in range(n):
            for length in range(1, min(longest, n - first) + 1):
                own[:, first + length - 1, length - 1] = found[:, first, length].sum(2)
        return own

    compare(S.Segmentation(between), scores, peer.SemiMarkovCRF(edges), segments)


@pytest.mark.parametrize(("m", "n"), [(20, 33), (40, 24)])
def test_alignments_cell_by_cell(m: int, n: int) -> None:
    scores, steps = normal(m, n), normal(m, n, 3, seed=1)
    total, best = ({(0, 0): float(scores[0, 0])} for _ in range(2))
    for i in range(m):
        for j in range(n):
            ways = [((i - 1, j), 0), ((i, j - 1), 1), ((i - 1, j - 1), 2)]
            ways = [(cell, float(steps[i, j, kind])) for cell, kind in ways if min(cell) >= 0]
            if not ways:
                continue
            sums = [total[cell] + step for cell, step in ways]
            top = max(sums)
            total[i, j] = top + math.log(sum(math.exp(s - top) for s in sums)) + float(scores[i, j])
            best[i, j] = max(best[cell] + step for cell, step in ways) + float(scores[i, j])
    structure = S.Alignment(steps)
    assert float(structure.log_partition(scores)) == pytest.approx(total[m - 1, n - 1], rel=1e-12)
    found = structure.argmax(scores)
    assert float(structure.score_of(scores, found)) == pytest.approx(best[m - 1, n - 1], rel=1e-12)
    marginals = ff.structured.gibbs_marginals(scores, structure)
    assert marginals[0, 0] == pytest.approx(1)
    assert marginals[m - 1, n - 1] == pytest.approx(1)
    draws = structure.sample(scores, 200, generator=torch.Generator().manual_seed(0))
    # four deviations of a share of 200 draws
    assert (draws.double().mean(0) - marginals).abs().max() < 4 * 0.5 / math.sqrt(200)
