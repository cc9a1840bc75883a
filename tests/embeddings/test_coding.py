"""Sparse codes of a table, and dictionary learning."""

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from fewfold.embeddings.coding import sparse_coding as coding
from fewfold.embeddings.coding.sparse_coding import learn_dictionary, nearest_code, sparse_code
from fewfold.embeddings.coding.spread_rows import spread_rows


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dense(weights: Tensor, slots: Tensor, anchors: int) -> Tensor:
    return weights.new_zeros(len(weights), anchors).scatter_(1, slots, weights)


def distance(table: Tensor, weights: Tensor, slots: Tensor, anchors: Tensor) -> float:
    return float((table - dense(weights, slots, len(anchors)) @ anchors).norm() / table.norm())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codes_in_an_orthogonal_dictionary_are_the_largest_entries(
    signed: bool, dtype: torch.dtype
) -> None:
    basis = torch.linalg.qr(draw(12, 12, dtype=dtype)).Q
    entries = draw(50, 12, seed=1, dtype=dtype)
    weights, slots = sparse_code(entries @ basis, 3 * basis, 4, signed=signed)
    kept = entries if signed else entries.clamp(min=0)
    best = kept.abs().topk(4).indices
    expected = torch.zeros_like(kept).scatter(1, best, kept.gather(1, best))
    torch.testing.assert_close(3 * dense(weights, slots, 12), expected)


@pytest.mark.parametrize("anchors", [10, 40])
def test_weights_are_the_best_for_their_anchors(anchors: int) -> None:
    table, dictionary = draw(200, 8), draw(anchors, 8, seed=1) * torch.rand(anchors, 1)
    for signed in (False, True):
        weights, slots = sparse_code(table, dictionary, 5, signed=signed)
        for row, weight, slot in zip(table, weights, slots, strict=True):
            few = dictionary[slot].double()
            if signed:
                fitted = torch.linalg.lstsq(few.T, row.double()[:, None]).solution[:, 0]
                left = float((row - fitted @ few).norm())
            else:
                left = nnls(few.T.numpy(), row.double().numpy())[1]
            assert float((row - weight @ dictionary[slot]).norm()) == pytest.approx(left, abs=1e-4)


def test_without_signs_an_anchor_that_turns_negative_leaves() -> None:
    # The first choice points between the other two and is not wanted once both are there.
    dictionary = torch.tensor([[1.0, 1.0, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    weights, slots = sparse_code(torch.tensor([[1.0, 0.9, -0.1]]), dictionary, 3)
    assert slots.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0, 0.9]]))


def test_slots_are_distinct_and_rise_even_where_nothing_fits() -> None:
    table = torch.cat([torch.zeros(1, 4), -torch.ones(1, 4), draw(30, 4)])
    dictionary = torch.cat([torch.rand(6, 4), torch.zeros(2, 4), torch.ones(2, 4)])
    weights, slots = sparse_code(table, dictionary, 6)
    assert (slots.diff(dim=1) > 0).all()
    assert (weights >= 0).all()
    assert weights[:2].count_nonzero() == 0
    assert not dense(weights, slots, 10)[:, 6:8].any()  # zero anchors


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, dictionary = draw(70, 6), draw(9, 6, seed=1)
    whole = sparse_code(table, dictionary, 3), nearest_code(table, dictionary, 3)
    monkeypatch.setattr(coding, "_BLOCK_SIZE", 200)
    for before, after in zip(
        whole, (sparse_code(table, dictionary, 3), nearest_code(table, dictionary, 3)), strict=True
    ):
        torch.testing.assert_close(before[0], after[0])
        assert torch.equal(before[1], after[1])


def test_nearest_anchors_by_distance_with_weights_by_least_squares() -> None:
    table, anchors = draw(60, 5), draw(20, 5, seed=1)
    weights, slots = nearest_code(table, anchors, 3)
    near = torch.cdist(table, anchors).topk(3, largest=False).indices.sort(1).values
    assert torch.equal(slots, near)
    expected = torch.linalg.lstsq(anchors[near].mT, table[:, :, None]).solution[:, :, 0]
    torch.testing.assert_close(weights, expected, atol=1e-4, rtol=1e-4)
    clipped, same = nearest_code(table, anchors, 3, signed=False)
    assert torch.equal(same, near)
    assert (clipped >= 0).all()


@pytest.mark.parametrize("signed", [False, True])
def test_learning_halves_the_error_of_planted_anchors_and_beats_rows_as_anchors(
    signed: bool,
) -> None:
    planted, mix = draw(20, 16), torch.zeros(1000, 20)
    chosen = torch.rand(1000, 20, generator=torch.Generator().manual_seed(2)).topk(2).indices
    mix.scatter_(1, chosen, draw(1000, 2, seed=3).abs() + 0.2)
    table = mix @ planted
    rounds = [
        learn_dictionary(
            table, 20, 2, signed=signed, rounds=r, generator=torch.Generator().manual_seed(4)
        )
        for r in (0, 1, 4, 30)
    ]
    errors = [one.error for one in rounds]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 2
    last = rounds[-1]
    assert distance(table, last.weights, last.slots, last.anchors) == pytest.approx(
        last.error, abs=1e-5
    )
    torch.testing.assert_close(last.anchors.norm(dim=1), torch.ones(20))
    rows = table[torch.randperm(1000, generator=torch.Generator().manual_seed(5))[:20]]
    assert last.error < distance(table, *nearest_code(table, rows, 2), rows) / 2
    assert signed or (last.weights >= 0).all()


