"""Losses in compiled models: kernels, with the results of eager mode."""

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.losses import entmax_loss, linear_entmax_loss, normmax_loss, sparsemax_loss
from fewfold.losses.linear import linear_operator
from tests.graphs import compiled, gradients, same

from .cases import random_scores

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:Warning"),  # of the compiler, about itself
    pytest.mark.skipif(not _native.enabled(), reason="there are no kernels"),
]


def scores_of(*shape: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return (scale * random_scores(*shape, seed=seed, dtype=torch.float32)).requires_grad_()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "loss",
    [
        sparsemax_loss,
        lambda s, y, **more: entmax_loss(s, y, 1.3, **more),
        lambda s, y, **more: normmax_loss(s, y, 2.0, **more),
    ],
    ids=["sparsemax", "entmax 1.3", "normmax"],
)
def test_class_indices(loss, reduction):
    """Narrow and broad supports, the latter too large for the room between the two passes."""

    def function(scores: Tensor, target: Tensor) -> Tensor:
        return loss(scores, target, reduction=reduction)

    fast, graphs = compiled(function, dynamic=True)
    for rows, classes, scale in ((5, 3, 3.0), (4, 90, 3.0), (4, 90, 1e-3), (3, 3000, 1.0)):
        scores = scores_of(rows, classes, scale=scale, seed=classes)
        target = torch.arange(rows) % classes
        target[1] = -100
        same(gradients(fast, scores, target), gradients(function, scores, target))
        with torch.no_grad():
            same([fast(scores, target)], [function(scores, target)])
    assert graphs.operators == {"support_loss", "support_loss_backward"}
    assert graphs.nodes < 50


def test_rows_without_an_ordinary_answer():
    scores = scores_of(6, 5).detach()
    scores[0], scores[1, 2], scores[2], scores[3, 1] = -torch.inf, torch.inf, torch.nan, -torch.inf
    target = torch.tensor([0, 2, -100, 1, 4, -100])

    def function(given: Tensor) -> Tensor:
        return entmax_loss(given, target, 1.5, reduction="none")

    fast, _ = compiled(function)
    same(gradients(fast, scores.requires_grad_()), gradients(function, scores))
    none = torch.zeros(0, 5, requires_grad=True)
    nothing = torch.zeros(0, dtype=torch.long)
    fast, _ = compiled(sparsemax_loss)
    same(gradients(fast, none, nothing), gradients(sparsemax_loss, none, nothing))


@pytest.mark.parametrize("learns", ["hidden", "table", "bias", "alpha", "all"])
def test_a_linear_layer_with_its_loss(learns):
    given = {
        "hidden": random_scores(6, 4, dtype=torch.float32),
        "table": random_scores(40, 4, seed=1, dtype=torch.float32),
        "bias": random_scores(40, seed=2, dtype=torch.float32),
        "alpha": torch.tensor(1.6),
    }
    for name, one in given.items():
        one.requires_grad_(learns in (name, "all"))
    target = torch.tensor([1, -100, 3, 39, 0, 7])

    def function(hidden: Tensor, table: Tensor, bias: Tensor, alpha: Tensor) -> Tensor:
        more = {"linear_bias": bias, "label_smoothing": 0.1 if learns == "all" else 0.0}
        mean = linear_entmax_loss(hidden, table, target, alpha, **more)
        return mean * linear_entmax_loss(hidden, table, target, 1.5, reduction="sum")

    fast, graphs = compiled(function)
    same(gradients(fast, *given.values()), gradients(function, *given.values()), 1e-6)
    with torch.no_grad():
        same([fast(*given.values())], [function(*given.values())])
    assert graphs.operators == {"linear_entmax_loss", "linear_entmax_loss_backward"}


WAYS = {  # whether the scores are never held
    "none": True,
    "float16": True,
    "low alpha": True,
    "class weights": True,
    "probabilities": False,
    "alphas": False,
    "smoothed class weights": False,
}


@pytest.mark.parametrize("case", WAYS)
def test_every_way_of_a_linear_layer(case):
    dtype = torch.float16 if case == "float16" else torch.float32
    hidden = random_scores(5, 4).to(dtype).requires_grad_()
    table = random_scores(30, 4, seed=1).to(dtype).requires_grad_()
    target = torch.tensor([0, 1, -100, 3, 4])
    alpha = {"alphas": torch.full((5, 1), 1.5), "low alpha": torch.tensor(0.8)}.get(case, 1.5)
    soft = torch.nn.functional.one_hot(torch.arange(5), 30).float()
    more = {"reduction": "none"} if case == "none" else {}
    if case == "smoothed class weights":
        more["label_smoothing"] = 0.1
    factors = torch.linspace(0.0, 2.0, 30).requires_grad_() if "class weights" in case else None

    def function(given: Tensor, weight: Tensor, *rest: Tensor) -> Tensor:
        aim = soft if case == "probabilities" else target
        by_class = rest[0] if rest else None
        return linear_entmax_loss(given, weight, aim, alpha, weight=by_class, **more)

    fast, graphs = compiled(function)
    tolerance = 1e-2 if case == "float16" else 1e-6
    given = (hidden, table, *([] if factors is None else [factors]))
    same(gradients(fast, *given), gradients(function, *given), tolerance)
    assert ("linear_entmax_loss" in graphs.operators) == WAYS[case]


@pytest.mark.parametrize(("classes", "spread"), [(2000, 0.0), (2000, 0.3), (9000, 30.0)])
def test_candidates_of_a_compiled_graph(classes, spread, monkeypatch):
    """More candidates than there is room for; as many as fit; a row that is crowded."""
    hidden = random_scores(3, 4, dtype=torch.float32)
    hidden[2] *= classes == 2000  # of 9000 equal classes none is a candidate
    table = spread * random_scores(classes, 4, seed=1, dtype=torch.float32)
    target = torch.tensor([5, -100, 1999])
    stored = []

    def record(found, value):
        packed, scores = pack(found, value)
        stored.append((int(packed[0]), int(found.crowded.sum())))
        return packed, scores

    pack = linear_operator._pack
    monkeypatch.setattr(linear_operator, "_pack", record)

    def function(given: Tensor, weight: Tensor) -> Tensor:
        return linear_entmax_loss(given, weight, target, reduction="none")

    fast, _ = compiled(function)
    given = (hidden.requires_grad_(), table.requires_grad_())
    same(gradients(fast, *given), gradients(function, *given), 1e-6)
    assert stored == [{0.0: (0, 0), 0.3: (2, 0), 30.0: (2, 1)}[spread]]


def test_errors_come_at_run_time():
    hidden, table = scores_of(3, 4), scores_of(9, 4)
    fast, _ = compiled(linear_entmax_loss)
    with pytest.raises(ValueError, match="target must be between 0 and 8"):
        fast(hidden, table, torch.tensor([0, 1, 9]))


def test_a_second_derivative_is_refused():
    hidden, table, target = scores_of(3, 4), scores_of(9, 4), torch.arange(3)
    for function in (
        lambda h: linear_entmax_loss(h, table, target),
        lambda h: sparsemax_loss(h @ table.mT, target),
    ):
        torch._dynamo.reset()
        fast = torch.compile(function, fullgraph=True, backend="eager")
        (first,) = torch.autograd.grad(fast(hidden), hidden, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula"):
            torch.autograd.grad(first.square().sum(), hidden)
