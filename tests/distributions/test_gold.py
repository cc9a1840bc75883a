"""Reference values computed independently in high precision."""

import math
from functools import partial

import pytest
import torch

from fewfold import distributions as fd
from fewfold.distributions.integrals.rectified import Rectified
from tests.distributions.cases import TRIPLE, real

near = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
POINTS = [[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]]
DENSITIES = [-3.088711127077125, -0.5104608818151553, 0.49329490398818193]


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_gaussian_sparsemax_on_three_faces(kind):
    loc, scale = TRIPLE
    dist = fd.GaussianSparsemax(loc, scale)
    if kind == "full":
        dist = fd.GaussianSparsemax(loc, scale_tril=torch.diag(scale))
    near(dist.log_prob(real(*POINTS)), real(*DENSITIES))
    corners = dist.log_prob(torch.eye(3, dtype=torch.float64)).exp()
    known = real(0.04556063845160737, 0.0014469163425849952, 0.0034889067904483972)
    torch.testing.assert_close(corners, known, rtol=0, atol=1e-9)


def test_gaussian_sparsemax_of_two_is_a_rectified_gaussian():
    dist = fd.GaussianSparsemax(real(0.5, 0.1), real(0.4, 0.3))
    found = dist.log_prob(real([1, 0], [0, 1], [0.6, 0.4]))
    wanted = real(0.11506967022170822, 0.002555130330427932)
    near(found[:2].exp(), wanted)
    near(found[2], real(0.38735582791521794)[0])
    near(dist.rectified().loc, real(0.7)[0])
    near(dist.rectified().scale, real(0.25)[0])


def test_rectified_gaussian():
    dist = Rectified(real(0.3)[0], real(0.5)[0])
    near(dist.entropy(), real(0.8213632044809148)[0])
    near(dist.log_zero.exp(), real(0.2742531177500736)[0])
    near(dist.log_one.exp(), real(0.08075665923377107)[0])
    near(dist.moments()[0], real(0.6449902230161554)[0])


@pytest.mark.parametrize(
    ("size", "bits", "total"),
    [
        *((2, 0, 3.0), (2, 1, 4.0), (2, 3, 10.0), (3, 0, 6.5), (3, 1, 11.0), (3, 3, 59.0)),
        *((5, 0, 20.875), (5, 1, 52.33333333333333), (5, 3, 1002.3333333333334)),
        *((10, 0, 162.42584600970017), (10, 1, 855.8744268077601), (10, 3, 189428.1220458554)),
    ],
)
def test_longest_code(size, bits, total):
    dist = fd.MaxEntropyMixed(size, bits, dtype=torch.float64)
    near(dist.code_length, torch.tensor(total, dtype=torch.float64).log())
    dimension = dist.faces.marginals().sum() - 1
    near(dist.entropy() + bits * math.log(2) * dimension, dist.code_length)
    near(dist.entropy(), fd.FaceMixture.entropy(dist))


def test_sizes_of_the_longest_code():
    dist = fd.MaxEntropyMixed(3, dtype=torch.float64)
    near(dist.faces.sizes(), real(6, 6, 1) / 13)


def test_gibbs_faces():
    dist = fd.GibbsFaces(real(0.5, -0.3, 0.1))
    near(dist.log_normaliser, real(2.167495678809395)[0])
    near(dist.marginals(), real(0.7930501179191294, 0.38439095900925824, 0.596458244456623))
    near(dist.entropy(), real(1.7857884874044962)[0])
    wanted = {
        (0, 0, 1): 0.10357123120314533,
        (0, 1, 0): 0.04653755402885455,
        (0, 1, 1): 0.05684109684887087,
        (1, 0, 0): 0.23050201405695614,
        (1, 0, 1): 0.28153579573064047,
        (1, 1, 0): 0.12650218745756636,
        (1, 1, 1): 0.1545101206739664,
    }
    for face, prob in wanted.items():
        near(dist.log_prob(torch.tensor(face)).exp(), real(prob)[0])


