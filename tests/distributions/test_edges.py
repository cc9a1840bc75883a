"""Edge cases: one coordinate, empty batches, extreme scales, low precision, invalid input."""

import copy
import math
import pickle

import mpmath
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

import fewfold as ff
from fewfold import distributions as fd
from tests.distributions.cases import TRIL2, over, real, seeded


@over()
def test_no_rows(case):
    dist = case.dist.expand((0,))
    drawn = dist.sample((3,))
    assert drawn.shape == (3, 0, *dist.event_shape)
    assert dist.log_prob(drawn).shape == (3, 0)
    built = case.build(*(value.expand(0, *value.shape) for value in case.given))
    assert built.batch_shape == (0,)
    assert built.log_prob(built.sample((3,))).shape == (3, 0)
    none = case.dist.sample((0,))
    assert none.shape == (0, *dist.event_shape)
    assert case.dist.log_prob(none).shape == (0,)


@over()
def test_copies_are_the_same(case):
    drawn = case.dist.sample((3,), generator=seeded())
    for dist in (copy.deepcopy(case.dist), pickle.loads(pickle.dumps(case.dist))):
        assert torch.equal(dist.log_prob(drawn), case.dist.log_prob(drawn))
    both = Independent(case.dist.expand((2, 3)), 1)
    assert both.log_prob(both.sample()).shape == (2,)


@over()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_single(case, dtype):
    given = [value.to(dtype) for value in case.given]
    dist, wide = case.build(*given), case.build(*(value.float() for value in given))
    wide._validate_args = False
    drawn = dist.sample((500,), generator=seeded())
    assert drawn.dtype in (dtype, torch.int64, torch.bool)
    found = dist.log_prob(drawn)
    assert found.dtype == dtype
    exact = wide.log_prob(drawn.float() if drawn.is_floating_point() else drawn)
    coarse = 0.05 if dtype == torch.float16 else 0.3
    torch.testing.assert_close(found.float(), exact, rtol=coarse, atol=coarse)


def alone(dist):
    y = dist.sample((2,), generator=seeded())
    assert torch.equal(y, torch.ones(2, 1).double())
    assert (dist.log_prob(y).abs() < 1e-12).all()
    return dist


def test_one_coordinate():
    given = (real(0.3), real(0.7), real(-0.2))
    for dist in (
        fd.GaussianSparsemax(given[0], given[1]),
        fd.GaussianSparsemax(given[0], scale_tril=given[1].view(1, 1)),
        fd.HardConcrete(given[0], 0.7),
    ):
        alone(dist)
        assert dist.mean == 1
        assert dist.variance == 0
        assert dist.entropy() == 0
        assert kl_divergence(dist, dist) == 0
    alone(fd.MixedDirichlet(given[0], given[1]))
    alone(fd.MaxEntropyMixed(1, dtype=torch.float64))
    alone(fd.Concrete(given[0], 0.5))
    dist = alone(fd.LogisticNormal(given[0], given[1]))
    assert kl_divergence(dist, fd.LogisticNormal(given[2], given[1])) == 0


@pytest.mark.parametrize("apart", [0.0, 0.4, -3.0, 100.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.3, 1.0, 1e3, 1e6])
def test_two_coordinates_at_any_scale(apart, scale):
    """Mean, variance and entropy next to fifty digits, and finite gradients."""
    loc = real(apart, 0.0).requires_grad_()
    dist = fd.GaussianSparsemax(loc, scale)
    with mpmath.workdps(50):
        m, s = (1 + mpmath.mpf(apart)) / 2, mpmath.sqrt(2) * mpmath.mpf(scale) / 2
        below = lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2  # noqa: E731
        phi = lambda x: mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)  # noqa: E731
        a, b = -m / s, (1 - m) / s
        zero, one, mass = below(a), below(-b), below(b) - below(a)
        first, second = phi(a) - phi(b), mass + a * phi(a) - b * phi(b)
        mean = one + m * mass + s * first
        square = one + m * m * mass + 2 * m * s * first + s * s * second
        entropy = mass * mpmath.log(mpmath.sqrt(2 * mpmath.pi) * s) + second / 2
        entropy -= sum(p * mpmath.log(p) for p in (zero, one) if p > 0)
        wanted = [float(v) for v in (mean, square - mean * mean, entropy)]
    found = [dist.mean[0], dist.variance[0], dist.entropy()]
    torch.testing.assert_close(torch.stack(found).tolist(), wanted, rtol=1e-8, atol=1e-10)
    assert torch.autograd.grad(sum(found), loc)[0].isfinite().all()
    single = fd.GaussianSparsemax(loc.detach().float(), scale)
    near = [single.mean[0].item(), single.variance[0].item(), single.entropy().item()]
    torch.testing.assert_close(near, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 30.0])
