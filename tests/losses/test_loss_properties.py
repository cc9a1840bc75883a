"""Properties of every Fenchel-Young loss: values, gradients, margins, masks and reductions."""

import math

import pytest
import torch
import torch.nn.functional as F

from fewfold.losses import (
    FenchelYoungLoss,
    entmax_loss,
    fenchel_young_loss,
    ksubset_loss,
    softmax_loss,
)
from fewfold.maps import Bounded, Fused, Gini, Norm, Oscar, Shannon, Subset, Tsallis

from .cases import CASES, close, every_class_loss, every_loss, random_scores, slope


@every_loss
def test_value_and_gradient(case, path):
    scores = 2 * random_scores(40, 7)
    for target in (case.target(scores), case.soft(scores)):
        close(case(scores, target, reduction="none"), case.expected(scores, target), 1e-12)
        gradient = slope(lambda s, y=target: case(s, y, reduction="sum"), scores)
        close(gradient, case.probs(scores) - target, 1e-12)


@every_loss
def test_the_name_is_the_member(case, path):
    scores = random_scores(5, 6)
    target = case.target(scores)
    options = {"reduction": "sum", "label_smoothing": 0.1, "weight": torch.rand(6).double()}
    assert torch.equal(case.by_name(scores, target, **options), case(scores, target, **options))
    if case.indexed:
        index = target.argmax(-1)
        index[2] = 7
        options["ignore_index"] = 7
        assert torch.equal(case.by_name(scores, index, **options), case(scores, index, **options))


@every_loss
def test_zero_exactly_at_the_map(case, path):
    scores = random_scores(20, 5)
    at = case(scores, case.probs(scores), reduction="none")
    close(at, torch.zeros(20), 1e-12)
    away = case(scores, case.soft(scores), reduction="none")
    assert (away > 1e-3).all()


@every_loss
def test_convex(case, path):
    left, right = 3 * random_scores(50, 6), 3 * random_scores(50, 6, seed=1)
    target = case.soft(left)
    losses = [case(s, target, reduction="none") for s in (left, right, (left + right) / 2)]
    assert (losses[2] <= (losses[0] + losses[1]) / 2 + 1e-12).all()


@every_class_loss
def test_between_the_perceptron_and_a_constant_more(case, path):
    scores = 2 * random_scores(50, 6)
    index = case.target(scores).argmax(-1)
    perceptron = scores.amax(-1) - scores.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    losses = case(scores, index, reduction="none")
    assert (losses >= perceptron - 1e-12).all()
    assert (losses <= perceptron - case.lowest(6) + 1e-12).all()
    flat = case(torch.zeros(1, 6, dtype=torch.float64), torch.tensor([2]))
    assert float(flat) == pytest.approx(-case.lowest(6), abs=1e-12)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.margin], ids=lambda case: case.name
)
def test_zero_from_the_margin_on(case, path):
    for extra, zero in ((1e-3, True), (0.0, True), (-0.1, False)):
        scores = torch.tensor([[0.3, -1.0, 0.1, 0.3, -0.5]], dtype=torch.float64)
        target = torch.zeros_like(scores)
        chosen = [1, 4][: case.mass]
        target[0, chosen] = 1.0
        scores[0, chosen] = 0.3 + case.margin + extra
        loss = float(case(scores, target))
        assert (loss < 1e-14) == zero, (extra, loss)
        if case.indexed:
            by_index = float(case(scores, torch.tensor([1])))
            assert (by_index < 1e-14) == zero


@every_loss
def test_offset(case, path):
    if case.at_most:
        pytest.skip("without a fixed mass an offset matters")
    base = torch.randint(-64, 64, (30, 8)).double() / 16  # survives the addition exactly
    target = case.target(base)
    for offset in (1e4, -1e6):
        moved = (base + offset).float()
        close(case(moved, target.float(), reduction="none"), case.expected(base, target), 2e-6)
        if case.indexed:
            got = case(moved, target.argmax(-1), reduction="none")
            close(got, case.expected(base, target), 2e-6)


@every_loss
def test_scale(case, path):
    for scale in (1e-6, 1e-3, 1e3, 1e6):
        scores = (scale * random_scores(20, 9)).float()
        target = case.target(scores)
        want = case.expected(scores, target)
        close(case(scores, target, reduction="none"), want, 1e-6)
        gradient = slope(lambda s, y=target: case(s, y, reduction="sum"), scores)
        close(gradient, case.probs(scores) - target, 1e-5)


