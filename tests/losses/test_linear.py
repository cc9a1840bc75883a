"""The fused output layer against separate layer and loss."""

import pytest
import torch
import torch.nn.functional as F

from fewfold.losses import entmax_loss, linear_entmax_loss
from fewfold.losses.linear import candidates
from fewfold.losses.linear.candidates import Layer, find_candidates
from fewfold.maps import entmax

from .cases import close, random_scores

CLASSES, FEATURES = 3000, 8
INDEX = torch.tensor([0, 3])

FEW, BOTH, MANY, FLAT = (3.0, 5.0), (3.0, 0.01), (0.01, 0.02), (0.0, 0.0)
"""Scales of the two halves of a batch: few candidates in all rows, in some, in none."""

SETTINGS = [
    *((FEW, alpha) for alpha in (1.25, 1.5, 2.0, 3.0)),
    *((BOTH, alpha) for alpha in (1.25, 1.5, 2.0, 3.0)),
    *((MANY, alpha) for alpha in (1.05, 1.25, 1.5, 2.0, 3.0)),
    *((FLAT, alpha) for alpha in (1.5, 2.0, 3.0)),
    *((scales, 1.0) for scales in (FEW, MANY)),
]


def problem(scales: tuple[float, float], dtype=torch.float64, rows: int = 20):
    """Hidden vectors, table, bias and class indices, one of them ignored."""
    half = rows // 2
    hidden = random_scores(rows, FEATURES, dtype=dtype)
    hidden = torch.cat([hidden[:half] * scales[0], hidden[half:] * scales[1]])
    table = random_scores(CLASSES, FEATURES, seed=1, dtype=dtype)
    bias = random_scores(CLASSES, seed=2, dtype=dtype) * 0.1 * scales[1]
    target = torch.randint(CLASSES, (rows,), generator=torch.Generator().manual_seed(3))
    target[3] = -100
    return hidden, table, bias, target


def run(fused, hidden, table, bias, target, alpha, **options):
    """Loss and gradients with respect to hidden, table, bias and alpha."""
    leaves = [value.detach().clone().requires_grad_() for value in (hidden, table, bias)]
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.detach().clone().requires_grad_()
        leaves.append(alpha)
    if fused:
        loss = linear_entmax_loss(
            leaves[0], leaves[1], target, alpha, linear_bias=leaves[2], chunk_size=128, **options
        )
    else:
        scores = F.linear(*leaves[:3])
        loss = entmax_loss(scores, target, alpha, **options)
    return loss, torch.autograd.grad(loss.sum(), leaves)


