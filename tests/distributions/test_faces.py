"""Faces, distributions of faces, and mixtures over them."""

import itertools
import math

import pytest
import torch
from torch.distributions import kl_divergence

import fewfold as ff
from fewfold import distributions as fd
from tests.distributions.cases import TRIPLE, real, seeded

MANY = 10**6
# The faces of three coordinates, in the order of `all_faces`, by quadrature.
GAUSSIAN = [
    *(0.04556063845160737, 0.0014469163425849952, 0.3537982983290156, 0.0034889067904483972),
    *(0.12713485338006456, 0.03149879756982234, 0.4370715891364567),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_all_faces_have_an_index(size):
    faces = fd.all_faces(size)
    assert faces.shape == (2**size - 1, size)
    assert faces.dtype == torch.bool
    assert torch.equal(fd.face_index(faces), torch.arange(len(faces)))
    assert len(faces.unique(dim=0)) == len(faces)
    assert torch.equal(fd.face_dimension(faces), faces.sum(-1) - 1)


def test_face_of_a_point_is_exact():
    y = torch.tensor([[1e-30, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert fd.face_of(y).tolist() == [[True, False, True], [False, False, True]]


def test_faces_that_cannot_be():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        fd.all_faces(0)
    with pytest.raises(ValueError, match=r"size must be at least 1, got 0"):
        fd.MaxEntropyMixed(0)
    with pytest.raises(ValueError, match=r"at most 20 to list all .* got 21; draw some"):
        fd.all_faces(21)
    with pytest.raises(ValueError, match="at most 62 coordinates to be numbered, got 63"):
        fd.face_index(torch.ones(63, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"2\^K - 1 entries, one for each face, got 4"):
        fd.ListedFaces(torch.ones(4) / 4)
    with pytest.raises(ValueError, match="K=3 entries, one for each corner, got 2"):
        fd.MixedDirichlet(torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match="bits must be finite and at least 0, got -1"):
        fd.MaxEntropyMixed(3, -1)
    with pytest.raises(ValueError, match="got neither; write GaussianSparsemax"):
        fd.GaussianSparsemax(torch.zeros(3))
    with pytest.raises(ValueError, match="got both"):
        fd.GaussianSparsemax(torch.zeros(3), 1.0, scale_tril=torch.eye(3))


def frequencies(faces: torch.Tensor) -> torch.Tensor:
    size = faces.shape[-1]
    return torch.bincount(fd.face_index(faces), minlength=2**size - 1) / len(faces)


def assert_drawn(faces, probs):
    """Within four standard errors, each of them."""
    error = (probs * (1 - probs) / len(faces)).sqrt()
    assert ((frequencies(faces) - probs).abs() <= 4 * error + 1e-12).all()


DISTRIBUTIONS = {
    "gibbs": fd.GibbsFaces(real(0.5, -0.3, 0.1)),
    "gibbs, mostly off": fd.GibbsFaces(real(-4.0, -3.0, -5.0)),
    "by size": fd.FacesBySize(real(0.2, 1.0, -0.5)),
    "without corners": fd.FacesBySize(real(-math.inf, 1.0, -0.5)),
    "listed": fd.ListedFaces(real(0.1, 0.2, 0.3, 0.05, 0.05, 0.3, 0.0)),
    "uniform": fd.uniform_faces(3),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_face_distributions_by_enumeration(name):
    dist = DISTRIBUTIONS[name]
    logs = dist.every()
    probs = logs.exp()
    assert (probs.sum() - 1).abs() < 1e-6
    assert_drawn(dist.sample((10**5,), generator=seeded()), probs)
    entropy = torch.special.entr(probs).sum()
    torch.testing.assert_close(dist.entropy(), entropy)
    every = fd.all_faces(3)
    torch.testing.assert_close(dist.marginals(), probs @ every.to(probs))
    assert logs[fd.face_index(dist.mode)] == logs.max()
    for other in DISTRIBUTIONS.values():
        exact = (probs * (logs - other.every()))[probs > 0].sum()
        torch.testing.assert_close(
            kl_divergence(dist, other), exact, check_dtype=False, rtol=1e-5, atol=1e-6
        )


def test_gibbs_faces_far_out():
    """All bits nearly off, where the first one decides, and all nearly on."""
    off = fd.GibbsFaces(torch.full((4,), -30.0, dtype=torch.float64))
    torch.testing.assert_close(off.marginals(), real(1, 1, 1, 1) / 4)
    torch.testing.assert_close(off.entropy(), real(math.log(4))[0])
    assert (off.sample((100,), generator=seeded()).sum(-1) == 1).all()
    on = fd.GibbsFaces(torch.full((4,), 30.0, dtype=torch.float64))
    assert on.sample((100,), generator=seeded()).all()
    assert on.entropy().abs() < 1e-20


@pytest.mark.parametrize(
    ("low", "dtype"), [(-60.0, torch.float32), (-1e3, torch.float32), (-400.0, torch.float64)]
)
def test_gibbs_faces_farther_out_than_probabilities(low, dtype):
    """One bit is on, although the probability of it, were it alone, is not a number."""
    scores = torch.full((3,), low, dtype=dtype, requires_grad=True)
    dist = fd.GibbsFaces(scores)
    third = torch.tensor(math.log(3), dtype=dtype)
    close = {"rtol": 0, "atol": 2e-7 * -low if dtype == torch.float32 else 1e-11}
    torch.testing.assert_close(dist.log_prob(torch.eye(3).bool()), -third.expand(3), **close)
    torch.testing.assert_close(dist.marginals(), torch.full((3,), 1 / 3, dtype=dtype), **close)
    torch.testing.assert_close(dist.entropy(), third, **close)
    torch.testing.assert_close(dist.log_sizes()[0], 0 * third, **close)
    torch.testing.assert_close(dist.log_normaliser, third - low, **close)
    assert kl_divergence(dist, fd.GibbsFaces(scores.detach() / 2)).isfinite()
    (slope,) = torch.autograd.grad(dist.log_prob(torch.tensor([True, False, False])), scores)
    torch.testing.assert_close(slope, torch.tensor([4, -2, -2], dtype=dtype) / 3, **close)
    (slope,) = torch.autograd.grad(dist.entropy(), scores)
    torch.testing.assert_close(slope, 0 * slope, rtol=0, atol=1e-4)
    mixed = fd.GibbsFaces(torch.tensor([low, -low, low], dtype=dtype))
    assert mixed.log_prob(torch.tensor([False, True, False])) == 0


def test_gibbs_faces_of_many_coordinates():
    scores = torch.linspace(-2, 1, 300, dtype=torch.float64)
    dist, other = fd.GibbsFaces(scores), fd.GibbsFaces(-scores)
    drawn = dist.sample((20000,), generator=seeded())
    logs = dist.log_prob(drawn)
    assert (-logs.mean() - dist.entropy()).abs() <= 3 * logs.std() / 20000**0.5
    ratio = logs - other.log_prob(drawn)
    assert (ratio.mean() - kl_divergence(dist, other)).abs() <= 3 * ratio.std() / 20000**0.5


def test_listed_faces_of_which_one_is_never_drawn():
    probs = real(0.5, 0.5, 0.0).requires_grad_()
    dist = fd.ListedFaces(probs)
    other = fd.ListedFaces(real(0.25, 0.5, 0.25))
    mixed = fd.FaceMixture(dist, torch.ones(2).double())
    for value in (dist.entropy(), kl_divergence(dist, other), mixed.entropy(), mixed.mean[0]):
        assert value.isfinite()
        assert torch.autograd.grad(value, probs)[0].isfinite().all()
    assert dist.log_prob(torch.tensor([True, True])) == -math.inf
    assert kl_divergence(other, dist) == math.inf


def test_faces_of_gaussian_sparsemax():
    drawn = fd.GaussianSparsemax(*TRIPLE).sample((MANY,), generator=seeded())
    assert_drawn(fd.face_of(drawn), real(*GAUSSIAN))
    full = fd.GaussianSparsemax(TRIPLE[0], scale_tril=torch.diag(TRIPLE[1]))
    assert_drawn(fd.face_of(full.sample((MANY,), generator=seeded(1))), real(*GAUSSIAN))


def test_faces_of_hard_concrete():
    """K = 3: the projection of a stretched concrete, whatever its density."""
    dist = fd.HardConcrete(real(0.5, 0.1, 0.0), 0.6, 1.3)
    drawn = dist.sample((1000,), generator=seeded())
    soft = fd.Concrete(dist.scores, 0.6).sample((1000,), generator=seeded())
    torch.testing.assert_close(drawn, ff.sparsemax(1.3 * soft))
    inside = fd.HardConcrete(dist.scores, 0.6, 1.0).sample((1000,), generator=seeded())
    assert fd.face_of(inside).all()
    cold = fd.HardConcrete(dist.scores, 0.01, 3.0).sample((10**5,), generator=seeded())
    corners = (fd.face_of(cold) & (cold == 1)).double().mean(0)
    torch.testing.assert_close(corners, dist.scores.softmax(-1), rtol=0, atol=0.02)


def test_mixed_dirichlet_by_enumeration():
    scores, concentration = real(0.5, -0.3, 0.1), real(0.7, 1.5, 2.5)
    dist = fd.MixedDirichlet(scores, concentration)
    prior = fd.MaxEntropyMixed(3, dtype=torch.float64)
    faces, probs = fd.all_faces(3), dist.faces.every().exp()
    entropy, divergence = dist.faces.entropy(), kl_divergence(dist.faces, prior.faces)
    for face, prob in zip(faces, probs, strict=True):
        if face.sum() > 1:
            within = torch.distributions.Dirichlet(concentration[face])
            flat = torch.distributions.Dirichlet(torch.ones(int(face.sum())).double())
            entropy = entropy + prob * within.entropy()
            divergence = divergence + prob * kl_divergence(within, flat)
            y = torch.zeros(3).double()
            y[face] = (
                torch.arange(1.0, face.sum() + 1).double() / torch.arange(face.sum() + 1).sum()
            )
            wanted = prob.log() + within.log_prob(y[face])
            torch.testing.assert_close(dist.log_prob(y), wanted)
    torch.testing.assert_close(dist.entropy(), entropy)
    torch.testing.assert_close(kl_divergence(dist, prior), divergence)
    drawn = dist.sample((10**5,), generator=seeded())
    assert_drawn(fd.face_of(drawn), probs)


def test_tiny_concentrations_stay_on_their_face():
    dist = fd.MixedDirichlet(torch.full((5,), 5.0), torch.full((5,), 1e-3))
    faces = dist.faces.sample((1000,), generator=seeded())
    drawn = dist.rsample_on(faces, generator=seeded())
    assert torch.equal(fd.face_of(drawn), faces)
    assert dist.log_prob(drawn).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("concentration", [1e-3, 0.003, 0.05, 0.3, 0.8])
def test_draws_on_a_face_have_the_moments_of_dirichlet(concentration, dtype):
    """However small the concentration; fails by chance once in 10^4 at each row."""
    a = torch.tensor([1.0, 1.0, 2.0, 1.0], dtype=dtype) * concentration
    dist = fd.MixedDirichlet(torch.zeros(4, dtype=dtype), a)
    face = torch.tensor([True, False, True, True])
    drawn = dist.rsample_on(face.expand(50_000, 4), generator=seeded())
    assert torch.equal(fd.face_of(drawn), face.expand(50_000, 4))
    assert dist.log_prob(drawn).isfinite().all()
    inside, total = a[face].double(), 4 * concentration
    mean = inside / total
    squares = mean * (inside + 1) / (total + 1)
    for power, wanted in ((1, mean), (2, squares)):
        found = drawn[:, face].double() ** power
        assert ((found.mean(0) - wanted).abs() < 4 * found.std(0) / 50_000**0.5).all()


@pytest.mark.parametrize("concentration", [0.003, 0.1, 0.29, 0.31, 1.5])
def test_gradients_of_draws_on_a_face(concentration):
    """Of `E y_i^2 = a_i (a_i + 1) / (A (A + 1))`; fails by chance once in 10^4."""
    a = (real(1.0, 1.0, 2.0) * concentration).requires_grad_()
    exact = (a * (a + 1) / (a.sum() * (a.sum() + 1)))[2]
    wanted = torch.autograd.grad(exact, a)[0]
    each = a.detach().expand(200_000, 3).clone().requires_grad_()
    dist = fd.MixedDirichlet(torch.zeros(3).double(), each)
    drawn = dist.rsample_on(torch.ones(200_000, 3, dtype=torch.bool), generator=seeded())
    slopes = torch.autograd.grad(drawn[:, 2].square().sum(), each)[0]
    assert ((slopes.mean(0) - wanted).abs() < 4 * slopes.std(0) / 200_000**0.5).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_stays_on_its_face(dtype):
    dist = fd.MixedDirichlet(torch.zeros(3, dtype=dtype), torch.full((3,), 0.05, dtype=dtype))
    faces = dist.faces.sample((500,), generator=seeded())
    drawn = dist.rsample_on(faces, generator=seeded())
    assert torch.equal(fd.face_of(drawn), faces)
    assert dist.log_prob(drawn).isfinite().all()


def test_draws_on_a_face_are_differentiable():
    concentration = real(0.7, 1.5, 2.5).requires_grad_()
    faces = torch.tensor([[True, True, False], [True, True, True]])
    drawn = fd.MixedDirichlet(torch.zeros(3).double(), concentration).rsample_on(faces)
    (slope,) = torch.autograd.grad(drawn[0, 0], concentration)
    assert slope[0] > 0 > slope[1]
    assert slope[2] == 0


def test_longest_code_is_the_longest():
    """No other distribution of sizes with flat faces has more, and the sizes count C(K, k)."""
    best = fd.MaxEntropyMixed(4, dtype=torch.float64)
    for seed in range(5):
        weights = torch.randn(4, generator=seeded(seed), dtype=torch.float64)
        other = fd.FaceMixture(fd.FacesBySize(weights), torch.ones(4).double())
        assert other.entropy() < best.entropy()
    gap = best.entropy() - other.entropy()
    torch.testing.assert_close(kl_divergence(other, best), gap)


def test_faces_of_given_sizes():
    """Probabilities of sizes as given, whatever their number of faces, as published."""
    logs = real([0.3, -1.0, 0.2, 0.5], [-math.inf, 0.0, -math.inf, 1.0])
    dist = fd.FacesBySize.of_sizes(logs)
    torch.testing.assert_close(dist.sizes(), logs.softmax(-1))
    alike = dist.every().exp()[..., fd.all_faces(4).sum(-1) == 2]
    torch.testing.assert_close(alike, (logs.softmax(-1)[:, 1:2] / 6).expand(2, 6))


# Sparse categories


def test_sparse_categorical():
    dist = fd.SparseCategorical(ff.Gini(), real(-2.0, 0.0, 0.5))
    probs = real(0.0, 0.25, 0.75)
    torch.testing.assert_close(dist.probs, probs)
    assert dist.log_prob(torch.tensor(0)) == -math.inf
    assert dist.face.tolist() == [False, True, True]
    assert dist.mode == 2
    torch.testing.assert_close(dist.entropy(), torch.special.entr(probs).sum())
    drawn = dist.sample((4000,), generator=seeded())
    assert set(drawn.tolist()) == {1, 2}
    assert dist.enumerate_support().tolist() == [0, 1, 2]
    wide = fd.SparseCategorical(ff.Shannon(), real(0.1, 0.2, 0.3))
    assert kl_divergence(dist, wide).isfinite()
    assert kl_divergence(wide, dist) == math.inf
    with pytest.raises(ValueError, match=r"probs.*constraint"):
        fd.SparseCategorical(ff.Subset(2), torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_probabilities_up_to_rounding(dtype):
    scores = torch.randn(2000, 40, generator=seeded()).to(dtype)
    for omega in (ff.Tsallis(1.5), ff.Shannon(), ff.Gini()):
        assert fd.SparseCategorical(omega, scores).probs.dtype == dtype
    probs = scores[:, :31].softmax(-1)
    assert fd.ListedFaces(probs).probs.dtype == dtype
    assert fd.ListedFaces(probs.float().softmax(-1).double()).size == 5
    with pytest.raises(ValueError, match=r"probs.*constraint"):
        fd.ListedFaces(1.5 * probs)


@pytest.mark.parametrize("omega", [ff.Shannon(), ff.Tsallis(1.5), ff.Norm(2.0)], ids=str)
def test_sparse_categorical_of_any_map(omega):
    dist = fd.SparseCategorical(omega, torch.zeros(2, 3, 4))
    assert dist.batch_shape == (2, 3)
    assert dist.sample((5, 6)).shape == (5, 6, 2, 3)
    torch.testing.assert_close(dist.entropy(), torch.full((2, 3), math.log(4)))


def test_pairs_are_all_faces():
    assert sorted(map(tuple, fd.all_faces(2).tolist())) == sorted(
        face for face in itertools.product([False, True], repeat=2) if any(face)
    )
