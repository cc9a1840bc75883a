"""Properties of every map, on both paths: constraints, invariances, masks, dims and strides."""

import pytest
import torch

from .cases import CASES, Case, every_map, random_scores

pytestmark = pytest.mark.usefixtures("path")

LENGTHS = [1, 2, 5, 8, 33, 300]


def lengths(case: Case) -> list[int]:
    return [n for n in LENGTHS if n >= case.smallest]


@every_map
def test_lies_on_its_polytope(case):
    for n in lengths(case):
        for scale in (0.1, 1.0, 10.0):
            probs = case(scale * random_scores(16, n, seed=n))
            assert (probs >= 0).all()
            assert (probs <= 1).all()
            if case.bounded:
                assert (probs <= case.upper(n) + 1e-12).all()
            if case.at_most:
                assert (probs.sum(-1) <= case.total + 1e-12).all()
            else:
                torch.testing.assert_close(
                    probs.sum(-1), torch.full((16,), float(case.total)).double(), atol=1e-12, rtol=0
                )


@every_map
def test_a_constant_added_to_the_scores_changes_nothing(case):
    if case.at_most:
        pytest.skip("at most k: the scores are compared with zero")
    for n in lengths(case):
        scores = random_scores(16, n, seed=n)
        for offset in (-3.0, 1e3, -1e6, 1e6):
            moved = case(scores + offset)
            # The sum rounds the scores by up to 1e-10, which a blunt map amplifies.
            tolerance = 1e-4 if case.blunt else 1e-8
            torch.testing.assert_close(moved, case(scores), atol=tolerance, rtol=0)


@every_map
def test_permuting_the_scores_permutes_the_answer(case):
    if case.ordered:
        pytest.skip("the position of an entry matters to this map")
    for n in lengths(case):
        scores = random_scores(16, n, seed=n)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
        upper = [case.upper(n)[order]] if case.bounded else []
        moved = case(scores[:, order], *upper)
        torch.testing.assert_close(moved, case(scores)[:, order], atol=1e-9, rtol=0)


def test_fusedmax_turned_around_is_turned_around():
    case = next(case for case in CASES if case.ordered)
    for n in lengths(case):
        scores = random_scores(16, n, seed=n)
        torch.testing.assert_close(case(scores.flip(-1)), case(scores).flip(-1), atol=1e-9, rtol=0)


@every_map
def test_a_larger_score_never_gets_less(case):
    if case.ordered or case.bounded:
        pytest.skip("entries are not exchangeable in this map")
    for n in lengths(case):
        for scale in (0.1, 1.0):
            scores = scale * random_scores(16, n, seed=n)
            probs = case(scores)
            inside = probs.gather(-1, scores.argsort(dim=-1, descending=True))
            assert (inside.diff(dim=-1) <= 1e-12).all()


@every_map
def test_equal_scores_get_equal_parts(case):
    if case.ordered or case.bounded or case.capped:
        pytest.skip("equal scores need not get equal parts in this map")
    for n in lengths(case):
        scores = random_scores(16, n, seed=n)
        twice = torch.cat([scores, scores], -1)
        left, right = case(twice).chunk(2, -1)
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)
        if not case.at_most:
            equal = case(torch.full((3, n), 0.7, dtype=torch.float64))
            torch.testing.assert_close(
                equal, torch.full_like(equal, case.total / n), atol=1e-12, rtol=0
            )


@every_map
def test_growing_scores_end_on_a_vertex(case):
    if case.bounded:
        pytest.skip("a bound may forbid the vertex")
    for n in lengths(case):
        scores = random_scores(8, n, seed=n) + 3
        probs = case(1e7 * scores)
        ranks = scores.argsort(dim=-1, descending=True).argsort(dim=-1)
        vertex = (case.total - ranks).clamp(0, 1).double()
        torch.testing.assert_close(probs, vertex, atol=1e-9, rtol=0)


@every_map
def test_minus_infinity_is_the_same_as_dropping_the_entry(case):
    for n in lengths(case):
        scores = random_scores(8, n + 3, seed=n)
        kept = torch.tensor([0, *range(4, n + 3)])
        holes = torch.full_like(scores, -torch.inf)
        holes[:, kept] = scores[:, kept]
        upper = [case.upper(n + 3)[kept]] if case.bounded else []
        small = case(scores[:, kept], *upper)
        full = case(holes)
        torch.testing.assert_close(full[:, kept], small, atol=1e-12, rtol=0)
        assert (full[:, 1:4] == 0).all()


