"""The package `entmax` as a peer: its tests on our functions, and comparisons on long rows."""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fewfold as ff

entmax = pytest.importorskip("entmax", reason="the package entmax is not installed")


def losses(omega: Callable[[], Any]) -> Callable[..., Any]:
    """A stand-in for the peer's loss classes, whose mean is over all rows."""

    def make(reduction: str = "elementwise_mean", ignore_index: int = -100, **_: Any) -> Any:
        ours = "mean" if reduction == "elementwise_mean" else reduction
        return functools.partial(
            ff.fenchel_young_loss, omega=omega(), reduction=ours, ignore_index=int(ignore_index)
        )

    return make


OURS = {
    "sparsemax": ff.sparsemax,
    "entmax15": lambda x, dim=-1: ff.entmax(x, 1.5, dim),
    "sparsemax_bisect": ff.sparsemax,
    "entmax_bisect": ff.entmax,
    "normmax_bisect": lambda x, alpha=2.0, dim=-1: ff.normmax(x, alpha, dim),
    "budget_bisect": lambda x, budget=2, dim=-1: ff.ksubset(x, budget, dim),
    "SparsemaxLoss": losses(ff.Gini),
    "SparsemaxBisectLoss": losses(ff.Gini),
    "Entmax15Loss": losses(lambda: ff.Tsallis(1.5)),
    "EntmaxBisectLoss": losses(lambda: ff.Tsallis(1.5)),
    "NormmaxBisectLoss": losses(lambda: ff.Norm(2.0)),
    "losses": [losses(ff.Gini), losses(lambda: ff.Tsallis(1.5)), losses(lambda: ff.Norm(2.0))],
    "funcs": [ff.sparsemax, ff.entmax],
}
SUITES = ("test_root_finding", "test_losses", "test_mask")


def calls(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments pytest would call a parametrised test with, ours in the place of theirs."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args[0], mark.args[1]
        chosen = {"Loss": OURS["losses"], "func": OURS["funcs"]}.get(names, values)
        axes.append([(names, value) for value in chosen])
    yield from (dict(one) for one in itertools.product(*axes))


def suite() -> Iterator[Any]:
    """Every test of the peer's suite that has functions of ours to run on."""
    for name in SUITES:
        module = importlib.import_module(f"entmax.{name}")
        for title, test in inspect.getmembers(module, inspect.isfunction):
            if title.startswith("test_"):
                yield pytest.param(module, test, id=f"{name}.{title}")


@pytest.mark.nightly  # the functions are compared with the package above
@pytest.mark.parametrize(("module", "test"), list(suite()))
def test_the_suite_of_entmax_passes_on_our_functions(module, test, monkeypatch):
    replaced = [name for name in OURS if hasattr(module, name)]
    for name in replaced:
        monkeypatch.setattr(module, name, OURS[name])
    assert replaced
    if test.__name__ == "test_budget_grad_multiple_k":  # calls normmax with numbers meant for k
        monkeypatch.setattr(module, "normmax_bisect", OURS["budget_bisect"])
    torch.manual_seed(0)
    for arguments in calls(test):
        test(**arguments)


LONG = {
    "sparsemax": (ff.sparsemax, lambda x: entmax.sparsemax(x, dim=-1)),
    "entmax 1.5": (lambda x: ff.entmax(x, 1.5), lambda x: entmax.entmax15(x, dim=-1)),
    "entmax 1.3": (lambda x: ff.entmax(x, 1.3), lambda x: entmax.entmax_bisect(x, 1.3, n_iter=60)),
    "normmax 2": (lambda x: ff.normmax(x, 2.0), lambda x: entmax.normmax_bisect(x, 2, n_iter=60)),
    "normmax 5": (lambda x: ff.normmax(x, 5.0), lambda x: entmax.normmax_bisect(x, 5, n_iter=60)),
    "ksubset 7": (lambda x: ff.ksubset(x, 7), lambda x: entmax.budget_bisect(x, 7, n_iter=60)),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("n", [300, 5_000, 50_257])
def test_long_rows_equal_those_of_entmax(name, n, path):
    """Normal scores and a vocabulary sorted by frequency, forward and backward."""
    ours, theirs = LONG[name]
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(4, n, generator=generator, dtype=torch.float64)
    scores[2:] -= torch.log(torch.arange(1, n + 1, dtype=torch.float64))
    pull = torch.randn(4, n, generator=generator, dtype=torch.float64)
    answers = []
    for function in (ours, theirs):
        leaf = scores.clone().requires_grad_()
        probs = function(leaf)
        answers.append((probs, torch.autograd.grad(probs, leaf, pull)[0]))
    for got, want in zip(*answers, strict=True):
        torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-6)
