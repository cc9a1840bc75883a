"""Regularisers: consistency of value, argmax, conjugate and margin."""

import pytest
import torch

import fewfold as ff

from .cases import random_scores

pytestmark = pytest.mark.usefixtures("path")

SIMPLEX = [
    ff.Shannon(),
    ff.Gini(),
    ff.Tsallis(0.7),
    ff.Tsallis(1.0),
    ff.Tsallis(1.2),
    ff.Tsallis(1.5),
    ff.Tsallis(2.0),
    ff.Tsallis(3.0),
    ff.Tsallis(torch.tensor(1.3, dtype=torch.float64)),
    ff.Norm(1.5),
    ff.Norm(2.0),
    ff.Norm(5.0),
]
OMEGAS = [
    *SIMPLEX,
    *(ff.Subset(1), ff.Subset(2), ff.Subset(2.5), ff.Subset(2, at_most=True)),
    *(ff.maps.Bounded(0.4), ff.maps.Bounded(0.4, ff.Shannon())),
    *(ff.maps.Fused(0.1), ff.maps.Fused(0.5), ff.maps.Oscar(0.1), ff.maps.Oscar(0.5)),
]
every_omega = pytest.mark.parametrize("omega", OMEGAS, ids=str)
every_simplex = pytest.mark.parametrize("omega", SIMPLEX, ids=str)


def points(omega, rows: int, n: int, seed: int) -> torch.Tensor:
    """Random members of the polytope, some of them sparse."""
    scores = 3 * random_scores(rows, n, seed=seed)
    if isinstance(omega, ff.Subset):
        return ff.ksubset(scores, omega.k, at_most=omega.at_most)
    if isinstance(omega, ff.maps.Bounded):
        return ff.maps.constrained_softmax(scores, omega.upper)
    return torch.cat([torch.softmax(scores[::2], -1), ff.sparsemax(scores[1::2])])


@every_omega
def test_meets_the_protocol(omega):
    assert isinstance(omega, ff.Omega)
    with pytest.raises(AttributeError):
        omega.anything = 1  # frozen


def test_how_many_to_choose_is_a_number():
    with pytest.raises(TypeError, match="k must be a number, got str"):
        ff.Subset("3")
    for k in (float("nan"), float("inf"), -1):
        with pytest.raises(ValueError, match="k must be finite and at least 0"):
            ff.Subset(k)


def test_a_regulariser_needs_a_value_and_a_map():
    class Half(ff.Omega):
        def value(self, probs, dim=-1):
            return probs.sum(dim)

    with pytest.raises(TypeError, match="argmax"):
        Half()


@every_omega
def test_argmax_is_the_map(omega):
    scores = random_scores(4, 6)
    expected = {
        ff.Shannon: lambda o: ff.softmax(scores),
        ff.Gini: lambda o: ff.sparsemax(scores),
        ff.Tsallis: lambda o: ff.entmax(scores, o.alpha),
        ff.Norm: lambda o: ff.normmax(scores, o.alpha),
        ff.Subset: lambda o: ff.ksubset(scores, o.k, at_most=o.at_most),
        ff.maps.Bounded: lambda o: (
            ff.constrained_sparsemax(scores, o.upper)
            if o.omega == ff.Gini()
            else ff.maps.constrained_softmax(scores, o.upper)
        ),
        ff.maps.Fused: lambda o: ff.fusedmax(scores, o.strength),
        ff.maps.Oscar: lambda o: ff.oscarmax(scores, o.strength),
    }[type(omega)](omega)
    torch.testing.assert_close(omega.argmax(scores), expected, atol=1e-12, rtol=0)
    mask = scores > -0.5
    mask[:, :3] = True
    moved = omega.argmax(scores.t(), 0, mask=mask.t()).t()
    torch.testing.assert_close(moved, omega.argmax(scores, mask=mask), atol=1e-12, rtol=0)