@every_map
def test_a_mask_is_the_same_as_minus_infinity(case):
    for n in lengths(case):
        scores = random_scores(8, n + 5, seed=n)
        mask = random_scores(8, n + 5, seed=n + 1) > 0
        mask[:, :1] = True
        mask[:, n + 5 - case.smallest :] = True
        masked = case(scores, mask=mask)
        torch.testing.assert_close(
            masked, case(scores.masked_fill(~mask, -torch.inf)), atol=1e-12, rtol=0
        )
        assert (masked[~mask] == 0).all()
        # What stands behind the mask is never looked at.
        for behind in (1e30, torch.nan, torch.inf, -torch.inf):
            hidden = scores.masked_fill(~mask, behind)
            torch.testing.assert_close(case(hidden, mask=mask), masked, atol=1e-12, rtol=0)


@every_map
def test_a_mask_broadcasts_like_any_tensor(case):
    scores = random_scores(3, 4, 6)
    for shape in ((6,), (4, 6), (3, 1, 6), (1, 4, 6), (4, 1)):
        mask = torch.ones(shape, dtype=torch.bool)
        if shape[-1] == 6:
            mask[..., -2:] = False
        expected = case(scores, mask=mask.expand(3, 4, 6).clone())
        torch.testing.assert_close(case(scores, mask=mask), expected, atol=1e-12, rtol=0)


@every_map
def test_every_dim(case):
    scores = random_scores(4, 5, 6, 7)
    for dim in range(-4, 4):
        expected = case(scores.movedim(dim, -1).contiguous()).movedim(-1, dim)
        torch.testing.assert_close(case(scores, dim=dim), expected, atol=1e-12, rtol=0)
        mask = random_scores(4, 5, 6, 7, seed=1) > -0.5
        mask.select(dim, 0).fill_(True)
        for i in (-1, -2, -3):
            mask.select(dim, i).fill_(True)
        behind = mask.movedim(dim, -1).contiguous()
        expected = case(scores.movedim(dim, -1).contiguous(), mask=behind).movedim(-1, dim)
        torch.testing.assert_close(case(scores, dim=dim, mask=mask), expected, atol=1e-12, rtol=0)


@every_map
def test_a_single_row_needs_no_batch(case):
    scores = random_scores(6)
    torch.testing.assert_close(case(scores), case(scores[None])[0], atol=1e-12, rtol=0)


@every_map
def test_strides_do_not_matter(case):
    scores = random_scores(6, 8)
    views = {
        "transposed": random_scores(8, 6).t(),
        "every second": random_scores(6, 16)[:, ::2],
        "every second row": random_scores(12, 8)[::2],
        "offset": random_scores(7, 9)[1:, 1:],
        "expanded rows": random_scores(1, 8).expand(6, 8),
        "expanded entries": random_scores(6, 1).expand(6, 8),
        "expanded all": random_scores(1, 1).expand(6, 8),
        "flipped": scores.flip(0, 1),
    }
    for name, view in views.items():
        torch.testing.assert_close(case(view), case(view.clone()), atol=1e-12, rtol=0, msg=name)
        leaf = view.detach().requires_grad_()
        weights = random_scores(6, 8, seed=5)
        (gradient,) = torch.autograd.grad((case(leaf) * weights).sum(), leaf)
        fresh = view.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        (expected,) = torch.autograd.grad((case(fresh) * weights).sum(), fresh)
        torch.testing.assert_close(gradient, expected, atol=1e-10, rtol=0, msg=name)


@every_map
def test_the_gradient_that_comes_in_may_have_any_strides(case):
    scores = random_scores(6, 8).requires_grad_()
    incoming = {
        "expanded": random_scores(6, 1).expand(6, 8),
        "transposed": random_scores(8, 6).t(),
        "one number": torch.ones(1, 1).double().expand(6, 8),
    }
    for name, view in incoming.items():
        (got,) = torch.autograd.grad(case(scores), scores, view)
        (expected,) = torch.autograd.grad(case(scores), scores, view.clone())
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0, msg=name)


@every_map
def test_the_arguments_are_never_written_to(case):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scores = random_scores(5, 9, dtype=dtype)
        scores[0, 3:6] = torch.tensor([torch.inf, -torch.inf, torch.nan])
        mask = torch.ones(5, 9, dtype=torch.bool)
        mask[1, 1] = False
        upper = [case.upper(9).to(dtype).expand(5, 9).clone()] if case.bounded else []
        before = [t.clone() for t in (scores, mask, *upper)]
        probs = case(scores, *upper, mask=mask)
        probs.add_(1.0)  # the answer is the caller's: it shares no memory with the arguments
        for now, then in zip((scores, mask, *upper), before, strict=True):
            assert torch.equal(torch.nan_to_num(now), torch.nan_to_num(then))


@every_map
def test_rows_do_not_see_each_other(case):
    scores = random_scores(40, 7, dtype=torch.float32)
    together = case(scores)
    for i in (0, 1, 17, 39):
        torch.testing.assert_close(together[i], case(scores[i]), atol=2e-7, rtol=0)