@pytest.mark.parametrize(("scales", "alpha"), SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
def test_equals_two_steps(scales, alpha, dtype, path):
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    given = problem(scales, dtype)
    want, wanted = run(False, *given, alpha)
    for sparse in (False, True):
        loss, gradients = run(True, *given, alpha, sparse_grad=sparse)
        close(loss, want, tolerance)
        assert gradients[1].is_sparse == sparse
        for got, expected in zip(gradients, wanted, strict=True):
            close(got.to_dense(), expected, tolerance)


@pytest.mark.parametrize("scales", [FEW, BOTH, MANY])
@pytest.mark.parametrize("value", [1.0, 1.1, 1.4, 2.0])
def test_alpha_learns(scales, value, path):
    given = problem(scales)
    alpha = torch.tensor(value, dtype=torch.float64)
    want, wanted = run(False, *given, alpha)
    loss, gradients = run(True, *given, alpha)
    close(loss, want, 1e-10)
    for got, expected in zip(gradients, wanted, strict=True):
        close(got, expected, 1e-8)
    assert gradients[3].abs() > 1e-4


def test_few_many_and_both_kinds_of_rows_are_tested():
    for scales, crowded in ((FEW, 0), (BOTH, 10), (MANY, 20), (FLAT, 20)):
        hidden, table, bias, _ = problem(scales)
        found = find_candidates(hidden, Layer(table, bias), 1.5, 128)
        assert int(found.crowded.sum()) == crowded


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_candidates_contain_the_support(alpha, order):
    """However late the best classes come."""
    hidden = torch.ones(6, 1)
    table = 3 * random_scores(CLASSES, 1, dtype=torch.float32)
    if order != "random":
        table = table.sort(0, descending=order == "descending").values
    hidden *= torch.tensor([[0.5], [1.0], [2.0], [-1.0], [4.0], [1.5]])
    scores = hidden @ table.T
    found = find_candidates(hidden, Layer(table, None), alpha, 100)
    kept = torch.zeros(scores.shape, dtype=torch.bool)
    kept[found.row, found.column] = True
    close(found.score, scores[found.row, found.column], 1e-6)
    support = entmax(scores.double(), alpha) > 0
    assert not (support & ~kept & ~found.crowded.unsqueeze(1)).any()
    assert (kept.sum(1) <= 2 * support.sum(1) + 2).all()  # and hardly more
    assert (found.row.diff() >= 0).all()


@pytest.mark.parametrize("scales", [FEW, BOTH])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_options(scales, reduction, path):
    hidden, table, bias, target = problem(scales)
    weight = torch.rand(CLASSES, generator=torch.Generator().manual_seed(4)).double()
    for options in (
        {},
        {"weight": weight},
        {"label_smoothing": 0.1},
        {"weight": weight, "label_smoothing": 0.1},
        {"ignore_index": 7},
    ):
        index = torch.where(target == -100, options.get("ignore_index", -100), target)
        given = (hidden, table, bias, index, 1.5)
        want, wanted = run(False, *given, reduction=reduction, **options)
        loss, gradients = run(True, *given, reduction=reduction, **options)
        assert loss.shape == want.shape
        close(loss, want, 1e-10)
        for got, expected in zip(gradients, wanted, strict=True):
            close(got, expected, 1e-10)


def test_label_smoothing_with_learnt_alpha(path):
    given = problem(BOTH)
    alpha = torch.tensor(1.5, dtype=torch.float64)
    want, wanted = run(False, *given, alpha, label_smoothing=0.2)
    loss, gradients = run(True, *given, alpha, label_smoothing=0.2)
    close(loss, want, 1e-10)
    close(gradients[3], wanted[3], 1e-8)


@pytest.mark.parametrize("scales", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dropped_classes(scales, alpha, smoothing, path):
    hidden, table, bias, target = problem(scales)
    target = torch.where(target < 0, target, target // 2 * 2 + 1)
    bias[::2] = -torch.inf
    everything = torch.full_like(bias, -torch.inf)
    for given in (bias, everything):
        options = {"label_smoothing": smoothing, "reduction": "none"}
        want, wanted = run(False, hidden, table, given, target, alpha, **options)
        loss, gradients = run(True, hidden, table, given, target, alpha, **options)
        close(loss, want, 1e-10)
        for got, expected in zip(gradients, wanted, strict=True):
            close(got, expected, 1e-10)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_classes_from_which_the_guess_is_made_may_be_dropped(alpha, monkeypatch, path):
    monkeypatch.setattr("fewfold.losses.linear.dense_rows._SAMPLE", CLASSES // 4)
    hidden, table, bias, target = problem(MANY)
    target[:] = 1
    bias[::4] = -torch.inf
    want, _ = run(False, hidden, table, bias, target, alpha)
    close(run(True, hidden, table, bias, target, alpha)[0], want, 1e-10)


def test_one_alpha_per_row(path):
    hidden, table, _, target = problem(FEW)
    alpha = torch.linspace(1.2, 2.0, 20, dtype=torch.float64).view(4, 5, 1)
    got = linear_entmax_loss(
        hidden.view(4, 5, -1), table, target.view(4, 5), alpha, reduction="none"
    )
    want = entmax_loss(hidden @ table.T, target, alpha.view(20, 1), reduction="none")
    close(got, want.view(4, 5))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_batch_without_rows_gives_gradients_of_zero(sparse, path):
    """Rather than none at all, which a distributed optimiser waits for."""
    hidden, table, bias, _ = problem(FEW)
    alpha = torch.tensor(1.5, dtype=torch.float64)
    for rows in (hidden[:0], hidden):
        ignored = torch.full((len(rows),), -100)
        loss, gradients = run(True, rows, table, bias, ignored, alpha, sparse_grad=sparse)
        assert float(loss.detach()) == 0.0
        assert gradients[1].is_sparse == sparse
        assert all(not gradient.to_dense().any() for gradient in gradients)


def test_no_features(path):
    hidden, table = torch.zeros(2, 0), torch.zeros(7, 0)
    close(linear_entmax_loss(hidden, table, INDEX), entmax_loss(torch.zeros(2, 7), INDEX))


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_autocast(alpha):
    """Nothing is narrowed, and hidden vectors that have been are taken."""
    hidden, table, bias, target = problem(MANY, torch.float32)
    want = linear_entmax_loss(hidden, table, target, alpha, label_smoothing=0.1)
    narrow = hidden.bfloat16()
    rounded = linear_entmax_loss(narrow.float(), table, target, alpha, linear_bias=bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(
            linear_entmax_loss(hidden, table, target, alpha, label_smoothing=0.1), want
        )
        got = linear_entmax_loss(narrow, table, target, alpha, linear_bias=bias)
    assert torch.equal(got, rounded)


def test_autocast_of_scores_that_are_held():
    """Probabilities as a target take the other path: nothing is narrowed there either."""
    hidden, table, _, target = problem(FEW, torch.float32)
    probs = F.one_hot(target.clamp(min=0), CLASSES).float()
    want = linear_entmax_loss(hidden, table, probs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_entmax_loss(hidden, table, probs), want)
        narrow = linear_entmax_loss(hidden.bfloat16(), table.bfloat16(), probs)
        indexed = linear_entmax_loss(hidden.bfloat16(), table.bfloat16(), target)
    assert narrow.dtype == indexed.dtype == torch.float32
    wide = linear_entmax_loss(hidden.bfloat16().float(), table.bfloat16().float(), probs)
    close(narrow, wide, 1e-6)
    assert linear_entmax_loss(hidden.bfloat16(), table.bfloat16(), probs).dtype == torch.bfloat16


def test_any_batch_shape(path):
    hidden, table, _, target = problem(FEW)
    want = entmax_loss(hidden @ table.T, target, reduction="none")
    folded = linear_entmax_loss(
        hidden.view(4, 5, FEATURES), table, target.view(4, 5), reduction="none"
    )
    close(folded, want.view(4, 5))
    close(linear_entmax_loss(hidden[0], table, target[0], reduction="none"), want[0])
    probs = F.one_hot(target.clamp(min=0), CLASSES).double()
    soft = linear_entmax_loss(hidden.view(4, 5, -1), table, probs.view(4, 5, -1))
    close(soft, entmax_loss(hidden @ table.T, probs))


def test_many_rows_go_in_blocks(monkeypatch, path):
    monkeypatch.setattr(candidates, "BLOCK", 7)
    monkeypatch.setattr("fewfold.losses.linear.dense_rows.BLOCK", 7)
    for scales in (FEW, BOTH, MANY):
        given = problem(scales)
        want, wanted = run(False, *given, 1.5)
        loss, gradients = run(True, *given, 1.5)
        close(loss, want, 1e-10)
        for got, expected in zip(gradients, wanted, strict=True):
            close(got, expected, 1e-10)


def test_sparse_gradient_has_the_rows_in_use(path):
    hidden, table, bias, target = problem(FEW)
    _, gradients = run(True, hidden, table, bias, target, 2.0, sparse_grad=True)
    assert gradients[1].is_coalesced()
    rows = gradients[1].indices()[0]
    kept = target != -100
    used = (entmax(hidden @ table.T + bias, 2.0)[kept] > 0).any(0)
    used[target[kept]] = True
    assert set(used.nonzero()[:, 0].tolist()) <= set(rows.tolist())
    assert len(rows) < 1.5 * used.sum()
    leaf = table.clone().requires_grad_()
    linear_entmax_loss(hidden, leaf, target, 2.0, sparse_grad=True).backward()
    assert leaf.grad.is_sparse
    torch.optim.SparseAdam([leaf], lr=0.1).step()
    assert not torch.equal(leaf.detach(), table)


@pytest.mark.parametrize("scales", [FEW, BOTH, MANY], ids=["few", "both", "many"])
def test_double_backward(scales, path):
    hidden, table, bias, target = problem(scales)
    answers = []
    for fused in (True, False):
        leaves = [value.detach().clone().requires_grad_() for value in (hidden, table, bias)]
        if fused:
            loss = linear_entmax_loss(leaves[0], leaves[1], target, linear_bias=leaves[2])
        else:
            loss = entmax_loss(F.linear(*leaves), target)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        size = sum(value.square().sum() for value in first)
        answers.append(torch.autograd.grad(size, leaves))
    for got, want in zip(*answers, strict=True):
        close(got, want, 1e-9)


def test_nan_and_nothing_counted(path):
    hidden, table, _, target = problem(FEW)
    hidden[5, 0] = torch.nan
    losses = linear_entmax_loss(hidden, table, target, reduction="none")
    assert losses.isnan().nonzero().flatten().tolist() == [5]
    target[:] = -100
    leaf = hidden.requires_grad_()
    loss = linear_entmax_loss(leaf, table, target)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not leaf.grad.any()
    table[17] = torch.nan  # a class that is NaN makes every row NaN, as it does in two steps
    target[:] = 3
    hidden = torch.ones(20, FEATURES, dtype=torch.float64)
    assert linear_entmax_loss(hidden, table, target, reduction="none").isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", [FEW, BOTH])
def test_half_precision(dtype, scales, path):
    hidden, table, bias, target = (
        value.to(dtype) if value.is_floating_point() else value for value in problem(scales)
    )
    loss, gradients = run(True, hidden, table, bias, target, 1.5)
    assert loss.dtype == dtype
    assert [gradient.dtype for gradient in gradients] == [dtype] * 3
    want, wanted = run(False, hidden.float(), table.float(), bias.float(), target, 1.5)
    rounding = 2 * torch.finfo(dtype).eps
    close(loss.float(), want, rounding)
    for got, expected in zip(gradients, wanted, strict=True):
        close(got.float(), expected, rounding)


def test_scores_are_never_all_held():
    """Peak memory of one forward and backward, in units of the scores."""
    rows, classes = 64, 65536
    hidden = random_scores(rows, 16, dtype=torch.float32).requires_grad_()
    table = random_scores(classes, 16, seed=1, dtype=torch.float32).requires_grad_()
    target = torch.arange(rows)
    for scale in (1.0, 0.001):  # few candidates, and crowded
        with torch.profiler.profile(profile_memory=True) as profile:
            loss = linear_entmax_loss(hidden * scale, table, target, sparse_grad=scale == 1.0)
            loss.backward()
        live = peak = 0
        for event in sorted(profile.events(), key=lambda event: event.time_range.start):
            if event.name == "[memory]":
                live += event.cpu_memory_usage
                peak = max(peak, live)
        allowed = table.numel() * 4 * (scale != 1.0)  # the dense gradient itself
        assert peak - allowed < rows * classes * 4 / 2, (scale, peak)
        assert peak > 0
        hidden.grad = table.grad = None


def test_label_smoothing_of_a_single_class_changes_nothing(path):
    hidden, table = random_scores(3, 2), random_scores(1, 2, seed=1)
    bias, index = torch.tensor([0.5], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    loss = linear_entmax_loss(hidden, table, index, linear_bias=bias, label_smoothing=0.3)
    close(loss, torch.zeros_like(loss))