def test_hard_concrete_without_a_stretch(temperature):
    """A relaxed bit, all of it inside: by symmetry its mean is a half."""
    dist = fd.BinaryHardConcrete(real(0.0)[0], temperature, 1.0)
    torch.testing.assert_close(dist.mean, real(0.5)[0], rtol=0, atol=1e-9)
    assert dist.nonzero == 1
    assert dist.log_zero == dist.log_one == -math.inf
    drawn = dist.sample((20_000,), generator=seeded())
    logs = dist.log_prob(drawn)
    assert logs.isfinite().all()
    if temperature >= 1:  # colder, the draws nearest to 1 are rounded
        assert (-logs.mean() - dist.entropy()).abs() < 4 * logs.std() / 20_000**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.1, 0.2, 0.7])
def test_hard_concrete_without_a_stretch_is_concrete(temperature, dtype):
    scores = torch.tensor([3.0, 0.0], dtype=dtype)
    dist, peer = fd.HardConcrete(scores, temperature, 1.0), fd.Concrete(scores, temperature)
    drawn = dist.sample((1000,), generator=seeded())
    assert torch.equal(drawn, peer.sample((1000,), generator=seeded()))
    assert fd.face_of(drawn).all()
    logs = dist.log_prob(drawn)
    assert logs.isfinite().all()
    torch.testing.assert_close(logs, peer.log_prob(drawn), rtol=1e-4, atol=1e-4)
    both = fd.HardConcrete(scores, temperature, torch.tensor([1.0, 1.2], dtype=dtype))
    inside = fd.face_of(both.sample((1000,), generator=seeded())).all(-1)
    assert inside[:, 0].all()
    assert not inside[:, 1].all()


BITS = [  # logits, temperature and stretch of two, and their KL divergence to forty digits
    ((0.5, 0.1, 1.0), (0.1, 0.2, 1.0), 0.5348643924927633),
    ((0.5, 0.7, 1.5), (0.1, 0.6, 1.001), 1.3721630785851622),
    ((0.5, 0.7, 3.0), (0.1, 0.6, 1.01), 1.4824264686718645),
    ((0.5, 0.3, 1.0), (-0.4, 0.2, 1.001), 0.8903191176543113),
    ((0.5, 0.3, 1.0), (-0.4, 2.0, 1.4), 2.709895408978794),
    ((2.0, 0.05, 1.2), (-1.0, 0.03, 1.2), 0.8557825369718878),
    ((2.0, 0.05, 1.2), (-1.0, 0.3, 1.0001), 3.2490480005536537),
    ((0.3, 0.66, 1.001), (2.0, 0.1, 1.5), 3.337304804256823),
    ((0.3, 3.0, 1.1), (-2.0, 0.05, 1.3), 4.545708812948443),
]


def test_divergence_of_bits_however_stretched():
    """The integrand has kinks of both distributions, and at the ends for a stretch near 1."""
    rows = [real(*(row[side] for row in BITS)).unbind(-1) for side in (0, 1)]
    p, q = (fd.BinaryHardConcrete(*row) for row in rows)
    wanted = real(*(row[2] for row in BITS))
    torch.testing.assert_close(kl_divergence(p, q), wanted, rtol=0, atol=1e-12)
    single = [fd.BinaryHardConcrete(*(part.float() for part in row)) for row in rows]
    torch.testing.assert_close(kl_divergence(*single).double(), wanted, rtol=0, atol=1e-4)
    one = fd.BinaryHardConcrete(*(part[1] for part in rows[0]))
    assert kl_divergence(one, q).shape == (len(BITS),)


