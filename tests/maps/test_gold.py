"""Reference values in 50 digits (bisection, finite differences, two QP solvers)."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fewfold as ff

pytestmark = pytest.mark.usefixtures("path")

GOLD = json.loads((Path(__file__).parent / "gold.json").read_text())
TALK = GOLD["maps"]["talk"]["scores"]


def vector(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def named(name: str, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
    """The map called ``entmax_1.5``, ``normmax_2`` or ``budget_3``."""
    kind, number = name.split("_")
    function = {"entmax": ff.entmax, "normmax": ff.normmax, "budget": ff.ksubset}[kind]
    return function(scores, float(number) if parameter is None else parameter)


ROWS = [(row, name) for row in GOLD["maps"] for name in GOLD["maps"][row]["probs"]]


@pytest.mark.parametrize(("row", "name"), ROWS, ids=lambda text: text)
def test_maps(row, name):
    scores, expected = vector(GOLD["maps"][row]["scores"]), vector(GOLD["maps"][row]["probs"][name])
    torch.testing.assert_close(named(name, scores), expected, atol=1e-12, rtol=0)
    as_tensor = named(name, scores, vector([float(name.split("_")[1])])[0])
    torch.testing.assert_close(as_tensor, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(named(name, scores.float()), expected.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("factor", GOLD["scaled"])
def test_inverse_temperatures(factor):
    scores = float(factor) * vector(TALK)
    answers = {
        "softmax": ff.softmax(scores),
        "entmax15": ff.entmax(scores),
        "sparsemax": ff.sparsemax(scores),
        "normmax2": ff.normmax(scores),
        "normmax5": ff.normmax(scores, 5),
        "ksubset2": ff.ksubset(scores, 2),
    }
    assert answers.keys() == GOLD["scaled"][factor].keys()
    for name, probs in answers.items():
        expected = vector(GOLD["scaled"][factor][name])
        torch.testing.assert_close(probs, expected, atol=1e-12, rtol=0, msg=name)


@pytest.mark.parametrize(("table", "scale"), [("topk", 1.0), ("topk_fifth", 0.2)])
def test_topk_sparsemax_and_its_certificate(table, scale):
    scores = scale * vector(TALK)
    whole = ff.sparsemax(scores)
    for k, expected in GOLD[table].items():
        torch.testing.assert_close(
            ff.topk_sparsemax(scores, int(k)), vector(expected), atol=1e-12, rtol=0
        )
        answer = ff.maps.topk_sparsemax_certified(scores, int(k))
        torch.testing.assert_close(answer.probs, vector(expected), atol=1e-12, rtol=0)
        same = torch.allclose(vector(expected), whole, atol=1e-12, rtol=0)
        assert bool(answer.certified) == same


@pytest.mark.parametrize("row", range(len(GOLD["constrained"])))
@pytest.mark.parametrize("kind", ["sparsemax", "softmax"])
def test_constrained(row, kind):
    gold = GOLD["constrained"][row]
    function = {"sparsemax": ff.constrained_sparsemax, "softmax": ff.maps.constrained_softmax}[kind]
    scores = vector(gold["scores"]).requires_grad_()
    upper = vector(gold["upper"]).requires_grad_()
    probs = function(scores, upper)
    torch.testing.assert_close(probs, vector(gold[kind]["p"]), atol=1e-12, rtol=0)
    if "grad_z" in gold[kind]:
        slopes = torch.autograd.grad(probs, (scores, upper), vector(gold["weights"]))
        for slope, name in zip(slopes, ("grad_z", "grad_u"), strict=True):
            torch.testing.assert_close(
                slope, vector(gold[kind][name]), atol=1e-12, rtol=0, msg=name
            )


@pytest.mark.parametrize("strength", ["0.1", "0.5"])
@pytest.mark.parametrize("name", ["fusedmax", "oscarmax"])
def test_fusedmax_and_oscarmax(name, strength):
    """The scores have negative entries, where a plain prox then projection fails for oscarmax."""
    probs = getattr(ff, name)(vector(TALK), float(strength))
    torch.testing.assert_close(probs, vector(GOLD[name][strength]), atol=2e-9, rtol=0)


def test_at_most():
    for row in GOLD["at_most"]:
        probs = ff.ksubset(vector(row["scores"]), row["k"], at_most=True)
        torch.testing.assert_close(probs, vector(row["probs"]), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", [name for name in GOLD["jvp"] if name != "direction"])
def test_directional_derivatives(name):
    scores = vector(TALK).requires_grad_()
    direction = vector(GOLD["jvp"]["direction"])
    # The Jacobian of these maps is symmetric: backward must agree with the forward derivative.
    (slope,) = torch.autograd.grad(named(name, scores), scores, direction)
    torch.testing.assert_close(slope, vector(GOLD["jvp"][name]), atol=1e-10, rtol=0)


@pytest.mark.parametrize("alpha", GOLD["entmax_alpha"])
def test_entmax_learns_alpha(alpha):
    check_alpha(ff.entmax, TALK, float(alpha), GOLD["entmax_alpha"][alpha])


@pytest.mark.parametrize("alpha", GOLD["normmax_alpha"])
def test_normmax_learns_alpha(alpha):
    check_alpha(ff.normmax, TALK, float(alpha), GOLD["normmax_alpha"][alpha])


def test_entmax_between_the_easy_alphas():
    row = GOLD["entmax_1.33"]
    probs = ff.entmax(vector(row["scores"]), 1.33)
    torch.testing.assert_close(probs, vector(row["probs"]), atol=1e-12, rtol=0)
    check_alpha(ff.entmax, row["scores"], 1.33, row["alpha"])


def check_alpha(function, scores: list[float], alpha: float, expected: list[float]) -> None:
    learnt = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    probs = function(vector(scores), learnt)
    slopes = [torch.autograd.grad(p, learnt, retain_graph=True)[0] for p in probs]
    torch.testing.assert_close(torch.stack(slopes), vector(expected), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", GOLD["conjugates"])
def test_conjugates(name):
    kind, number = name.split("_")
    omega = {"entmax": ff.Tsallis, "normmax": ff.Norm, "ksubset": ff.Subset}[kind](float(number))
    expected = torch.tensor(GOLD["conjugates"][name], dtype=torch.float64)
    torch.testing.assert_close(omega.conjugate(vector(TALK)), expected, atol=1e-12, rtol=0)
    if name == "entmax_1":
        torch.testing.assert_close(ff.Shannon().conjugate(vector(TALK)), expected)
    if name == "entmax_2":
        torch.testing.assert_close(ff.Gini().conjugate(vector(TALK)), expected)