@every_omega
def test_no_other_point_does_better(omega):
    """The definition: argmax maximises <p, scores> - Omega(p) over the polytope."""
    for scale in (0.3, 1.0, 3.0):
        scores = scale * random_scores(5, 6)
        best = omega.argmax(scores)
        top = (best * scores).sum(-1) - omega.value(best)
        torch.testing.assert_close(top, omega.conjugate(scores), atol=1e-12, rtol=1e-12)
        for seed in range(20):
            other = points(omega, 10, 6, seed)[:5]
            # far away, and next to the answer, where a small error would show
            for step in (1.0, 0.1, 1e-3):
                point = best + step * (other - best)
                reached = (point * scores).sum(-1) - omega.value(point)
                assert (reached <= top + 1e-12).all()


@every_omega
def test_the_conjugate_has_the_map_as_its_gradient(omega):
    scores = random_scores(5, 6).requires_grad_()
    (slope,) = torch.autograd.grad(omega.conjugate(scores).sum(), scores)
    torch.testing.assert_close(slope, omega.argmax(scores).detach(), atol=1e-9, rtol=0)


@every_omega
def test_fenchel_young_inequality(omega):
    scores = random_scores(10, 6)
    probs = points(omega, 10, 6, seed=5)
    gap = omega.conjugate(scores) + omega.value(probs) - (probs * scores).sum(-1)
    assert (gap >= -1e-12).all()
    assert (gap > 1e-6).any()
    own = omega.argmax(scores)
    tight = omega.conjugate(scores) + omega.value(own) - (own * scores).sum(-1)
    torch.testing.assert_close(tight, torch.zeros(10).double(), atol=1e-12, rtol=0)


@every_omega
def test_conjugate_with_holes(omega):
    scores = random_scores(3, 7)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[:, 3] = False
    small = omega.conjugate(torch.cat([scores[:, :3], scores[:, 4:]], -1))
    torch.testing.assert_close(omega.conjugate(scores, mask=mask), small, atol=1e-12, rtol=0)
    holes = scores.masked_fill(~mask, -torch.inf).requires_grad_()
    torch.testing.assert_close(omega.conjugate(holes), small, atol=1e-12, rtol=0)
    (slope,) = torch.autograd.grad(omega.conjugate(holes).sum(), holes)
    assert slope.isfinite().all()


@every_omega
def test_conjugate_where_nothing_is_kept(omega):
    scores = random_scores(3, 7).requires_grad_()
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1] = False
    for found in (
        omega.conjugate(scores, mask=mask),
        omega.conjugate(scores.masked_fill(~mask, -torch.inf)),
    ):
        assert found[1] == 0
        assert (found != 0).tolist() == [True, False, True]
        (slope,) = torch.autograd.grad(found.sum(), scores)
        assert not slope[1].any()


@every_omega
def test_value_along_any_dim(omega):
    probs = points(omega, 8, 6, seed=1)
    torch.testing.assert_close(omega.value(probs.t(), 0), omega.value(probs), atol=1e-12, rtol=0)
    cube = probs.reshape(2, 4, 6)
    assert omega.value(cube).shape == (2, 4)
    assert omega.conjugate(cube.movedim(-1, 0), 0).shape == (2, 4)


@every_omega
def test_value_and_its_gradient_at_exact_zeros(omega):
    """Zeros give no NaN; where the slope is finite it is right."""
    n = 6
    probs = points(omega, 8, n, seed=3)
    probs[0] = 0.0
    probs[0, 2] = 1.0
    leaf = probs.clone().requires_grad_()
    value = omega.value(leaf)
    assert value.isfinite().all()
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert not slope.isnan().any()
    inside = probs > 1e-3
    step = 1e-6
    for i in range(n):
        nudge = torch.zeros(n, dtype=torch.float64)
        nudge[i] = step
        numeric = (omega.value(probs + nudge) - omega.value(probs - nudge)) / (2 * step)
        rows = inside[:, i]
        if isinstance(omega, ff.Tsallis | ff.Shannon | ff.Gini):
            # Defined up to a multiple of the sum, which is constant on the simplex.
            continue
        torch.testing.assert_close(slope[rows, i], numeric[rows], atol=1e-5, rtol=1e-5)