@every_class_loss
def test_index_is_one_hot(case, path):
    scores = random_scores(4, 5)
    target = case.target(scores)
    index = target.argmax(-1)
    close(case(scores, index), case(scores, target))
    for dtype in (torch.int32, torch.int16, torch.uint8):
        close(case(scores, index.to(dtype)), case(scores, target))
    close(
        slope(lambda s: case(s, index), scores),
        slope(lambda s: case(s, target), scores),
    )


@every_class_loss
def test_shapes(case, path):
    scores = random_scores(2, 5, 3, 4)
    index = random_scores(2, 5, 3, 4, seed=1).argmax(1)
    flat_scores, flat_index = scores.movedim(1, -1).reshape(-1, 5), index.reshape(-1)
    got = case(scores, index, reduction="none")
    assert got.shape == index.shape
    close(got.reshape(-1), case(flat_scores, flat_index, reduction="none"))
    close(case(scores, index), case(flat_scores, flat_index))
    probs = torch.softmax(random_scores(2, 5, 3, 4, seed=2), 1)
    close(
        case(scores, probs, reduction="none").reshape(-1),
        case(flat_scores, probs.movedim(1, -1).reshape(-1, 5), reduction="none"),
    )
    gradient = slope(lambda s: case(s, index), scores)
    close(
        gradient.movedim(1, -1).reshape(-1, 5),
        slope(lambda s: case(s, flat_index), flat_scores),
    )
    row = case(flat_scores[0], flat_index[0], reduction="none")
    assert row.shape == ()
    close(row, got[0, 0, 0])
    strided = scores.transpose(2, 3).contiguous().transpose(2, 3)
    close(case(strided, index), case(scores, index))


@every_loss
def test_empty_batch_and_one_class(case, path):
    leaf = torch.zeros(0, 5, requires_grad=True)
    loss = case(leaf, torch.zeros(0, 5))
    assert float(loss.detach()) == 0.0
    loss.backward()
    assert leaf.grad.shape == (0, 5)
    if case.indexed:
        assert float(case(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))) == 0.0
        one = random_scores(3, 1).requires_grad_()
        loss = case(one, torch.zeros(3, dtype=torch.long))
        (gradient,) = torch.autograd.grad(loss, one)
        assert float(loss.detach()) == 0.0
        assert not gradient.any()


@every_loss
def test_dropped_classes(case, path):
    scores = random_scores(10, 8)
    kept = torch.tensor([0, 2, 3, 5, 7])
    target = torch.zeros_like(scores)
    target[:, kept] = case.target(scores[:, kept])
    dropped = torch.full_like(scores, -math.inf)
    dropped[:, kept] = scores[:, kept]
    close(
        case(dropped, target, reduction="none"),
        case(scores[:, kept], target[:, kept], reduction="none"),
        1e-12,
    )
    gradient = slope(lambda s: case(s, target), dropped)
    assert gradient.isfinite().all()
    close(gradient[:, kept], slope(lambda s: case(s, target[:, kept]), scores[:, kept]))
    if case.indexed:
        close(case(dropped, target.argmax(-1)), case(dropped, target))
        smoothed = case(dropped, target.argmax(-1), label_smoothing=0.2)
        few = case(scores[:, kept], target[:, kept].argmax(-1), label_smoothing=0.2)
        close(smoothed, few)


@every_class_loss
def test_impossible_targets_cost_infinity(case, path):
    scores = random_scores(3, 4)
    scores[0, 1] = -math.inf
    scores[2] = -math.inf
    index = torch.tensor([1, 1, 1])
    for target in (index, F.one_hot(index, 4).double()):
        losses = case(scores, target, reduction="none")
        assert losses[0] == math.inf
        assert losses[1].isfinite()
        assert losses[2] == math.inf
        gradient = slope(lambda s, y=target: case(s, y, reduction="sum"), scores)
        p = case.probs(scores[:2])
        close(gradient[:2], p - F.one_hot(index[:2], 4), 1e-12)
        assert not gradient[2].any()


