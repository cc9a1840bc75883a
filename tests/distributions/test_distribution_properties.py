"""Properties of every distribution: shapes, samples, moments, entropy, divergence, gradients."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

from tests.distributions.cases import CASES, over, seeded

same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
MANY = 10**6


@over()
def test_shapes(case):
    dist = case.dist
    wide = dist.expand((4, 2))
    assert type(wide) is type(dist)
    assert wide.batch_shape == (4, 2)
    assert wide.event_shape == dist.event_shape
    drawn = wide.sample((3,), generator=seeded())
    assert drawn.shape == (3, 4, 2, *dist.event_shape)
    assert wide.log_prob(drawn).shape == (3, 4, 2)
    same(wide.log_prob(drawn), dist.log_prob(drawn))
    assert wide.log_prob(drawn[0, 0, 0]).shape == (4, 2)
    assert "expand" not in repr(dist)
    if "entropy" in case.known:
        same(wide.entropy(), dist.entropy().expand(4, 2))
    if "mean" in case.known:
        same(wide.mean, dist.mean.expand(4, 2, *dist.event_shape))
    if "kl" in case.known:
        same(kl_divergence(wide, case.rival), kl_divergence(dist, case.rival).expand(4, 2))


@over()
def test_batches_of_parameters(case):
    both = [torch.stack(pair) for pair in zip(case.given, case.other, strict=True)]
    dist = case.build(*both)
    assert dist.batch_shape == (2,)
    drawn = dist.sample((5,), generator=seeded())
    each = [case.dist.log_prob(drawn[:, 0]), case.rival.log_prob(drawn[:, 1])]
    torch.testing.assert_close(dist.log_prob(drawn), torch.stack(each, 1), rtol=1e-9, atol=1e-9)
    for name in ("mean", "variance"):
        if name in case.known:
            each = [getattr(case.dist, name), getattr(case.rival, name)]
            torch.testing.assert_close(getattr(dist, name), torch.stack(each))


@over()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_lie_in_the_support(case, dtype):
    dist = case.build(*(value.to(dtype) for value in case.given))
    drawn = dist.sample((2000,), generator=seeded())
    assert drawn.dtype in (dtype, torch.int64, torch.bool)
    assert not drawn.requires_grad
    assert dist.support.check(drawn).all()
    found = dist.log_prob(drawn)
    assert found.dtype == dtype
    assert found.isfinite().all()
    exact = case.dist
    exact._validate_args = False  # rounded to single precision a point does not sum to 1
    wide = exact.log_prob(drawn.double() if drawn.is_floating_point() else drawn)
    near = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found.double(), wide, **near)


@over()
def test_a_generator_repeats_itself(case):
    one, two = (case.dist.sample((7,), generator=seeded(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, case.dist.sample((7,), generator=seeded(4)))
    if case.dist.has_rsample:
        assert torch.equal(one, case.dist.rsample((7,), generator=seeded(3)))


@over("mean")
def test_mean_of_draws(case):
    drawn = case.dist.sample((MANY,), generator=seeded(1)).double()
    error = drawn.std(0) / MANY**0.5
    assert ((drawn.mean(0) - case.dist.mean).abs() <= 4 * error).all()
    if "variance" in case.known:
        apart = (drawn - drawn.mean(0)).square()
        error = apart.std(0) / MANY**0.5
        assert ((apart.mean(0) - case.dist.variance).abs() <= 4 * error).all()


@over("entropy")
def test_entropy_is_within_three_standard_errors(case):
    drawn = case.dist.sample((MANY,), generator=seeded(2))
    found = -case.dist.log_prob(drawn)
    assert (found.mean() - case.dist.entropy()).abs() <= 3 * found.std() / MANY**0.5


@over("kl")
def test_divergence_is_within_three_standard_errors(case):
    drawn = case.dist.sample((MANY,), generator=seeded(2))
    found = case.dist.log_prob(drawn) - case.rival.log_prob(drawn)
    exact = kl_divergence(case.dist, case.rival)
    assert exact > 0
    assert (found.mean() - exact).abs() <= 3 * found.std() / MANY**0.5


@over("kl")
def test_no_divergence_from_itself(case):
    if "alpha" not in case.name or case.name.endswith("1.0"):
        assert kl_divergence(case.dist, case.dist).abs() < 1e-9


@over()
def test_gradient_of_log_prob(case):
    drawn = case.dist.sample((6,), generator=seeded(5))
    assert gradcheck(lambda *given: case.build(*given).log_prob(drawn), case.live())


@over("entropy")
def test_gradients_of_entropy_and_moments(case):
    def found(*given):
        dist = case.build(*given)
        moments = [getattr(dist, name) for name in ("mean", "variance") if name in case.known]
        parts = [dist.entropy(), *(part.sum() for part in moments)]
        return torch.stack([part for part in parts if part.requires_grad])

    assert gradcheck(found, case.live())


@over("kl")
def test_gradient_of_divergence(case):
    rival = case.rival
    assert gradcheck(
        lambda *given: kl_divergence(case.build(*given), rival),
        case.live(),
    )
    if "alpha" not in case.name:
        live = tuple(value.clone().requires_grad_() for value in case.other)
        dist = case.dist
        assert gradcheck(lambda *given: kl_divergence(dist, case.build(*given)), live)


@over()
def test_gradient_of_draws(case):
    dist = case.dist
    if not dist.has_rsample or "alpha" in case.name:  # gamma draws differ by rejection
        pytest.skip("draws are discrete, or rejected")
    assert gradcheck(
        lambda *given: case.build(*given).rsample((4,), generator=seeded(6)),
        case.live(),
    )


@over()
def test_invalid_parameters_are_named(case):
    if case.wrong is None:
        pytest.skip("every score has its probabilities")
    name, place, value = case.wrong
    given = [part.clone() for part in case.given]
    if given[place].dim() == 2:
        given[place][0, 0] = value
    elif given[place].dim():
        given[place][0] = value
    else:
        given[place].fill_(value)
    with pytest.raises(ValueError, match=rf"(?s){name}.*constraint") as caught:
        case.build(*given)
    assert str(value) in str(caught.value)


@over()
def test_invalid_values_are_refused(case):
    dist = case.dist
    if not dist.event_shape and dist.support.is_discrete:
        bad = torch.tensor(99)
    elif dist.support.is_discrete:
        bad = torch.zeros(dist.event_shape, dtype=torch.bool)
    else:
        bad = torch.full(dist.event_shape, math.nan, dtype=torch.float64)
    with pytest.raises(ValueError, match="support"):
        dist.log_prob(bad)


def test_the_table_is_not_empty():
    assert len({case.name for case in CASES}) == len(CASES) >= 15