@every_simplex
def test_values_at_vertices_and_in_the_middle(omega):
    vertex = torch.nn.functional.one_hot(torch.tensor([0, 2]), 4).double()
    torch.testing.assert_close(omega.value(vertex), torch.zeros(2).double(), atol=1e-12, rtol=0)
    middle = torch.full((4,), 0.25, dtype=torch.float64)
    expected = {
        ff.Shannon: lambda o: -torch.log(torch.tensor(4.0).double()),
        ff.Gini: lambda o: torch.tensor((0.25 - 1) / 2).double(),
        ff.Tsallis: lambda o: (
            (4 * 0.25 ** float(o.alpha) - 1) / (float(o.alpha) * (float(o.alpha) - 1))
            if float(o.alpha) != 1
            else -torch.log(torch.tensor(4.0).double())
        ),
        ff.Norm: lambda o: (4 * 0.25**o.alpha) ** (1 / o.alpha) - 1,
    }[type(omega)](omega)
    torch.testing.assert_close(
        omega.value(middle), torch.as_tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(
    ("omega", "margin"),
    [
        (ff.Gini(), 1.0),
        (ff.Tsallis(1.25), 4.0),
        (ff.Tsallis(1.5), 2.0),
        (ff.Tsallis(2.0), 1.0),
        (ff.Tsallis(3.0), 0.5),
        (ff.Norm(1.5), 1.0),
        (ff.Norm(2.0), 1.0),
        (ff.Norm(5.0), 1.0),
    ],
    ids=str,
)
def test_margin(omega, margin):
    """One entry takes everything exactly when it leads by the margin."""
    assert float(omega.margin) == pytest.approx(margin)
    others = torch.tensor([0.0, 0.0, -0.3, -2.0], dtype=torch.float64)
    for lead in (margin, margin + 1e-6, margin + 1):
        probs = omega.argmax(torch.cat([torch.tensor([lead]).double(), others]))
        # Rounding of the threshold shows as its root where entries enter steeply.
        torch.testing.assert_close(probs[0], torch.ones(()).double(), atol=1e-4, rtol=0)
    short = omega.argmax(torch.cat([torch.tensor([0.9 * margin]).double(), others]))
    assert short[0] < 1 - 1e-5
    assert (short[1:3] > 1e-5).all()


def test_no_margin():
    assert ff.Shannon().margin is None
    assert ff.Tsallis(1.0).margin is None
    assert ff.Tsallis(0.7).margin is None


def test_margin_of_a_learnt_alpha():
    margin = ff.Tsallis(torch.tensor([[1.5], [2.0]])).margin
    torch.testing.assert_close(margin, torch.tensor([[2.0], [1.0]]))


def test_value_learns_alpha():
    probs = torch.softmax(random_scores(3, 5), -1)
    for alpha in (0.8, 1.0, 1.0 + 1e-9, 1.3, 2.0, 3.0):
        learnt = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(ff.Tsallis(learnt).value(probs).sum(), learnt)
        step = 1e-4
        above, below = (ff.Tsallis(alpha + h).value(probs).sum() for h in (step, -step))
        torch.testing.assert_close(slope, (above - below) / (2 * step), atol=1e-6, rtol=1e-6)
    learnt = torch.tensor(2.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: ff.Norm(a).value(probs), (learnt,))


def test_tsallis_becomes_shannon():
    probs = torch.softmax(random_scores(3, 5), -1)
    shannon = ff.Shannon().value(probs)
    torch.testing.assert_close(ff.Tsallis(1.0).value(probs), shannon, atol=1e-12, rtol=0)
    for near in (1e-12, 1e-8, 1e-5):
        torch.testing.assert_close(
            ff.Tsallis(1 + near).value(probs), shannon, atol=3 * near + 1e-11, rtol=0
        )