@every_class_loss
def test_infinite_scores_are_a_limit(case, path):
    scores = torch.tensor([[math.inf, 1.0, math.inf], [0.0, 1.0, math.inf]])
    both = torch.zeros(1, 2)
    losses = case(scores, torch.tensor([0, 2]), reduction="none")
    close(losses[0], case(both, torch.tensor([0])), 1e-6)
    assert losses[1] == 0
    assert (case(scores, torch.tensor([1, 1]), reduction="none") == math.inf).all()


@every_class_loss
def test_nan_stays_in_its_row(case, path):
    scores = random_scores(4, 5)
    index = torch.tensor([0, 1, 2, 3])
    clean = case(scores, index, reduction="none")
    scores[1, 4] = math.nan
    losses = case(scores, index, reduction="none")
    assert losses.isnan().tolist() == [False, True, False, False]
    close(losses[[0, 2, 3]], clean[[0, 2, 3]])
    gradient = slope(lambda s: case(s, index, reduction="none"), scores)
    assert gradient.isnan().any(-1).tolist() == [False, True, False, False]
    index[1] = -100  # and a row that does not count cannot hurt
    close(case(scores, index), clean[[0, 2, 3]].mean())
    gradient = slope(lambda s: case(s, index), scores)
    assert gradient.isfinite().all()
    assert not gradient[1].any()


@pytest.mark.parametrize(
    ("case", "ignored"),
    [
        pytest.param(case, ignored, id=f"{case.name}-{ignored}")
        for place, case in enumerate(case for case in CASES if case.indexed)
        for ignored in ((-100, -1, 2, 99) if place < 2 else (2,))  # where it is a class as well
    ],
)
def test_ignore_index(case, ignored, path):
    scores = random_scores(6, 5)
    index = torch.tensor([0, ignored, 1, 3, ignored, 4])
    kept = index != ignored
    weight = torch.rand(5, generator=torch.Generator().manual_seed(3)).double()
    for options in ({}, {"weight": weight}, {"label_smoothing": 0.3}):
        for reduction in ("mean", "sum"):
            got = case(scores, index, ignore_index=ignored, reduction=reduction, **options)
            close(got, case(scores[kept], index[kept], reduction=reduction, **options))
        rows = case(scores, index, ignore_index=ignored, reduction="none", **options)
        assert not rows[~kept].any()
        gradient = slope(lambda s, o=options: case(s, index, ignore_index=ignored, **o), scores)
        assert not gradient[~kept].any()
        assert gradient[kept].any()


@every_class_loss
def test_nothing_counts(case, path):
    scores = random_scores(3, 4)
    index = torch.full((3,), -100)
    for reduction in ("mean", "sum"):
        assert float(case(scores, index, reduction=reduction)) == 0.0
        assert not slope(lambda s, r=reduction: case(s, index, reduction=r), scores).any()


@every_class_loss
def test_weight(case, path):
    scores = random_scores(6, 4)
    index = torch.tensor([0, 1, 2, 3, 1, 0])
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    rows = case(scores, index, reduction="none")
    factor = weight[index]
    close(case(scores, index, weight=weight, reduction="none"), factor * rows)
    close(case(scores, index, weight=weight), (factor * rows).sum() / factor.sum())
    probs = torch.softmax(random_scores(6, 4, seed=5), -1)
    mass = probs @ weight
    rows = mass * case(scores, probs * weight / mass.unsqueeze(1), reduction="none")
    close(case(scores, probs, weight=weight, reduction="none"), rows)
    close(case(scores, probs, weight=weight), rows.mean())
    scores[2] = -math.inf  # an infinite loss, of a class that weighs nothing
    assert case(scores, index, weight=weight).isfinite()


@pytest.mark.parametrize("at_most", [False, True])
def test_weighed_subsets_count_by_the_weight_of_their_classes(at_most, path):
    scores, weight = random_scores(2, 4), torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    target = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    options = {"k": 2, "at_most": at_most, "reduction": "none"}
    rows = ksubset_loss(scores, target, **options)
    close(ksubset_loss(scores, target, weight=weight, **options), (target @ weight) * rows)


