"""Rows long enough for shortcuts: candidates, saved supports, blocks, threads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fewfold as ff

from .cases import random_scores

pytestmark = pytest.mark.usefixtures("path")

# Around the lengths at which the code changes its way of working.
LENGTHS = {"native": [1023, 1024, 2048, 2049, 33_000], "torch": [1023, 1024, 2049]}


def rows(kind: str, n: int) -> Tensor:
    """Three rows of scores with a support that is small, large, or everything."""
    scores = random_scores(3, n, seed=n)
    return {
        "normal": scores,
        "narrow": 1e-3 * scores,
        "constant": torch.zeros(3, n, dtype=torch.float64),
        "half": torch.where(scores > 0, 1e-4 * scores, scores - 50),
        "holes": scores.masked_fill(random_scores(3, n, seed=n + 1) > 0, -torch.inf),
        "mixed": torch.stack([scores[0], 1e-4 * scores[1], torch.full((n,), -torch.inf).double()]),
    }[kind]


KINDS = ["normal", "narrow", "constant", "half", "holes", "mixed"]


def entmax_pull(probs: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """J g with J = Diag(s) - s s^T / sum(s) and s = p^(2 - alpha) on the support."""
    s = torch.where(probs > 0, probs.clamp(min=1e-300) ** (2 - alpha), 0.0)
    mean = (s * grad).sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp(min=1e-300)
    return s * (grad - mean)


def normmax_pull(probs: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """J g with J = c (I - p 1^T) Diag(p^(2 - alpha)) (I - 1 p^T)."""
    b = torch.where(probs > 0, probs.clamp(min=1e-300) ** (2 - alpha), 0.0)
    norm = (probs**alpha).sum(-1, keepdim=True) ** ((alpha - 1) / alpha)
    w = b * (grad - (probs * grad).sum(-1, keepdim=True))
    return norm / (alpha - 1) * (w - probs * w.sum(-1, keepdim=True))


def ksubset_pull(probs: Tensor, grad: Tensor, _: float) -> Tensor:
    """Less the mean, over the entries strictly between 0 and 1."""
    free = ((probs > 0) & (probs < 1)).double()
    mean = (free * grad).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    return free * (grad - mean)


MAPS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, float], Tensor], float]]
MAPS = {
    "sparsemax": (ff.sparsemax, entmax_pull, 2.0),
    "entmax 1.25": (lambda z: ff.entmax(z, 1.25), entmax_pull, 1.25),
    "entmax 1.5": (lambda z: ff.entmax(z, 1.5), entmax_pull, 1.5),
    "entmax 1.8": (lambda z: ff.entmax(z, 1.8), entmax_pull, 1.8),
    "softmax": (ff.softmax, entmax_pull, 1.0),
    "normmax 1.5": (lambda z: ff.normmax(z, 1.5), normmax_pull, 1.5),
    "normmax 2": (lambda z: ff.normmax(z, 2.0), normmax_pull, 2.0),
    "ksubset 3": (lambda z: ff.ksubset(z, 3), ksubset_pull, 0.0),
}
every_map = pytest.mark.parametrize("name", MAPS)


@every_map
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_long_rows(name, kind, path):
    function, pull, alpha = MAPS[name]
    for n in LENGTHS[path]:
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            scores = rows(kind, n).to(dtype).requires_grad_()
            grad = random_scores(3, n, seed=5).to(dtype)
            probs = function(scores)
            (got,) = torch.autograd.grad(probs, scores, grad)
            # From the answer itself: that it is right is checked elsewhere.
            expected = pull(probs.detach().double(), grad.double(), alpha)
            torch.testing.assert_close(
                got.double(), expected, atol=tolerance, rtol=tolerance, msg=where(n, dtype)
            )


@every_map
def test_long_rows_in_any_layout(name):
    function = MAPS[name][0]
    n = 3000
    base = random_scores(4, n, dtype=torch.float32)
    expected = function(base)
    layouts = {
        "columns": base.t().contiguous().t(),
        "every second": torch.stack([base, -base], -1)[..., 0],
        "offset": torch.cat([base[:, :1], base], -1)[:, 1:],
    }
    for layout, view in layouts.items():
        torch.testing.assert_close(function(view), expected, atol=1e-6, rtol=0, msg=layout)
    # One row read many times through a stride of zero.
    torch.testing.assert_close(
        function(base[:1].expand(4, n)), expected[:1].expand(4, n), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("name", ["sparsemax", "entmax 1.25", "entmax 1.5", "ksubset 3"])
@pytest.mark.parametrize("shape", [(1, 40_000), (7, 5_000), (2_000, 9)], ids=str)
def test_the_number_of_threads_changes_nothing(name, shape):
    function = MAPS[name][0]
    weights = random_scores(*shape, seed=1, dtype=torch.float32)

    def both() -> tuple[Tensor, Tensor]:
        scores = random_scores(*shape, dtype=torch.float32).requires_grad_()
        probs = function(scores)
        return probs.detach(), torch.autograd.grad((probs * weights).sum(), scores)[0]

    alone = both()
    torch.set_num_threads(2)
    try:
        together = both()
    finally:
        torch.set_num_threads(1)
    for one, two in zip(alone, together, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("omega", [ff.Gini(), ff.Tsallis(1.5), ff.Tsallis(1.25), ff.Norm(2.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_support_of_long_rows(omega, kind, path):
    for n in (1025, 2049, 70_000) if path == "native" else (1025, 2049):
        scores = rows(kind, n).float().requires_grad_()
        support = ff.map_support(scores, omega)
        dense = omega.argmax(scores)
        torch.testing.assert_close(support.to_dense(n), dense, atol=1e-6, rtol=1e-5)
        table = random_scores(n, seed=2, dtype=torch.float32)
        (got,) = torch.autograd.grad(support.reduce(table[support.atoms]).sum(), scores)
        (want,) = torch.autograd.grad((dense * table).sum(), scores)
        torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("function", [ff.entmax, ff.normmax])
def test_long_rows_learn_alpha(function):
    scores = random_scores(3, 3000)
    weights = random_scores(3, 3000, seed=1)
    for value in (1.3, 1.5, 1.9, 2.0, 2.6):
        alpha = torch.full((3, 1), value, dtype=torch.float64, requires_grad=True)
        (got,) = torch.autograd.grad((function(scores, alpha) * weights).sum(), alpha)
        step = 1e-5
        above, below = (
            (function(scores, value + h) * weights).sum(-1, keepdim=True) for h in (step, -step)
        )
        torch.testing.assert_close(got, (above - below) / (2 * step), atol=1e-5, rtol=1e-4)


def where(n: int, dtype: torch.dtype) -> Callable[[str], str]:
    return lambda text: f"n={n}, {dtype}: {text}"