def test_gibbs_faces_and_sizes_of_many_coordinates():
    """Divergences both ways without going through faces."""
    small, sizes = fd.GibbsFaces(real(0.5, -0.3, 0.1, 0.9)), fd.FacesBySize(real(0.1, 1, -0.5, 0.2))
    for p, q in ((small, sizes), (sizes, small)):
        ours = p.every()
        exact = (ours.exp() * (ours - q.every())).sum()
        torch.testing.assert_close(kl_divergence(p, q), exact)
    corners = fd.all_faces(4).sum(-1)
    by_size = torch.zeros(5).double().index_add(0, corners, small.every().exp())
    torch.testing.assert_close(small.log_sizes().exp(), by_size[1:])
    wide = fd.GibbsFaces(torch.linspace(-2, 1, 300, dtype=torch.float64))
    prior = fd.MaxEntropyMixed(300, 1, dtype=torch.float64).faces
    drawn = wide.sample((20_000,), generator=seeded())
    ratio = wide.log_prob(drawn) - prior.log_prob(drawn)
    assert (ratio.mean() - kl_divergence(wide, prior)).abs() <= 4 * ratio.std() / 20_000**0.5
    back = kl_divergence(prior, wide)
    drawn = prior.sample((20_000,), generator=seeded())
    ratio = prior.log_prob(drawn) - wide.log_prob(drawn)
    assert (ratio.mean() - back).abs() <= 4 * ratio.std() / 20_000**0.5


def test_too_many_faces_are_drawn_instead():
    dist = fd.MixedDirichlet(torch.zeros(30), torch.ones(30))
    with pytest.raises(NotImplementedError, match=r"K up to 20, got 30; write direct_sum_entropy"):
        dist.entropy()
    assert fd.direct_sum_entropy(dist, samples=500).standard_error > 0
    assert fd.direct_sum_kl(dist, fd.MaxEntropyMixed(30), samples=500).standard_error > 0


def test_estimates_of_torch_distributions_take_a_generator():
    dist = Independent(fd.GaussianSparsemax(torch.zeros(2, 3), 1.0), 1)
    before = torch.get_rng_state()
    one, two = (fd.direct_sum_entropy(dist, samples=50, generator=seeded(1)) for _ in range(2))
    assert one.value == two.value
    assert one.value != fd.direct_sum_entropy(dist, samples=50, generator=seeded(2)).value
    assert torch.equal(before, torch.get_rng_state())


def test_q_gaussian_and_torch_normal():
    ours = fd.QGaussian(real(0.3, 0.6), TRIL2, 1.0)
    theirs = MultivariateNormal(real(0.2, 0.5), scale_tril=1.5 * TRIL2)
    peer = MultivariateNormal(ours.loc, scale_tril=TRIL2)
    torch.testing.assert_close(kl_divergence(ours, theirs), kl_divergence(peer, theirs))
    torch.testing.assert_close(kl_divergence(theirs, ours), kl_divergence(theirs, peer))


def test_distance_between_equals_has_a_gradient():
    loc = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    dist = fd.QGaussian(loc, torch.eye(2).double())
    distance = fd.wasserstein2(dist, fd.QGaussian(loc.detach(), torch.eye(2).double()))
    assert torch.equal(torch.autograd.grad(distance, loc)[0], torch.zeros(2).double())


def test_values_of_another_type():
    """Whole numbers and other precisions are points of the simplex too."""
    loc, corner = real(0.2, 0.0, 0.1), torch.tensor([1, 0, 0])
    for dist in (
        fd.GaussianSparsemax(loc, 1.0),
        fd.GaussianSparsemax(loc, scale_tril=torch.eye(3).double()),
    ):
        exact = dist.log_prob(corner.double())
        assert dist.log_prob(corner) == dist.log_prob(corner.float()) == exact


