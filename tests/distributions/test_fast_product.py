"""Expected products by the kernels, compared with plain torch and high-precision values."""

import os

import mpmath
import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold import distributions as fd
from fewfold.distributions.integrals.expected_product import log_expected_product
from fewfold.distributions.integrals.native_product import quick_product
from tests.distributions.cases import seeded

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        _native.instruction_set() is None and not os.environ.get("CI"),
        reason="the kernels are not built or switched off",
    ),
]

SIZES = (2, 3, 4, 5, 7, 8, 9, 15, 17, 33, 64, 200)  # around vectors, and around eights
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
DOUBLE = {"rtol": 2e-11, "atol": 2e-11}


def in_torch(shift: Tensor, slope: Tensor) -> Tensor:
    """The same in double precision, by plain torch."""
    with _native.disabled():
        return log_expected_product(shift.double(), slope.double())


def hard(n: int) -> tuple[Tensor, Tensor]:
    """(rows, n): every kind of shift with every kind of slope."""
    draw = seeded(n)
    rows = []
    for reach in (0.5, 5.0, 60.0):
        spread = reach * (2 * torch.rand(n, generator=draw, dtype=torch.float64) - 1)
        same = torch.full((n,), reach, dtype=torch.float64)
        for size in (0.0, 1e-30, 1e-3, 0.1, 0.5, 1.0, 2.0, 6.0):
            noise = torch.randn(2, n, generator=draw, dtype=torch.float64)
            equal = torch.full((n,), size, dtype=torch.float64)
            for slope in (equal, -size * (0.5 * noise[0]).exp(), size * noise[1]):
                rows += [(shift, slope) for shift in (spread, same, -same, spread * slope)]
    shift, slope = zip(*rows, strict=True)
    return torch.stack(shift), torch.stack(slope)


@pytest.mark.parametrize("n", SIZES)
def test_every_size_agrees_with_plain_torch(n: int) -> None:
    shift, slope = hard(n)
    quick = quick_product(shift, slope)
    assert quick is not None
    assert len(quick[1]) < len(shift) / 8  # steep rows are left
    torch.testing.assert_close(log_expected_product(shift, slope), in_torch(shift, slope), **DOUBLE)
    shift, slope = shift.float(), slope.float()
    found = log_expected_product(shift, slope)
    rounded = max(1e-5, 1e-7 * n)  # the logarithm of each factor is
    wanted = in_torch(shift, slope)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=rounded)


def test_many_factors() -> None:
    draw = seeded(1)
    shift = 1 + torch.randn(6, 5000, generator=draw, dtype=torch.float64)
    slope = torch.tensor([0.01, 0.1, 0.3])[:, None].double() * torch.rand(3, 5000, generator=draw)
    slope = torch.cat([slope, -slope])
    wanted = in_torch(shift, slope)
    torch.testing.assert_close(log_expected_product(shift, slope), wanted, **DOUBLE)
    found = log_expected_product(shift.float(), slope.float())
    torch.testing.assert_close(found.double(), wanted, **SINGLE)


def test_one_factor_far_into_its_tail() -> None:
    """With no slope nothing is left of the integral but log Phi."""
    x = torch.linspace(-60, 8, 1361, dtype=torch.float64)
    for at, most in ((x, 1e-13), (x.float(), 5e-7)):
        shift = torch.stack([at, torch.full_like(at, 40.0)], -1)
        found = log_expected_product(shift, torch.zeros_like(shift))
        with mpmath.workdps(40):
            for number, value in zip(at.tolist()[::8], found.tolist()[::8], strict=True):
                wanted = mpmath.log(mpmath.ncdf(number))
                assert abs(value - wanted) < most * max(1, abs(wanted))


