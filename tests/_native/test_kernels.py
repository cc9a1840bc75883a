"""Kernels beyond the property tests of the maps: all code paths give the same results."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import fewfold as ff
from fewfold import _native
from fewfold.maps import native_threshold as fast
from fewfold.maps.native_ksubset import budget_map

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        _native.instruction_set() is None and not os.environ.get("CI"),
        reason="the kernels are not built or switched off",
    ),
]

MEMBERS = [(2.0, False), (1.5, False), (1.25, False), (1.7, False), (2.0, True), (1.5, True)]
# Lengths around every switch: eights, lanes, vectors, teams, pieces, the room for candidates.
LENGTHS = (1, 2, 8, 15, 17, 64, 65, 130, 2048, 2049, 4096, 4100, 40_000)
SPREADS = (1.0, 1e-4, 30.0)  # ordinary rows, rows all in the support, rows with one winner


def scores(rows: int, size: int, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(rows, size, generator=generator, dtype=dtype) * spread


def plain(rows: Tensor, alpha: float, norm: bool) -> Tensor:
    """The map in plain torch, double precision."""
    with _native.disabled():
        return (ff.normmax if norm else ff.entmax)(rows.double(), alpha)


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("alpha", "norm"), MEMBERS)
def test_every_length_agrees_with_plain_torch(size: int, alpha: float, norm: bool) -> None:
    for spread in SPREADS:
        rows = scores(19 if size < 3000 else 3, size, spread)
        expected = plain(rows, alpha, norm)
        probs = fast.threshold_map(rows, alpha, norm)
        torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
        assert (probs.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("alpha", "norm"), MEMBERS)
def test_the_support_is_the_dense_answer_without_its_zeros(
    size: int, alpha: float, norm: bool
) -> None:
    for spread in SPREADS:
        rows = scores(5 if size < 3000 else 2, size, spread)
        index, weight, count = fast.support(rows, alpha, norm)
        dense = fast.scatter(index, weight, count, size)
        assert (weight > 0).all()
        torch.testing.assert_close(dense.double(), plain(rows, alpha, norm), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [5, 64, 700, 4100, 40_000])
@pytest.mark.parametrize(("alpha", "norm"), MEMBERS)
def test_the_backward_pass_is_the_jacobian(size: int, alpha: float, norm: bool) -> None:
    for spread in SPREADS:
        rows = scores(3, size, spread, torch.float64).requires_grad_()
        upstream = scores(3, size, 1.0, torch.float64).flip(-1)
        probs = fast.threshold_map(rows, alpha, norm)
        (grad,) = torch.autograd.grad(probs, rows, upstream)
        expected = fast.pull(probs.detach(), upstream, alpha, norm)
        torch.testing.assert_close(grad, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("size", [7, 32, 64, 65, 700, 4096])
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
def test_an_odd_row_leaves_its_neighbours_alone(size: int, alpha: float) -> None:
    """Rows are worked on side by side; a NaN, an infinity or a huge score must stay in its own."""
    for dtype in (torch.float32, torch.float64):
        rows = scores(21, size, 1.0, dtype)
        odd = rows.clone()
        odd[1, size // 2] = torch.nan
        odd[4] = -torch.inf
        odd[9, 0] = torch.inf
        odd[10, 1:] = -torch.inf
        odd[13] *= 1e7
        odd[16] += 1e6
        odd[20, -1] = torch.nan
        probs = fast.threshold_map(odd, alpha, False)
        usual = [i for i in range(21) if i not in (1, 4, 9, 10, 13, 16, 20)]
        expected = fast.threshold_map(rows, alpha, False)
        torch.testing.assert_close(probs[usual], expected[usual], atol=2e-7, rtol=0)
        assert probs[[1, 20]].isnan().all()
        assert (probs[4] == 0).all()
        assert (probs[[9, 10], 0] == 1).all()
        for row in (13, 16):
            torch.testing.assert_close(
                probs[row].double(), plain(odd[row : row + 1], alpha, False)[0], atol=1e-6, rtol=0
            )


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("size", [9, 32, 300])
def test_alphas_that_change_from_row_to_row(rows: int, size: int) -> None:
    values = scores(rows, size, 1.0).requires_grad_()
    alpha = torch.tensor([2.0, 1.5, 1.5, 1.25, 2.0, 2.0, 2.0])[torch.arange(rows) // 3 % 7, None]
    upstream = scores(rows, size, 1.0).flip(-1)
    probs = fast.threshold_map(values, alpha, False)
    (grad,) = torch.autograd.grad(probs, values, upstream)
    for r in range(rows):
        one = values[r : r + 1].detach().requires_grad_()
        single = fast.threshold_map(one, float(alpha[r]), False)
        torch.testing.assert_close(probs[r : r + 1], single, atol=2e-7, rtol=0)
        (of_one,) = torch.autograd.grad(single, one, upstream[r : r + 1])
        torch.testing.assert_close(grad[r : r + 1], of_one, atol=2e-6, rtol=0)


@pytest.mark.parametrize("size", [9, 33, 64, 100, 512, 4096])
@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_scores_on_a_coarse_grid(size: int, alpha: float) -> None:
    """Far from zero neighbouring floats are a sixteenth apart: many ties, and no room for steps."""
    for offset in (-1e6, 300.0, 5e4):
        for spread in (1e-3, 0.05, 0.3, 3.0):
            rows = scores(18, size, spread) + offset
            probs = fast.threshold_map(rows, alpha, False)
            torch.testing.assert_close(probs.double(), plain(rows, alpha, False), atol=1e-6, rtol=0)
            assert (probs.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("size", [16_384, 20_001, 300_000])
@pytest.mark.parametrize(("alpha", "norm"), MEMBERS)
def test_long_rows_wherever_their_largest_entries_lie(size: int, alpha: float, norm: bool) -> None:
    for spread in (1.0, 1e-3, 1e-6) if size < 10**5 else (1e-3,):  # plain torch takes its time
        row = scores(1, size, spread)[0].sort().values
        rows = torch.stack([row, row.flip(0), row.roll(size // 3), row.clone()])
        rows[3, : size - 1] = -torch.inf
        probs = fast.threshold_map(rows, alpha, norm)
        expected = plain(rows, alpha, norm)
        torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
        assert (probs.double().sum(-1) - 1).abs().max() < 1e-6
        rows[0, 1], rows[1, 70], rows[2] = torch.nan, torch.inf, -torch.inf
        odd = fast.threshold_map(rows, alpha, norm)
        assert odd[0].isnan().all()
        assert odd[1, 70] == 1
        assert odd[2].eq(0).all()


@pytest.mark.parametrize("size", [40, 700, 2000, 5000])
@pytest.mark.parametrize(("alpha", "norm"), [*MEMBERS, (1.75, False), (1.999, False), (1.9, True)])
def test_many_entries_at_the_edge_of_the_support(size: int, alpha: float, norm: bool) -> None:
    """There a step that looks small still moves the sum, by so many entries at once."""
    margin = 1.0 if norm else 1 / (alpha - 1)
    for top in (1.0, 63.0, 255.0):
        for inside in (1e-4, 1e-6, 0.0):
            rows = torch.full((3, size), top - margin * (1 - inside))
            rows[:, 0] = top
            rows[1] += scores(1, size, 1e-5)[0]
            rows[2, 1 : size // 2] -= 5
            expected = plain(rows, alpha, norm)
            probs = fast.threshold_map(rows, alpha, norm)
            torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
            assert (probs.double().sum(-1) - 1).abs().max() < 1e-6
            index, weight, count = fast.support(rows, alpha, norm)
            which = torch.repeat_interleave(torch.arange(3), count)
            torch.testing.assert_close(weight.double(), expected[which, index], atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [13, 64, 500, 2048, 5000])
def test_ksubset_of_ties_and_masks_by_the_lowest_float(size: int) -> None:
    for offset in (0.0, 3e4, 1e6):
        for leaders in (1, 2, 5):
            rows = torch.full((2, size), offset)
            rows[:, :leaders] += 1
            for short in (1e-3, 1e-5):
                k = leaders - short
                probs = ff.ksubset(rows, k)
                with _native.disabled():
                    expected = ff.ksubset(rows.double(), k)
                torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)
    rows = scores(4, size, 3.0)
    rows[:, size // 2 :] = torch.finfo(torch.float32).min
    torch.testing.assert_close(ff.ksubset(rows, 2.5).sum(-1), torch.full((4,), 2.5))


@pytest.mark.parametrize("size", [3, 32, 64, 65, 500, 2048, 5000])
def test_ksubset_agrees_with_plain_torch(size: int) -> None:
    for spread in (*SPREADS, 1e4):
        for k in (0.5, 1.0, size / 3, size - 0.25):
            rows = scores(19, size, spread)
            probs = budget_map(rows, k)
            assert probs is not None
            with _native.disabled():
                expected = ff.ksubset(rows.double(), k)
            torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=0)


def test_saved_tensors_may_come_back_in_another_layout() -> None:
    rows = scores(4, 8, 1.0).requires_grad_()
    upstream = scores(4, 8, 1.0).flip(-1)
    (expected,) = torch.autograd.grad(ff.sparsemax(rows), rows, upstream)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.t().contiguous().t()):
        (grad,) = torch.autograd.grad(ff.sparsemax(rows), rows, upstream)
    torch.testing.assert_close(grad, expected)


def test_two_threads_give_the_answer_of_one() -> None:
    rows = scores(64, 5000, 1.0)
    before = torch.get_num_threads()
    try:
        answers = []
        for number in (1, 2):
            torch.set_num_threads(number)
            index, weight, count = fast.support(rows, 1.5, False)
            answers.append((ff.sparsemax(rows), ff.ksubset(rows, 7), index, weight, count))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*answers, strict=True):
        assert torch.equal(one, two)


def test_chunks_keep_every_member_of_the_support() -> None:
    rows = scores(6, 50_000, 1.0)
    rows[3] = rows[3].sort().values
    rows[4, 49_999] = torch.inf
    rows[5, 17] = torch.nan
    streams = fast.Streams(rows, 1.5, 4096)
    for start in range(0, 50_000, 1_700):
        streams.push(rows[:, start : start + 1_700], start)
    column, score, count = streams.take()
    owner = torch.repeat_interleave(count)
    assert torch.equal(score[owner < 5], rows[owner, column][owner < 5])
    kept = torch.zeros(6, 50_000, dtype=torch.bool)
    kept[owner, column] = True
    support = ff.entmax(rows[:5]) > 0
    assert (kept[:5] | ~support).all()
    assert count[:5].max() < 3000
    assert score[owner == 5].isnan().all()


def test_a_row_with_too_many_candidates_says_so() -> None:
    streams = fast.Streams(torch.zeros(2, 1), 1.5, 4096)
    rows = torch.stack([torch.zeros(20_000), scores(1, 20_000, 1.0)[0]])
    streams.push(rows, 0)
    _column, _score, count = streams.take()
    assert count[0] == -1
    assert count[1] > 0


def test_transforms_never_reach_a_kernel() -> None:
    rows = torch.randn(3, 4)
    assert _native.ready(rows)
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(_native.ready(x))
        return x * 2

    torch.func.vmap(look)(rows)
    torch.func.grad(lambda x: look(x).sum())(rows)
    with forward_ad.dual_level():
        look(forward_ad.make_dual(rows, rows))
    with torch._subclasses.FakeTensorMode():
        look(torch.empty(3, 4))
    with _native.disabled():
        look(rows)
    look(rows.half())
    assert seen == [False] * 6
    assert _native.ready(rows)


OTHERS = """
import sys, torch
sys.path.insert(0, "")
from fewfold import _native
from tests._native import test_kernels as own
if _native.instruction_set() != "{name}":
    sys.exit(77)
torch.set_num_threads(1)
for alpha, norm in own.MEMBERS:
    for size in (17, 4100):
        own.test_every_length_agrees_with_plain_torch(size, alpha, norm)
        own.test_the_support_is_the_dense_answer_without_its_zeros(size, alpha, norm)
    own.test_the_backward_pass_is_the_jacobian(700, alpha, norm)
own.test_ksubset_agrees_with_plain_torch(65)
own.test_ksubset_agrees_with_plain_torch(32)
"""


@pytest.mark.nightly  # `make test` runs other tests of the kernels with each instruction set
@pytest.mark.parametrize("name", ["generic", "avx2"])
def test_the_other_instruction_sets(name: str) -> None:
    environment = {**os.environ, "FEWFOLD_ISA": name}
    done = subprocess.run(
        [sys.executable, "-c", OTHERS.format(name=name)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"this processor has no {name}")
    assert done.returncode == 0, done.stderr