REFUSED = {
    r"scale_tril must be \(..., 3, 3\).* got \(2, 2\)": lambda: fd.GaussianSparsemax(
        torch.zeros(3), scale_tril=torch.eye(2)
    ),
    r"must broadcast, got loc \(3,\) and scale \(4,\)": lambda: fd.GaussianSparsemax(
        torch.zeros(3), torch.ones(4)
    ),
    r"loc must be \(..., K\) with K at least 1, got \(0,\)": lambda: fd.GaussianSparsemax(
        torch.zeros(0), 1.0
    ),
    r"scores must be \(..., K\) with K at least 1": lambda: fd.GibbsFaces(torch.zeros(0)),
    r"(?s)loc.*Finite.*inf": lambda: fd.GaussianSparsemax(torch.tensor([math.inf, 0.0]), 1.0),
    r"(?s)log_weights.*SomeFinite.*-inf": lambda: fd.FacesBySize(torch.full((2,), -math.inf)),
    r"(?s)scores.*SomeFinite.*nan": lambda: fd.SparseCategorical(
        ff.Gini(), torch.tensor([math.nan, 0.0])
    ),
    "covariance must be positive definite": lambda: fd.QGaussian.from_covariance(
        torch.zeros(2), -torch.eye(2)
    ),
    r"alpha must be greater than .* = 0.5 .* got 0.4": lambda: fd.QGaussian.from_covariance(
        torch.zeros(2), torch.eye(2), 0.4
    ),
    "at least one corner": lambda: fd.MixedDirichlet(torch.zeros(3), torch.ones(3)).rsample_on(
        torch.zeros(3, dtype=torch.bool)
    ),
    r"weights must be \(2,\), .* got \(3,\)": lambda: fd.mutual_information(
        fd.GaussianSparsemax(torch.zeros(2, 3), 1.0), torch.ones(3) / 3
    ),
    "must sum to 1": lambda: fd.mutual_information(
        fd.GaussianSparsemax(torch.zeros(2, 3), 1.0), torch.ones(2)
    ),
    "same number of coordinates, got 3 and 4": lambda: kl_divergence(
        fd.MixedDirichlet(torch.zeros(3), torch.ones(3)), fd.MaxEntropyMixed(4)
    ),
    r"must broadcast, got loc \(2,\) and scale_tril \(\) and alpha \(3,\)": lambda: fd.QGaussian(
        torch.zeros(2, 2), torch.eye(2), torch.ones(3)
    ),
    r"must broadcast, got scores \(4,\) and temperature \(\) and stretch \(5,\)": lambda: (
        fd.HardConcrete(torch.zeros(4, 3), torch.tensor(0.5), torch.full((5,), 1.2))
    ),
    r"must broadcast, got logits \(4,\) and temperature \(5,\)": lambda: fd.BinaryHardConcrete(
        torch.zeros(4), torch.ones(5)
    ),
    r"must broadcast, got scores \(4,\) and temperature \(5,\)$": lambda: fd.Concrete(
        torch.zeros(4, 3), torch.ones(5)
    ),
    r"must broadcast, got scores \(4,\) and concentration \(5,\)": lambda: fd.MixedDirichlet(
        torch.zeros(4, 3), torch.ones(5, 3)
    ),
    r"must broadcast, got faces \(4,\) and concentration \(5,\)": lambda: fd.FaceMixture(
        fd.GibbsFaces(torch.zeros(4, 3)), torch.ones(5, 3)
    ),
    r"value must be \(\.\.\., 2\), got \(5, 1\)": lambda: fd.QGaussian(
        torch.zeros(2), torch.eye(2)
    ).fenchel_young_loss(torch.zeros(5, 1)),
    r"(?s)stretch.*Finite.*inf": lambda: fd.HardConcrete(torch.zeros(3), 0.5, math.inf),
    r"(?s)stretch.*at least 1.*inf": lambda: fd.BinaryHardConcrete(0.0, 0.5, math.inf),
    r"(?s)temperature.*above 0.*inf": lambda: fd.Concrete(torch.zeros(3), math.inf),
    r"(?s)concentration.*above 0.*inf": lambda: fd.MixedDirichlet(
        torch.zeros(2), torch.tensor([1.0, math.inf])
    ),
    r"(?s)alpha.*above 0.*inf": lambda: fd.QGaussian(torch.zeros(2), torch.eye(2), math.inf),
    r"(?s)alpha.*at least 0.*-0.1": lambda: fd.QGaussian(torch.zeros(1), torch.eye(1), -0.1),
    r"(?s)alpha.*Finite\(above 0\)": lambda: fd.QGaussian(torch.zeros(2), torch.eye(2), 0.0),
    r"alpha must be greater than .* = 0.3333 .* got 0.0": lambda: fd.QGaussian.from_covariance(
        torch.zeros(1), torch.eye(1), 0.0
    ),
    r"(?s)scale .*above 0.*inf": lambda: fd.LogisticNormal(torch.zeros(2), math.inf),
    r"(?s)scale_tril.*LowerCholesky.*inf": lambda: fd.QGaussian(
        torch.zeros(1), torch.tensor([[math.inf]])
    ),
    r"finite covariances, .* got alpha": lambda: fd.wasserstein2(
        *(fd.QGaussian(torch.zeros(1), torch.eye(1), 0.2) for _ in range(2))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_points_are_not_faces():
    for ask in (fd.face_index, fd.face_dimension):
        with pytest.raises(TypeError, match=r"faces must be boolean.*write face_of"):
            ask(torch.tensor([0.6, 0.0, 0.4]))
    with pytest.raises(TypeError, match=r"omega must be a regulariser.*got str"):
        fd.SparseCategorical("gini", torch.zeros(3))
    with pytest.raises(
        TypeError, match=r"faces must be a FaceDistribution.* got Tensor; write ListedFaces"
    ):
        fd.FaceMixture(torch.ones(3) / 3, torch.ones(2))
    dist = fd.QGaussian(torch.zeros(2), torch.eye(2), 1.0)
    with pytest.raises(TypeError, match=r"got MultivariateNormal; write QGaussian\(.*1\.0\)"):
        fd.wasserstein2(dist, MultivariateNormal(torch.zeros(2), torch.eye(2)))


def test_means_of_many_coordinates():
    dist = fd.MaxEntropyMixed(30, 2, dtype=torch.float64).expand((2,))
    torch.testing.assert_close(dist.mean, torch.full((2, 30), 1 / 30, dtype=torch.float64))
    small = fd.MaxEntropyMixed(5, 1, dtype=torch.float64)
    torch.testing.assert_close(small.mean, fd.FaceMixture.mean.fget(small))
    asked = "write p.sample"
    for dist in (
        fd.MixedDirichlet(torch.zeros(30), torch.ones(30)), fd.Concrete(torch.zeros(3), 0.5),
        fd.LogisticNormal(torch.zeros(3), 1.0), fd.HardConcrete(torch.zeros(3), 0.5),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=asked):
            _ = dist.mean
    for dist in (fd.Concrete(torch.zeros(3), 0.5), fd.LogisticNormal(torch.zeros(3), 1.0)):
        with pytest.raises(NotImplementedError, match=asked):
            _ = dist.variance
        with pytest.raises(NotImplementedError, match="write direct_sum_entropy"):
            dist.entropy()


def test_exact_for_torch_distributions_too():
    assert fd.direct_sum_entropy(Normal(0.0, 1.0), generator=seeded()).standard_error == 0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sizes_of_faces_and_their_slopes_are_those_of_enumeration(size: int) -> None:
    scores = torch.linspace(-1, 2, size, dtype=torch.float64).requires_grad_()
    dist, other = ff.distributions.GibbsFaces(scores), ff.distributions.MaxEntropyMixed(size).faces
    faces = ff.distributions.all_faces(size)
    logs = dist.log_prob(faces)
    sizes = torch.stack([logs[faces.sum(-1) == n].logsumexp(0) for n in range(1, size + 1)])
    torch.testing.assert_close(dist.log_sizes(), sizes)
    listed = (logs.exp() * (logs - other.log_prob(faces))).sum()
    found = torch.distributions.kl_divergence(dist, other)
    torch.testing.assert_close(found, listed, check_dtype=False, rtol=1e-6, atol=1e-6)
    slopes = (torch.autograd.grad(value, scores)[0] for value in (found, listed))
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-6)