def test_a_row_keeps_a_code_that_is_better_than_the_greedy_one() -> None:
    anchors = torch.tensor([[1.0, 1.0, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    rows = torch.tensor([[1.0, 0.9, 0.0], [0.0, 2.0, 0.0]])
    weights, slots = torch.tensor([[1.0, 0.9], [0.0, 0.0]]), torch.tensor([[1, 2], [0, 1]])
    rest = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    assert not torch.equal(sparse_code(rows, anchors, 2)[1][0], slots[0])  # greed is worse here
    coding._recode(rows, anchors, weights, slots, rest, signed=False)
    assert slots[0].tolist() == [1, 2]
    assert 2 in slots[1].tolist()  # and this row gained
    torch.testing.assert_close(rest, torch.zeros(2, 3))


def test_idle_anchors_become_the_rows_that_are_coded_worst() -> None:
    anchors, rows = torch.eye(3), torch.tensor([[3.0, 0, 0], [0, 4.0, 3.0], [0, 1.0, 1.0]])
    weights, slots = torch.tensor([[3.0, 0.0]] * 3), torch.tensor([[0, 1]] * 3)
    rest = torch.tensor([[0.0, 0, 0], [0, 4.0, 3.0], [0, 1.0, 1.0]])
    coding._replace_idle(anchors, weights, slots, rows, rest)
    torch.testing.assert_close(anchors[:2], torch.tensor([[1.0, 0, 0], [0, 0.8, 0.6]]))


def test_learning_repeats_itself_and_codes_rows_outside_the_sample() -> None:
    table = draw(300, 6)
    one, two = (
        learn_dictionary(table, 8, 3, sample=64, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(one.anchors, two.anchors)
    assert torch.equal(one.weights, two.weights)
    assert one.weights.shape == (300, 3)
    assert distance(table, one.weights, one.slots, one.anchors) == pytest.approx(one.error)


def test_tables_that_are_hardly_tables() -> None:
    for table in (torch.zeros(5, 3), torch.ones(5, 3), draw(5, 3, dtype=torch.float16)):
        found = learn_dictionary(table, 5, 5, generator=torch.Generator().manual_seed(0))
        assert found.error < 1e-3
        assert found.weights.dtype == found.anchors.dtype == table.dtype
        assert found.anchors.isfinite().all()


def test_spread_rows_are_distinct_and_find_the_groups() -> None:
    centres = 100 * draw(8, 3)
    rows = centres.repeat_interleave(10, 0) + draw(80, 3, seed=1) * 0.01
    for seed in range(5):
        found = spread_rows(rows, 8, torch.Generator().manual_seed(seed))
        assert sorted((found // 10).tolist()) == list(range(8))
    assert sorted(spread_rows(torch.zeros(6, 2), 6).tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("table", "anchors", "width", "message"),
    [
        (torch.zeros(3), torch.zeros(2, 3), 1, r"\(rows, d\)"),
        (torch.zeros(3, 2), torch.zeros(2, 3), 1, r"got \(3, 2\) and \(2, 3\)"),
        (torch.zeros(3, 2), torch.zeros(2, 2), 3, "at most the 2 anchors, got 3"),
        (torch.zeros(3, 2), torch.zeros(2, 2), 0, "at least 1"),
        (torch.full((3, 2), torch.nan), torch.zeros(2, 2), 1, "table must be finite"),
        (torch.zeros(3, 2), torch.full((2, 2), torch.inf), 1, "anchors must be finite"),
    ],
)
def test_what_does_not_fit_is_said(
    table: Tensor, anchors: Tensor, width: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sparse_code(table, anchors, width)


def test_more_anchors_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at most the number of rows 3, got 4"):
        learn_dictionary(torch.ones(3, 2), 4, 1)
    with pytest.raises(TypeError, match="floating-point"):
        sparse_code(torch.ones(3, 2, dtype=torch.int64), torch.ones(2, 2), 1)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_a_table_does_not_matter(scale: float) -> None:
    table = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    plain, scaled = (
        learn_dictionary(rows, 8, 2, generator=torch.Generator().manual_seed(1))
        for rows in (table, table * scale)
    )
    assert 0.1 < plain.error < 0.9
    assert scaled.error == pytest.approx(plain.error, rel=1e-2)
    made = (scaled.weights.unsqueeze(1) @ scaled.anchors[scaled.slots]).squeeze(1)
    lost = (made / scale - table).norm() / table.norm()
    assert float(lost) == pytest.approx(plain.error, rel=1e-2)
