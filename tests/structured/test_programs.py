"""Segmentations, alignments and constituency trees, beyond the property tests."""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff

S = ff.structures


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_position_in_the_middle_that_nothing_covers_is_left_out() -> None:
    """Segments left and right of it meet, and none goes across."""
    scores, between = normal(4, 2, 2), normal(2, 2, seed=1)
    mask = torch.ones(4, 2, 2, dtype=torch.bool)
    mask[1] = mask[2, 1] = False  # all that cover position 1
    structure = S.Segmentation(between)
    right = S.Segmentation(between).enumerate(torch.Size((2, 2, 2)))
    values, members = [], []
    for label in range(2):
        for one in right:
            first = int(one.flatten(1).long().argmax(1)[one.flatten(1).any(1)][0]) % 2
            own = structure.score_of(scores[2:], one)
            values.append(scores[0, 0, label] + between[label, first] + own)
            whole = torch.zeros(4, 2, 2, dtype=torch.bool)
            whole[0, 0, label], whole[2:] = True, one
            members.append(whole)
    totals = torch.stack(values)
    torch.testing.assert_close(structure.log_partition(scores, mask=mask), totals.logsumexp(0))
    found = structure.argmax(scores, mask=mask)
    assert torch.equal(found.bool(), members[int(totals.argmax())])
    torch.testing.assert_close(structure.score_of(scores, found), totals.max())


def test_what_would_begin_before_the_first_position_covers_nothing() -> None:
    mask = torch.zeros(2, 2, 1, dtype=torch.bool)
    mask[0, 1] = mask[1, 0] = True
    found = S.Segmentation().argmax(torch.zeros(2, 2, 1), mask=mask)
    assert found.flatten().tolist() == [0, 0, 1, 0]


def test_needleman_wunsch() -> None:
    """Scores of steps alone: matches diagonally, gaps down and right."""
    one, two = "GATTACA", "GCATGCA"
    same = torch.tensor([[a == b for b in two] for a in one])
    steps = torch.full((8, 8, 3), -1.0)
    steps[1:, 1:, 2] = torch.where(same, 1.0, -1.0)
    structure = S.Alignment(steps)
    assert float(structure.k_best(torch.zeros(8, 8), 1).scores) == 2.0  # G-ATTACA, GCA-TGCA
    barred = structure.with_additional([steps.index_fill(2, torch.tensor([2]), -math.inf)])
    assert barred.argmax(torch.zeros(8, 8)).sum() == 15  # no diagonal is left


@pytest.mark.parametrize("least", [-1e31, -1e200])
@pytest.mark.parametrize(
    ("structure", "event"),
    [
        (S.ConstituencyTree(), (2, 2)),
        (S.ConstituencyTree(labelled=True), (2, 2, 1)),
        (S.Segmentation(), (2, 1, 1)),
        (S.Segmentation(torch.zeros(1, 1, dtype=torch.float64)), (2, 1, 1)),
        (S.Alignment(), (2, 2)),
        (S.Alignment(torch.full((3,), -1e31, dtype=torch.float64)), (2, 1)),
        (S.DependencyTree(projective=True), (2, 2)),
        (S.DependencyTree(projective=True, single_root=True), (2, 2)),
    ],
)
def test_only_minus_infinity_is_impossible(
    structure: S.Structure, event: tuple[int, ...], least: float
) -> None:
    """Whatever a finite score is, the structures that have it are there."""
    scores = torch.full(event, least, dtype=torch.float64)
    parts = structure.enumerate(torch.Size(event))
    own = torch.stack([structure.score_of(scores, one) for one in parts])
    torch.testing.assert_close(structure.log_partition(scores), own.logsumexp(0))
    found = structure.k_best(scores, len(parts) + 1)
    assert found.valid.tolist() == [True] * len(parts) + [False]
    torch.testing.assert_close(found.scores[:-1], own.sort(descending=True).values)
    best = structure.argmax(scores)
    assert float(structure.score_of(scores, best)) == float(own.max())
    drawn = structure.sample(scores, 2, generator=torch.Generator().manual_seed(0))
    assert structure.score_of(scores, drawn).isfinite().all()
    assert ff.structured.gibbs_marginals(scores, structure).isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: S.Alignment(torch.zeros(5, 3)), r"steps.view\(-1, 1, 1, 3\)"),
        (lambda: S.Alignment(torch.zeros(2)), "down, right and diagonally"),
        (lambda: S.Alignment(torch.zeros(4, 2, 3)).argmax(torch.zeros(3, 2)), "broadcast to"),
        (lambda: S.Alignment().argmax(torch.zeros(0, 2)), "rows and columns"),
        (lambda: S.Segmentation(torch.zeros(2, 3)).argmax(torch.zeros(3, 2, 3)), "must end in"),
        (lambda: S.Segmentation().argmax(torch.zeros(3, 0, 3)), "positions, lengths and labels"),
        (lambda: S.Segmentation(torch.zeros(4, 2, 2)).argmax(torch.zeros(3, 3, 1, 2)), "batch"),
        (lambda: S.ConstituencyTree().argmax(torch.zeros(2, 3)), "must be square"),
        (lambda: S.ConstituencyTree(labelled=True).argmax(torch.zeros(2, 2, 0)), "one label"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_inside_inference_mode() -> None:
    with torch.inference_mode():
        structure = S.Segmentation(normal(2, 2))
        scores = normal(2, 3, 2, 2)
        best = structure.argmax(scores)
        assert structure.k_best(scores, 2).valid.all()
        assert structure.sample(scores, 2).shape == (2, *scores.shape)
        assert ff.structured.gibbs_marginals(scores, structure).isfinite().all()
    assert best.sum() > 0


@pytest.mark.parametrize("structure", [S.Alignment(), S.ConstituencyTree()], ids=repr)
def test_the_best_parts_of_all_instances_follow_one_another(structure: S.Structure) -> None:
    parts, values, event = structure.k_best_parts(normal(2, 3, 3), 2)
    assert parts.shape == (4, 3, 3)
    assert (values.shape, event) == ((2, 2), (3, 3))