def test_hard_concrete():
    dist = fd.BinaryHardConcrete(real(0.5)[0], 0.7, 1.2)
    near(dist.log_zero.exp(), real(0.10169544084295563)[0])
    near(dist.log_one.exp(), real(0.23531720452076732)[0])
    both = fd.HardConcrete(real(0.5, 0.0), 0.7, 1.2)
    near(both.log_prob(real(1.0, 0.0)).exp(), real(0.23531720452076732)[0])
    near(both.log_prob(real(0.0, 1.0)).exp(), real(0.10169544084295563)[0])


def test_concrete():
    dist = fd.Concrete(real(0.2, -0.1, 0.4), 0.7)
    near(dist.log_prob(real(0.5, 0.3, 0.2)), real(-0.045047884162478624)[0])
    peer = torch.distributions.RelaxedOneHotCategorical(real(0.7)[0], logits=real(0.2, -0.1, 0.4))
    near(peer.log_prob(real(0.5, 0.3, 0.2)), dist.log_prob(real(0.5, 0.3, 0.2)))


def test_johns_day():
    john = fd.FaceMixture(fd.ListedFaces(real(15, 8, 1) / 24), torch.ones(2).double())
    near(john.entropy(), real(0.7923752740991191)[0])
    near(john.entropy() / math.log(2), real(1.1431558784658322)[0])


# alpha: tau, half of the support, variance, Tsallis entropy, the value of the map
QUADRATIC = {
    4 / 3: (-3.6554232160489724, 0.6046009606384176, 0.04061581351165525, -0.18694881069931385,
            -0.5931069458158662),
    3 / 2: (-2.689134392331425, 0.518568644668324, 0.03841620560473463, -0.20331489085605212,
            -0.5874769469033985),
    2.0: (-1.7784466522450315, 0.4217163326508747, 0.03556893304490064, -0.2113786608980126,
          -0.567067991347019),
}  # fmt: skip


@pytest.mark.parametrize("alpha", QUADRATIC)
def test_q_gaussian_in_one_dimension(alpha):
    tau, half, variance, entropy, value = QUADRATIC[alpha]
    dist = fd.QGaussian(real(0.4), real([0.05**0.5]), alpha)
    near(dist.threshold, real(tau)[0])
    near(dist.radius * 0.05**0.5, real(half)[0])
    near(dist.variance, real(variance))
    near(dist.tsallis_entropy(), real(entropy)[0])
    near(dist.fenchel_young_loss(real(0.5)) - 0.1, real(value)[0])


def test_gaussian_in_one_dimension():
    dist = fd.QGaussian(real(0.4), real([0.05**0.5]), 1.0)
    torch.testing.assert_close(dist.entropy(), real(-0.07892760357232281)[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(dist.variance, real(0.05), rtol=0, atol=1e-9)


def test_truncated_paraboloid_in_two_dimensions():
    sigma = real([0.03, 0.01], [0.01, 0.05])
    dist = fd.QGaussian(real(0.3, 0.6), torch.linalg.cholesky(sigma), 2.0)
    near(dist.threshold, real(-2.916708684364663)[0])
    near(dist.covariance_matrix, 0.9722362281215543 * sigma)
    again = fd.QGaussian.from_covariance(dist.loc, dist.covariance_matrix, 2.0)
    near(again.scale_tril, dist.scale_tril)


@pytest.mark.parametrize(
    ("n", "alpha", "radius"),
    [
        *((1, 4 / 3, 2.1829968887279985), (1, 1.5, 1.7187719275874789), (1, 2, 1.1447142425533319)),
        *((2, 4 / 3, 2.017996848770173), (2, 1.5, 1.5752466357994865), (2, 2, 1.062251932027197)),
        *((3, 4 / 3, 1.910065556309243), (3, 1.5, 1.4952562726190488), (3, 2, 1.0360394174307597)),
    ],
)
def test_radius_of_the_unit_scale(n, alpha, radius):
    dist = fd.QGaussian(torch.zeros(n).double(), torch.eye(n).double(), alpha)
    near(dist.radius, real(radius)[0])
