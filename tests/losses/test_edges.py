"""Defaults, argument limits, and agreement of implementations."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fewfold as ff
from fewfold import _native
from fewfold.losses import (
    FenchelYoungLoss,
    entmax_loss,
    epsilon_perplexity,
    fenchel_young_loss,
    jensen_shannon,
    ksubset_loss,
    linear_entmax_loss,
    normmax_loss,
    optimal_epsilon,
    sample,
    sample_support,
    softmax_loss,
    sparsemax_loss,
    sparsemax_score,
)
from fewfold.losses.linear import candidates
from fewfold.losses.linear.candidates import Layer, find_candidates
from fewfold.losses.sampled_scores import item_vectors, log_sum_picked, picked_scores
from fewfold.losses.targets import Reduction
from fewfold.maps import Gini, Shannon, Subset, Tsallis
from fewfold.support import Support

from .cases import close, random_scores

SCORES = torch.tensor([[0.5, 0.1, -0.2], [0.0, 2.0, 0.3], [0.1, 0.2, 0.4]])
INDEX = torch.tensor([0, 2, 1])
MEMBER = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
SAMPLED = {
    "samples": 200,
    "shared": False,
    "remove_hits": False,
    "ignore_index": -100,
    "reduction": "mean",
    "generator": None,
}


@pytest.mark.parametrize(
    ("function", "defaults"),
    [
        (fenchel_young_loss, {"omega": Gini(), **MEMBER, "cost": None}),
        (FenchelYoungLoss, {"omega": Gini(), **MEMBER, "cost": None}),
        (softmax_loss, MEMBER),
        (sparsemax_loss, MEMBER),
        (entmax_loss, {"alpha": 1.5, **MEMBER}),
        (normmax_loss, {"alpha": 2.0, **MEMBER}),
        (
            ksubset_loss,
            {"at_most": False, "weight": None, "reduction": "mean", "label_smoothing": 0.0},
        ),
        (
            linear_entmax_loss,
            {
                "alpha": 1.5,
                "linear_bias": None,
                **MEMBER,
                "sparse_grad": False,
                "chunk_size": None,
            },
        ),
        (ff.sampled_softmax_loss, SAMPLED),
        (ff.noise_contrastive_loss, SAMPLED),
        (epsilon_perplexity, {"epsilon": 1e-6, "ignore_index": -100}),
        (sparsemax_score, {"ignore_index": -100, "reduction": "mean"}),
        (jensen_shannon, {"ignore_index": -100, "reduction": "mean"}),
        (
            sample,
            {"omega": Tsallis(1.5), "dim": -1, "samples": 1, "mask": None, "generator": None},
        ),
        (sample_support, {"samples": 1, "generator": None}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_defaults(function, defaults):
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    assert found == defaults


# The surface of a loss.


def test_label_smoothing_goes_from_nothing_to_uniform():
    for amount in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="label_smoothing must be between 0 and 1"):
            softmax_loss(SCORES, INDEX, label_smoothing=amount)
    uniform = torch.full_like(SCORES, 1 / 3)
    close(softmax_loss(SCORES, INDEX, label_smoothing=1.0), softmax_loss(SCORES, uniform), 1e-6)


def test_the_module_passes_on_what_it_was_given():
    weight = torch.tensor([1.0, 2.0, 0.5])
    options = {"weight": weight, "ignore_index": 1, "reduction": "sum", "label_smoothing": 0.25}
    module = FenchelYoungLoss(Shannon(), **options)
    want = fenchel_young_loss(SCORES, INDEX, Shannon(), **options)
    assert torch.equal(module(SCORES, INDEX), want)
    assert set(dict(module.named_buffers())) == {"weight"}
    assert module.extra_repr() == "Shannon(), reduction='sum'"
    with pytest.raises(ValueError, match="label_smoothing"):
        FenchelYoungLoss(label_smoothing=2.0)


def test_a_cost_is_a_buffer_a_parameter_or_a_number():
    structure = ff.SparseMAP(ff.structures.Sequence(torch.zeros(2, 2)))
    table = torch.ones(3, 2)
    assert "cost" in dict(FenchelYoungLoss(structure, cost=table).named_buffers())
    learnt = FenchelYoungLoss(structure, cost=nn.Parameter(table))
    assert "cost" in dict(learnt.named_parameters())
    assert "cost" not in dict(learnt.named_buffers())
    assert FenchelYoungLoss(structure, cost=2.0).cost == 2.0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"weight": torch.ones(2)}, ValueError, "apply to classes"),
        ({"ignore_index": -1}, ValueError, "apply to classes"),
        ({"label_smoothing": 0.1}, ValueError, "apply to classes"),
        ({"cost": torch.ones(3, 3)}, ValueError, "cost must broadcast to the shape"),
        ({"cost": "1"}, TypeError, "cost must be a number or a tensor, got str"),
        ({"reduction": "max"}, ValueError, "reduction must be"),
    ],
)
def test_options_of_structures(options, error, words):
    structure = ff.SparseMAP(ff.structures.Sequence(torch.zeros(2, 2)))
    scores, target = torch.zeros(3, 2), torch.eye(2)[[0, 1, 0]]
    with pytest.raises(error, match=words):
        fenchel_young_loss(scores, target, structure, **options)
    for cost in (1, 0.5, torch.ones(2), torch.ones(())):
        assert fenchel_young_loss(scores, target, structure, cost=cost) > 0
    for bad in (target[:2], [[0, 1]] * 3):
        with pytest.raises(ValueError, match="structures of the shape of the scores"):
            fenchel_young_loss(scores, bad, structure)
    with pytest.raises(ValueError, match="cost needs an omega over structures"):
        fenchel_young_loss(SCORES, INDEX, cost=1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_structures_in_half_precision_are_solved_in_single(dtype):
    structure = ff.SparseMAP(ff.structures.Sequence(torch.zeros(2, 2)))
    scores, target = random_scores(4, 3, 2).to(dtype), torch.eye(2)[[0, 1, 0]].expand(4, 3, 2)
    got = fenchel_young_loss(scores, target, structure, reduction="none")
    want = fenchel_young_loss(scores.float(), target, structure, reduction="none")
    assert got.dtype == dtype
    assert torch.equal(got, want.to(dtype))
    # and what is wider stays so
    scores, target = random_scores(4, 3, 2), target.double()
    double = ff.SparseMAP(ff.structures.Sequence(torch.zeros(2, 2, dtype=torch.float64)))
    want = double.conjugate(scores) + double.value(target) - (scores * target).sum((1, 2))
    close(fenchel_young_loss(scores, target, double, reduction="none"), want, 1e-12)


def test_one_class_is_a_point_of_some_subsets_only():
    for omega in (Subset(1), Subset(1, at_most=True), Subset(2, at_most=True)):
        one_hot = F.one_hot(INDEX, 3).float()
        close(
            fenchel_young_loss(SCORES, INDEX, omega),
            fenchel_young_loss(SCORES, one_hot, omega),
            1e-6,
        )
    for omega in (Subset(2), Subset(0.5, at_most=True)):
        with pytest.raises(ValueError, match="needs a target of the shape of the scores"):
            fenchel_young_loss(SCORES, INDEX, omega)


def test_rows_of_a_subset_may_miss_k_by_rounding():
    target = torch.tensor([[1.0, 1.0005, 0.0]])
    for at_most in (False, True):
        ksubset_loss(SCORES[:1], target, k=2, at_most=at_most)
        with pytest.raises(ValueError, match=r"got 2\.01 at position"):
            ksubset_loss(SCORES[:1], target + torch.tensor([0.0095, 0, 0]), 2, at_most=at_most)
    ksubset_loss(SCORES[:1], torch.tensor([[1.0, 0.0, 0.0]]), k=2, at_most=True)
    with pytest.raises(ValueError, match="got 1 at position"):
        ksubset_loss(SCORES[:1], torch.tensor([[1.0, 0.0, 0.0]]), k=2)
    ksubset_loss(SCORES[0], torch.tensor([1.0, 1.0, 0.0]), k=2)
    with pytest.raises(ValueError, match="shape of the scores"):
        ksubset_loss(SCORES[0], [1.0, 1.0, 0.0], k=2)


def test_what_a_mean_divides_by():
    losses, kept = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([True, False, True])
    weight = torch.tensor([2.0, 1.0, 0.0])
    assert Reduction("mean")(losses) == losses.mean()
    assert Reduction("mean", kept)(losses) == 3
    assert Reduction("mean", kept, weight, weight)(losses) == 1
    assert Reduction("mean", kept & False)(losses) == 0
    assert Reduction("mean")(losses[:0]) == 0
    assert Reduction("sum", kept, weight)(losses) == 2
    infinite = torch.tensor([1.0, 2.0, math.inf])
    assert Reduction("none", None, weight)(infinite).tolist() == [2, 2, 0]


# Measures of sparse language models.


def test_reductions_of_measures_are_checked():
    probs, target = torch.full((2, 4), 0.25), torch.tensor([0, 3])
    for measure in (sparsemax_score, jensen_shannon):
        with pytest.raises(ValueError, match="reduction must be"):
            measure(probs, target, reduction="average")
        each = measure(probs, target, reduction="none")
        close(measure(probs, target, reduction="sum"), each.sum(), 1e-6)
    for bad in (math.nan, -1e-9):
        with pytest.raises(ValueError, match="epsilon must be at least 0"):
            epsilon_perplexity(probs, target, bad)
    with pytest.raises(TypeError, match="class indices, got list"):
        sparsemax_score(probs, [0, 3])
    with pytest.raises(ValueError, match=r"target must have shape \(2,\)"):
        sparsemax_score(torch.zeros(2, 0), target)


def test_half_precision_is_measured_in_single():
    probs = torch.tensor([[0.7, 0.3]], dtype=torch.bfloat16)
    target = torch.tensor([1])
    for measure in (sparsemax_score, jensen_shannon, epsilon_perplexity):
        got = measure(probs, target)
        assert got.dtype == torch.bfloat16
        assert got == measure(probs.float(), target).bfloat16()


def test_arguments_of_the_best_epsilon():
    for bad in (0, 2.0, "4"):
        with pytest.raises(ValueError, match="classes must be a positive int"):
            optimal_epsilon(torch.tensor([0.5]), bad)
    for bad in (-1e-3, 1 + 1e-3, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            optimal_epsilon(torch.tensor([0.5, bad]), 4)
    assert optimal_epsilon(torch.tensor([1.0]), 1) == 0  # every epsilon is as good
    assert optimal_epsilon(torch.tensor([1 + 1e-7]).double(), 4) == 0
    assert optimal_epsilon(torch.tensor([0.25, 0.25]), 4) == 0
    assert optimal_epsilon(torch.tensor([0.0, 0.2]), 4) == math.inf
    # log(x) + log(1 - 3x / 4 ...): of one right and one wrong class out of 2, lam solves
    # (1/2 - 1) / (1 - lam/2) + (1/2) / (lam/2) = 0, so lam = 1 and nothing but uniform is best.
    assert optimal_epsilon(torch.tensor([1.0, 0.0]), 2) == math.inf
    # of 4 classes: (1/4 - 1) / (1 - 3 lam / 4) + 1 / lam = 0, lam = 2/3, epsilon = 2/3 / (4/3).
    assert optimal_epsilon(torch.tensor([1.0, 0.0]), 4) == pytest.approx(0.5, rel=1e-9)


# Draws.


def test_what_cannot_be_drawn_from():
    for bad in (-1, 1.5, "2"):
        with pytest.raises(ValueError, match="samples must be a whole number"):
            sample(SCORES, samples=bad)
    row, atoms = torch.tensor([0, 1, 1]), torch.tensor([5, 6, 7])
    for weights in ([1.0, math.inf, 0.0], [1.0, math.nan, 0.0], [1.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="in row 1; drop fully masked rows"):
            sample_support(Support(torch.tensor(weights), atoms, row, 2))
    with pytest.raises(ValueError, match="in row 2"):
        sample_support(Support(torch.tensor([1.0, 1.0, 1.0]), atoms, row, 3))


def test_atoms_without_weight_are_never_drawn_wherever_they_stand():
    weights = torch.tensor([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])
    support = Support(weights, torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    found = sample_support(support, 200, generator=torch.Generator().manual_seed(0))
    assert (found == torch.tensor([[1], [4]])).all()


# Losses from a few items.


def few(queries=None, items=None, positives=None, *, loss=ff.sampled_softmax_loss, **options):
    items = torch.eye(6) if items is None else items
    queries = torch.eye(6)[:2] if queries is None else queries
    positives = torch.tensor([0, 5]) if positives is None else positives
    options = {"samples": 4, "generator": torch.Generator().manual_seed(0), **options}
    return loss(queries, items, positives, ff.Uniform().fit(torch.eye(6)), **options)


def test_shapes_of_queries_and_positives():
    for bad in ([[0.0] * 6], torch.zeros(6), torch.zeros(2, 6, dtype=torch.int64)):
        with pytest.raises(ValueError, match="queries must be a floating-point tensor"):
            few(queries=bad)
    for bad in (torch.zeros(3, dtype=torch.int64), torch.zeros(2, 1, 1, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"positives must be \(2,\), \(2, m\)"):
            few(positives=bad)
    for bad in (0, -1, 2.0):
        with pytest.raises(ValueError, match="samples must be a positive int"):
            few(samples=bad)
    assert few(samples=1).isfinite()
    both = few(torch.eye(6).view(2, 3, 6), positives=torch.arange(6).view(2, 3), reduction="none")
    assert both.shape == (2, 3)
    pairs = few(torch.eye(6).view(2, 3, 6), positives=torch.zeros(2, 3, 4).long(), reduction="none")
    assert pairs.shape == (2, 3, 4)


@pytest.mark.parametrize("padding", [-100, -1, 0, 3, 5, 6, 9])
def test_any_id_may_stand_for_padding(padding):
    """Below all ids, among them, at either end, and above."""
    real = torch.tensor([1, 2, 4])
    padded = torch.tensor([1, padding, 2, 4, padding])
    got = few(positives=(padded, torch.tensor([0, 3, 5])), ignore_index=padding, reduction="none")
    want = few(positives=(real, torch.tensor([0, 2, 3])), reduction="none")
    close(got[padded != padding], want, 0)
    assert not got[padded == padding].any()
    close(
        few(positives=(padded, torch.tensor([0, 3, 5])), ignore_index=padding, reduction="sum"),
        want.sum(),
        1e-6,
    )
    with pytest.raises(ValueError, match="ids between 0 and 5, got 7 at 1"):
        few(positives=torch.tensor([padding, 7]), ignore_index=padding)


def test_positives_are_checked_wherever_the_number_of_items_is_known():
    table = nn.Embedding(6, 6)
    for items in (table, table.weight):
        for bad in (-1, 6):
            with pytest.raises(ValueError, match=f"ids between 0 and 5, got {bad} at 1"):
                few(items=items, positives=torch.tensor([0, bad]))
        few(items=items, positives=torch.tensor([0, 5]))
    few(items=lambda ids: table.weight[ids % 6], positives=torch.tensor([0, 5]))


@pytest.mark.parametrize("shared", [False, True])
def test_only_ones_own_positives_are_hits(shared):
    """Draws that are positives of another row stay."""
    queries, positives = 3 * torch.eye(6)[:3], (torch.tensor([5, 0, 1]), torch.tensor([0, 1, 1, 3]))
    options = {"samples": 50, "shared": shared, "reduction": "none"}
    got = few(queries, positives=positives, remove_hits=True, **options)
    ids, _ = (
        ff.Uniform()
        .fit(torch.eye(6))
        .sample(queries, 50, shared=shared, generator=torch.Generator().manual_seed(0))
    )
    ids = ids.expand(3, 50)
    own = ([5], [], [0, 1])
    want = []
    for row, mine in enumerate(own):
        keep = torch.tensor([i not in mine for i in ids[row].tolist()])
        rest = queries[row, ids[row][keep]].exp().sum() * 6
        for item in mine:
            score = queries[row, item]
            want.append(((score.exp() * 6 + rest) / 50).log() - score)
    close(got, torch.stack(want), 1e-5)
    none = (torch.empty(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    assert few(queries, positives=none, remove_hits=True, **options).shape == (0,)


def test_noise_contrastive_loss_by_its_formula():
    queries, positives = 2 * torch.eye(6)[:2], torch.tensor([0, 5])
    got = few(queries, positives=positives, loss=ff.noise_contrastive_loss, reduction="none")
    generator = torch.Generator().manual_seed(0)
    ids, _ = ff.Uniform().fit(torch.eye(6)).sample(queries, 4, generator=generator)
    shift = math.log(4 / 6)
    drawn = F.logsigmoid(shift - queries.gather(1, ids)).sum(1)
    close(got, -F.logsigmoid(queries.gather(1, positives[:, None])[:, 0] - shift) - drawn, 1e-6)


# Scores of a few items.

MORE = (torch.tensor([3, 5, 0]), torch.tensor([0, 2, 3]))


def picked(items, queries, ids, log_q=None):
    """Scores, or the log of their sum, and what a table gets as its gradient."""
    if log_q is None:
        return picked_scores(queries, items, ids, MORE)
    return log_sum_picked(queries, items, ids, log_q, MORE)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["leaf", "other dtype", "strided", "made", "constant"])
def test_any_table_is_scored_alike(kind, shared, summed, path):
    """Those the kernels do not take go the other way, with the same numbers."""
    dense = random_scores(6, 4)
    tables = {
        "leaf": lambda: dense.clone().requires_grad_(),
        "other dtype": lambda: dense.float().requires_grad_(),
        "strided": lambda: dense.T.contiguous().T.requires_grad_(),
        "made": lambda: dense.clone().requires_grad_() * 1.0,
        "constant": lambda: dense * 1.0,
    }
    items = tables[kind]()
    queries = random_scores(2, 4, seed=1).to(items.dtype).requires_grad_()
    ids = torch.tensor([5, 1, 2]) if shared else torch.tensor([[5, 1, 2], [0, 0, 4]])
    log_q = random_scores(*ids.shape, seed=2) if summed else None
    got = picked(items, queries, ids, log_q)
    scores = queries @ dense.to(items.dtype).T
    each = scores[:, ids] if shared else scores.gather(1, ids)
    want = each if log_q is None else (each - log_q.to(each)).logsumexp(1)
    tolerance = 1e-5 if kind == "other dtype" else 1e-12
    close(got[0], want, tolerance)
    close(got[1], scores[[0, 0, 1], MORE[0]], tolerance)
    grad = torch.autograd.grad(got[0].sum() + got[1].sum(), queries)[0]
    close(
        grad,
        torch.autograd.grad(want.sum() + scores[[0, 0, 1], MORE[0]].sum(), queries)[0],
        tolerance,
    )
    vectors = item_vectors(items, ids)
    if vectors.requires_grad:
        leaf = items if items.is_leaf else None
        if leaf is not None:
            assert torch.autograd.grad(vectors.sum(), leaf)[0].is_sparse


def test_a_table_in_another_precision_is_left_to_torch():
    queries, items = random_scores(2, 4), random_scores(6, 4).float()
    with pytest.raises(RuntimeError):
        picked_scores(queries, items, torch.tensor([[0], [1]]), MORE)


@pytest.mark.parametrize("anchored", [False, True])
def test_log_q_that_learns_gets_its_gradient(anchored, path):
    items, queries = random_scores(6, 4), random_scores(2, 4, seed=1)
    table = items
    if anchored:
        items = ff.AnchorEmbedding(6, 4, anchors=3, width=2, dtype=torch.float64)
        table = items.weight.detach()
    ids = torch.tensor([[5, 1, 2], [0, 0, 4]])
    log_q = torch.zeros(2, 3, dtype=torch.float64).requires_grad_()
    got = log_sum_picked(queries, items, ids, log_q, MORE)[0]
    want = ((queries @ table.T).gather(1, ids) - log_q).logsumexp(1)
    close(
        torch.autograd.grad(got.sum(), log_q)[0], torch.autograd.grad(want.sum(), log_q)[0], 1e-12
    )


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wanted", ["queries", "items", "weights", "none"])
@pytest.mark.parametrize("kind", ["table", "anchored", "anchored, dense gradient"])
def test_gradients_of_a_part_alone(kind, wanted, shared, summed, path):
    """What nobody asks the gradient of is left out, and the rest stays the same."""
    queries = random_scores(2, 4)
    if kind == "table":
        learnt = [random_scores(6, 4, seed=1)]
        items = learnt[0]
    else:
        items = ff.AnchorEmbedding(
            6, 4, anchors=3, width=2, dtype=torch.float64, sparse=kind == "anchored"
        )
        learnt = [items.anchors, items.transform]
    for value in learnt:
        value.requires_grad_(wanted == "items")
    learnt[-1].requires_grad_(wanted in ("items", "weights"))
    queries.requires_grad_(wanted == "queries")
    ids = torch.tensor([5, 1, 2]) if shared else torch.tensor([[5, 1, 2], [0, 0, 4]])
    log_q = random_scores(*ids.shape, seed=2) if summed else None
    got = picked(items, queries, ids, log_q)
    scores = queries @ (items if kind == "table" else items.weight).T
    each = scores[:, ids] if shared else scores.gather(1, ids)
    want = (each if log_q is None else (each - log_q).logsumexp(1)), scores[[0, 0, 1], MORE[0]]
    leaves = [value for value in (queries, *learnt) if value.requires_grad]
    for mine, other in zip(got, want, strict=True):
        close(mine, other, 1e-12)
        assert mine.requires_grad == bool(leaves)
    if leaves:
        pull = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) for x in got]
        for mine, other in zip(
            torch.autograd.grad(got, leaves, pull),
            torch.autograd.grad(want, leaves, pull),
            strict=True,
        ):
            close(mine.to_dense(), other.to_dense(), 1e-12)


@pytest.mark.native
@pytest.mark.parametrize(("bad", "more"), [(6, 0), (-1, 0), (0, 6), (0, -1)])
def test_kernels_refuse_items_that_do_not_exist(bad, more):
    queries, items = random_scores(2, 4), random_scores(6, 4)
    ids, rest = torch.tensor([[0, 1], [2, bad]]), (torch.tensor([1, more]), torch.tensor([0, 1, 2]))
    with pytest.raises(IndexError, match=r"item ids must be between 0 and 5, .*got (6|-1) at"):
        picked_scores(queries, items, ids, rest)
    anchored = ff.AnchorEmbedding(6, 4, anchors=3, width=2, dtype=torch.float64)
    words = f"between 0 and 5, got {bad if bad else more}"
    with pytest.raises(IndexError, match=words):
        picked_scores(queries, anchored, ids, rest)
    anchored.slots.fill_(3)
    with pytest.raises(ValueError, match="slots must be between 0 and 2"):
        picked_scores(queries, anchored, ids.clamp(0, 5), (rest[0].clamp(0, 5), rest[1]))


# The fused output layer.


def test_what_the_output_layer_needs():
    hidden, table, target = torch.zeros(2, 3), torch.zeros(5, 3), torch.tensor([0, 1])
    for bad in (table[0], table[:, :2], table[:0], table[None]):
        with pytest.raises(ValueError, match=r"linear_weight must have shape \(classes, 3\)"):
            linear_entmax_loss(hidden, bad, target)
    with pytest.raises(ValueError, match="sparse_grad=True needs class indices"):
        linear_entmax_loss(hidden, table, torch.zeros(2, 5), sparse_grad=True)
    for size in (-1, 0, 1.0):
        with pytest.raises(ValueError, match="chunk_size must be an int of at least 1"):
            linear_entmax_loss(hidden, table, target, chunk_size=size)
    with pytest.raises(ValueError, match="reduction must be"):
        linear_entmax_loss(hidden, table, target, reduction="max")
    with pytest.raises(ValueError, match="weight must have shape"):
        linear_entmax_loss(hidden, table, target, weight=torch.ones(4))


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 4, 7, None])
def test_the_output_layer_for_small_problems(alpha, learnt, chunk_size, path):
    hidden, table = random_scores(3, 4), random_scores(7, 4, seed=1)
    order = torch.tensor(alpha, dtype=torch.float64) if learnt else alpha
    got = linear_entmax_loss(hidden, table, INDEX, order, chunk_size=chunk_size, reduction="none")
    close(got, entmax_loss(hidden @ table.T, INDEX, order, reduction="none"), 1e-10)


def test_chunks_cover_every_class_once():
    layer = Layer(random_scores(300, 2), random_scores(300, seed=1))
    hidden = random_scores(3, 2, seed=2)
    want = hidden @ layer.weight.T + layer.bias
    for size, step in ((None, 300), (128, 128), (300, 300), (999, 300), (1, 1)):
        assert layer.step(3, size) == step
        parts = [(start, scores.clone()) for start, scores in layer.chunks(hidden, size)]
        assert [start for start, _ in parts] == list(range(0, 300, step))
        close(torch.cat([scores for _, scores in parts], 1), want, 1e-12)
    wide = Layer(torch.zeros(2**21, 1), None)
    assert [wide.step(rows, None) for rows in (0, 1, 2, 2**13)] == [2**20, 2**20, 2**19, 256]


@pytest.mark.parametrize("width", [64, 65, 128, 1])
def test_a_chunk_keeps_what_is_above_the_bound(width):
    scores = random_scores(3, width)
    scores[0, 0] = torch.nan
    bound = torch.tensor([0.5, -math.inf, math.inf], dtype=torch.float64)
    bound[0] = scores[0, -1] if width > 1 else 0.5  # what equals the bound is dropped
    row, column, score = candidates.filter_chunk(scores, bound, 1000)
    keep = ~(scores <= bound[:, None])
    want_row, want_column = keep.nonzero(as_tuple=True)
    assert row.tolist() == want_row.tolist()
    assert column.tolist() == (want_column + 1000).tolist()
    assert torch.equal(score.isnan(), scores[keep].isnan())
    close(score.nan_to_num(), scores[keep].nan_to_num(), 0)


@pytest.mark.parametrize("support", [1023, 1024, 1025])
def test_a_row_is_crowded_when_it_has_too_many_candidates(support):
    """At most one class in 64, or 1024 if that is more; equal scores are all in the support."""
    table = torch.full((3000, 1), -9.0, dtype=torch.float64)
    table[:support] = 1.0
    hidden = torch.ones(2, 1, dtype=torch.float64)
    with _native.disabled():
        found = find_candidates(hidden, Layer(table, None), 2.0, 512)
    assert found.crowded.tolist() == [support > 1024] * 2
    assert len(found.row) == (0 if support > 1024 else 2 * support)