@pytest.mark.parametrize("slope", [[0.3, 0.3], [1.0, -0.7], [0.01, 2.0], [3.0, 1.0, -1.0]])
@pytest.mark.parametrize("place", [-30.0, -3.0, 0.0, 2.0])
def test_next_to_many_digits(slope: list[float], place: float) -> None:
    shift = [place, 0.5, -1.0][: len(slope)]

    def integrand(t: mpmath.mpf) -> mpmath.mpf:
        factors = (mpmath.ncdf(a + b * t) for a, b in zip(shift, slope, strict=True))
        return mpmath.fprod(factors) * mpmath.npdf(t)

    with mpmath.workdps(30):
        top = max(integrand(t) for t in range(-40, 41))  # its error is absolute
        total = mpmath.quad(lambda t: integrand(t) / top, list(range(-40, 41, 4)))
        wanted = float(mpmath.log(total) + mpmath.log(top))
    for dtype, most in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        given = (torch.tensor([numbers], dtype=dtype) for numbers in (shift, slope))
        assert abs(log_expected_product(*given).item() - wanted) < most * max(1, abs(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_odd_row_leaves_its_neighbours_alone(dtype: torch.dtype) -> None:
    draw = seeded(2)
    shift = torch.randn(20, 9, generator=draw, dtype=dtype)
    slope = torch.rand(20, 9, generator=draw, dtype=dtype)
    usual = log_expected_product(shift, slope)
    odd, steep = shift.clone(), slope.clone()
    odd[1, 8], odd[4, 0], steep[7, 3], steep[9, 3] = torch.nan, -torch.inf, torch.nan, torch.inf
    steep[12, 5], odd[15, 5] = 1e12, 1e12
    steep[17, 2] = 1e25  # its square is infinite in single precision
    alone = [1, 4, 7, 9]
    for found in (log_expected_product(odd, steep), in_torch(odd, steep)):
        assert found[alone].isnan().all()
        assert found.isnan().sum() == len(alone)
    others = [i for i in range(20) if i not in (*alone, 12, 15, 17)]
    found = log_expected_product(odd, steep)
    assert torch.equal(found[others], usual[others])
    torch.testing.assert_close(found.double(), in_torch(odd, steep), equal_nan=True, **SINGLE)


def test_no_rows_no_columns_one_column() -> None:
    for shape in ((0, 5), (3, 0), (0, 0), (3, 1)):
        given = torch.ones(shape), torch.ones(shape)
        with _native.disabled():
            wanted = log_expected_product(*given)
        assert torch.equal(log_expected_product(*given), wanted)


def test_any_layout() -> None:
    draw = seeded(3)
    shift, slope = torch.randn(2, 12, 30, generator=draw)
    wanted = log_expected_product(shift.T.contiguous(), slope.T.contiguous())
    assert torch.equal(log_expected_product(shift.T, slope.T), wanted)
    twice = slope.T.repeat_interleave(2, -1)[:, ::2]
    assert torch.equal(log_expected_product(shift.T, twice), wanted)
    one = slope[:1].T.expand(30, 12)
    assert torch.equal(log_expected_product(shift.T, one), log_expected_product(shift.T, one + 0))


def test_two_threads_give_the_answer_of_one() -> None:
    draw = seeded(4)
    shift, slope = torch.randn(2, 3000, 20, generator=draw).exp()
    before = torch.get_num_threads()
    try:
        answers = []
        for number in (1, 2):
            torch.set_num_threads(number)
            answers.append(log_expected_product(shift - 2, slope))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*answers)


def test_what_is_differentiated_stays_in_torch() -> None:
    shift, slope = torch.randn(2, 3, 4, generator=seeded(5))
    assert quick_product(shift, slope) is not None
    assert quick_product(shift.requires_grad_(), slope) is None
    torch.testing.assert_close(log_expected_product(shift, slope), in_torch(shift, slope).float())
    with torch.no_grad():
        assert quick_product(shift, slope) is not None
    assert quick_product(shift.detach(), slope.double()) is None


@pytest.mark.parametrize("size", [2, 3, 64])
@pytest.mark.parametrize("spread", [0.0, 1.5, 5.0])
def test_densities_of_a_law_each(size: int, spread: float) -> None:
    draw = seeded(size)
    loc, noise = torch.randn(2, 300, size, generator=draw)
    dist = fd.GaussianSparsemax(loc, (spread * noise).exp(), validate_args=False)
    y = dist.sample(generator=draw)
    wide = fd.GaussianSparsemax(dist.loc.double(), dist.scale.double(), validate_args=False)
    found, exact = dist.log_prob(y), wide.log_prob(y.double())
    with _native.disabled():
        rough, wanted = dist.log_prob(y), wide.log_prob(y.double())
    torch.testing.assert_close(exact, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, rough, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_densities_of_odd_rows_and_any_layout(dtype: torch.dtype) -> None:
    draw = seeded(6)
    loc = torch.randn(9, 40, generator=draw, dtype=dtype).T
    scale = 0.2 + torch.rand(9, generator=draw, dtype=dtype)
    y = fd.GaussianSparsemax(loc, scale).sample(generator=draw)
    y[3], y[20] = 0, 1 / 9  # no face at all, and all of it
    loc = loc.clone(memory_format=torch.preserve_format)
    loc[5, 2], loc[7, 2], y[9, 4] = torch.nan, torch.inf, torch.nan
    for shape in (scale, scale.expand(40, 9).clone(), scale.repeat_interleave(2)[::2]):
        dist = fd.GaussianSparsemax(loc, shape, validate_args=False)
        found = dist.log_prob(y)
        with _native.disabled():
            wanted = dist.log_prob(y)
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)
        assert found.isfinite().sum() >= 36
    assert dist.log_prob(y[:0, None]).shape == (0, 40)