@pytest.mark.parametrize("at_most", [False, True])
def test_a_number_of_classes_that_is_a_tensor_gives_the_same_loss(at_most, path):
    scores, target = random_scores(2, 4), torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]).double()
    plain, given = (
        lambda s, k=k: fenchel_young_loss(s, target, Subset(k, at_most=at_most), reduction="sum")
        for k in (2, torch.tensor(2.0, dtype=torch.float64))
    )
    close(given(scores), plain(scores))
    close(slope(given, scores), slope(plain, scores))


@every_class_loss
def test_label_smoothing(case, path):
    scores = random_scores(6, 4)
    index = torch.tensor([0, 1, 2, 3, 1, 0])
    target = F.one_hot(index, 4).double()
    smooth = 0.8 * target + 0.2 / 4
    close(case(scores, index, label_smoothing=0.2), case(scores, smooth))
    close(case(scores, target, label_smoothing=0.2), case(scores, smooth))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_label_smoothing_keeps_the_mass(k, path):
    scores = random_scores(2, 6)
    target = torch.zeros_like(scores)
    target[:, :k] = 1.0
    smooth = 0.9 * target + 0.1 * k / 6
    close(ksubset_loss(scores, target, k, label_smoothing=0.1), ksubset_loss(scores, smooth, k))


def test_label_smoothing_of_one_possible_class(path):
    """There is nothing to move the target to, so it stays."""
    scores = torch.tensor([[2.0, -math.inf, -math.inf]], dtype=torch.float64)
    target = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(ksubset_loss(scores, target, 1, label_smoothing=0.2)) == 0
    assert float(softmax_loss(scores, torch.tensor([0]), label_smoothing=0.2)) == 0


@every_loss
def test_half_precision(case, path):
    for dtype, rounding in ((torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        scores = random_scores(6, 9).to(dtype)
        target = case.target(scores)
        loss = case(scores, target, reduction="none")
        assert loss.dtype == dtype
        close(loss.double(), case.expected(scores, target), 2 * rounding)
        gradient = slope(lambda s, y=target: case(s, y, reduction="sum"), scores)
        assert gradient.dtype == dtype
        close(gradient.double(), case.probs(scores) - target.double(), 2 * rounding)


@every_class_loss
def test_many_rows_do_not_lose_precision(case, path):
    scores = random_scores(16, 5000, dtype=torch.float32)
    index = torch.arange(16)
    target = F.one_hot(index, 5000)
    close(case(scores, index, reduction="none"), case.expected(scores, target), 3e-6)
    close(
        slope(lambda s: case(s, index, reduction="sum"), scores), case.probs(scores) - target, 2e-6
    )


def test_softmax_loss_is_cross_entropy(path):
    scores = 3 * random_scores(7, 5, 2)
    index = random_scores(7, 5, 2, seed=1).argmax(1)
    index[0, 0] = -100
    weight = torch.rand(5, generator=torch.Generator().manual_seed(0)).double()
    for options in ({}, {"weight": weight}, {"reduction": "none"}, {"reduction": "sum"}):
        close(softmax_loss(scores, index, **options), F.cross_entropy(scores, index, **options))
        close(
            slope(lambda s, o=options: softmax_loss(s, index, **o), scores),
            slope(lambda s, o=options: F.cross_entropy(s, index, **o), scores),
        )
    probs = torch.softmax(random_scores(7, 5, 2, seed=2), 1)
    entropy = -(probs * probs.log()).sum(1).mean()
    close(softmax_loss(scores, probs) + entropy, F.cross_entropy(scores, probs))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "weighed"])
def test_gradient_of_softmax_loss_is_that_of_cross_entropy(weighed, smoothing, reduction, path):
    """Also where the values differ by Omega(y): for soft targets and label smoothing."""
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 0.3], dtype=torch.float64) if weighed else None
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    for shape in ((5,), (4, 5), (3, 5, 2)):
        scores = 2 * random_scores(*shape)
        dim = min(len(shape) - 1, 1)
        index = random_scores(*shape, seed=1).argmax(dim)
        if len(shape) > 1:
            index.view(-1)[0] = -100
        probs = torch.softmax(random_scores(*shape, seed=2), dim)
        others = (1.5 * probs, 0 * probs) if smoothing == 0 else ()  # smoothing keeps the mass
        for target in (index, probs, *others):
            close(
                slope(lambda s, y=target: softmax_loss(s, y, **options), scores),
                slope(lambda s, y=target: F.cross_entropy(s, y, **options), scores),
            )


@every_class_loss
def test_rows_of_zeros_cost_nothing(case, path):
    scores = random_scores(3, 5)
    target = case.soft(scores)
    target[1] = 0.0
    assert case(scores, target, reduction="none")[1] == 0
    assert not slope(lambda s: case(s, target), scores)[1].any()


@pytest.mark.parametrize(
    "omega", [Fused(0.1), Oscar(0.1), Bounded(0.6), Bounded(0.6, Shannon())], ids=repr
)
def test_offset_of_other_regularisers(omega, path):
    base = torch.randint(-64, 64, (30, 8)).double() / 16
    for target in (torch.full((30, 8), 1 / 8), torch.arange(30) % 8):
        want = fenchel_young_loss(base, target, omega, reduction="none")
        moved = (base + 1e6).float()
        close(fenchel_young_loss(moved, target, omega, reduction="none"), want, 2e-6)


@pytest.mark.parametrize("kind", [Tsallis, Norm], ids=["entmax", "normmax"])
@pytest.mark.parametrize("soft", [False, True], ids=["index", "soft"])
def test_alpha_learns(kind, soft, path):
    scores = random_scores(5, 6)
    target = torch.softmax(random_scores(5, 6, seed=1), -1) if soft else torch.arange(5)

    def loss(alpha):
        return fenchel_young_loss(scores, target, kind(alpha))

    for value in (1.05, 1.3, 1.5, 2.0, 2.5):
        alpha = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(alpha), alpha)
        step = 1e-5
        difference = (loss(value + step) - loss(value - step)) / (2 * step)
        close(gradient, difference, 1e-7)


def test_alpha_at_one_learns(path):
    scores, target = random_scores(5, 6), torch.arange(5)
    alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    loss = entmax_loss(scores, target, alpha)
    close(loss, softmax_loss(scores, target))
    (gradient,) = torch.autograd.grad(loss, alpha)
    step = 1e-3
    difference = (entmax_loss(scores, target, 1 + step) - entmax_loss(scores, target, 1 - step)) / (
        2 * step
    )
    close(gradient, difference, 1e-5)


def test_one_alpha_per_row(path):
    scores, target = random_scores(4, 6), torch.arange(4)
    alpha = torch.tensor([[1.2], [1.5], [2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    losses = entmax_loss(scores, target, alpha, reduction="none")
    assert losses.shape == (4,)
    each = [entmax_loss(scores[i], target[i], alpha[i, 0]) for i in range(4)]
    close(losses, torch.stack(each))
    (gradient,) = torch.autograd.grad(losses.sum(), alpha)
    close(gradient, torch.autograd.grad(sum(each), alpha)[0])
    assert gradient[:3].abs().min() > 1e-3
    images = random_scores(4, 6, 3)
    wide = entmax_loss(images, torch.zeros(4, 3).long(), alpha.unsqueeze(-1), reduction="none")
    close(wide[1, 2], entmax_loss(images[1, :, 2], torch.tensor(0), 1.5))


def test_gradient_to_soft_targets(path):
    scores = random_scores(3, 5)
    probs = torch.softmax(random_scores(3, 5, seed=1), -1).requires_grad_()
    for omega in (Gini(), Tsallis(1.5), Norm(2.0)):
        assert torch.autograd.gradcheck(
            lambda y, o=omega: fenchel_young_loss(scores, y, o, reduction="sum"), probs
        )


def test_module(path):
    scores, target = random_scores(4, 6), torch.tensor([0, -100, 3, 5])
    weight = torch.rand(6).double()
    module = FenchelYoungLoss(Tsallis(1.5), weight=weight, reduction="sum", label_smoothing=0.1)
    want = entmax_loss(scores, target, weight=weight, reduction="sum", label_smoothing=0.1)
    assert torch.equal(module(scores, target), want)
    assert "alpha=1.5" in repr(module)
    learnt = FenchelYoungLoss(Tsallis(torch.nn.Parameter(torch.tensor(1.5))))
    assert [name for name, _ in learnt.named_parameters()] == ["alpha"]
    learnt = learnt.double()
    learnt(scores, target).backward()
    assert learnt.alpha.grad.abs() > 1e-3
    assert learnt.alpha.dtype == torch.float64
