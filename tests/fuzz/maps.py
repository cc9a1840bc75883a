"""Maps: probabilities, supports and gradients of rows of every length and character."""

import numpy as np
import torch
from torch import Tensor

import fewfold as ff
from fewfold.maps.native_threshold import alpha_slope, pull
from tests.fuzz.compare import close, native, plain, same
from tests.fuzz.values import DTYPES, count, length, normal, pick, rows_of, score_rows, threads

ALPHAS = (1.1, 1.2, 1.25, 1.3, 1.5, 1.75, 1.99, 2.0)


def allowed(scores: Tensor, expected: Tensor) -> Tensor:
    """The rounding of the dtype, and a millionth of what single precision carries through a row."""
    rounding = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(scores.dtype, 0.0)
    exact = 1e-9 if scores.dtype == torch.float64 else 2e-6
    return exact + 1.01 * rounding * expected.abs()


def inputs(rng: np.random.Generator, most: int = 70_000) -> Tensor:
    """A matrix of scores of a random shape, dtype and layout."""
    threads(rng)
    n = length(rng, most)
    return rows_of(rng, score_rows(rng, n, count(rng, n), pick(rng, DTYPES)))


def probabilities(rng: np.random.Generator) -> int:
    """Entmax and normmax, one alpha for all rows."""
    scores, alpha = inputs(rng), pick(rng, (*ALPHAS, rng.uniform(1.1, 2.0)))
    function = pick(rng, (ff.entmax, ff.normmax))
    expected = plain(function, scores, alpha)
    close(native(function, scores, alpha), expected, allowed(scores, expected))
    return len(scores)


def spikes(rng: np.random.Generator) -> int:
    """A few entries that matter, the largest at each of many successive places: every lane."""
    threads(rng)
    n = max(length(rng), 3)
    rows = min(n - 2, int(pick(rng, (20, 72, 130))), max(4, 2_000_000 // n))
    alpha, norm = pick(rng, (2.0, 2.0, 1.5, 1.25)), bool(rng.random() < 0.3)
    reach = 1.0 if norm else 1 / (alpha - 1)  # how far below the largest one an entry may be
    dtype = pick(rng, (torch.float32, torch.float64))
    first = 0 if rng.random() < 0.5 else int(rng.integers(n))
    top = (first + torch.arange(rows)) % n
    others = (top[:, None] + torch.from_numpy(rng.integers(1, n, (rows, 3)))) % n
    lead = -reach * torch.from_numpy(rng.random((rows, 3))) ** float(pick(rng, (1.0, 0.2, 3.0)))
    scores = torch.full((rows, n), -50.0 * reach, dtype=dtype)
    scores.scatter_(1, others, lead.to(dtype)).scatter_(1, top[:, None], 0.0)
    places = scores.topk(min(4, n)).indices.sort(-1).values
    function = ff.normmax if norm else ff.entmax
    few = plain(function, scores.gather(1, places), alpha)
    expected = torch.zeros(rows, n, dtype=torch.float64).scatter_(1, places, few)
    close(native(function, scores, alpha), expected, allowed(scores, expected))
    return rows


def own_alpha(rng: np.random.Generator) -> int:
    """An alpha for each row, learned: probabilities and both gradients."""
    scores = inputs(rng, 5_000)
    alpha = torch.from_numpy(rng.uniform(1.25, 2.0, (len(scores), 1)))
    alpha[rng.random(len(scores)) < 0.3] = pick(rng, (1.5, 2.0))
    function = pick(rng, (ff.entmax, ff.normmax))
    norm = function is ff.normmax
    expected = plain(function, scores, alpha)
    leaf = scores.detach().clone().requires_grad_()
    order = alpha.to(torch.promote_types(scores.dtype, torch.float32)).requires_grad_()
    probs = native(function, leaf, order)
    close(probs, plain(function, scores, order), allowed(scores, expected))
    if scores.dtype != torch.float64:
        return len(scores)
    grad = normal(rng, *scores.shape)
    to_scores, to_alpha = torch.autograd.grad(probs, (leaf, order), grad)
    given = probs.detach(), grad, order.detach()
    finite = ~scores.isposinf().any(-1, keepdim=True)
    close(to_scores, pull(*given, norm) * finite, 1e-8, "gradient of scores", 1e-8)
    slope = (grad * alpha_slope(given[0], given[2], norm)).sum(-1, keepdim=True)
    close(to_alpha, slope, 1e-6, "gradient of alpha", 1e-6)
    return len(scores)


def gradients(rng: np.random.Generator) -> int:
    """The gradient that a kernel makes of its own probabilities against the formula."""
    scores = inputs(rng).float() if rng.random() < 0.5 else inputs(rng).double()
    alpha, norm = pick(rng, ALPHAS), bool(rng.random() < 0.4)
    leaf = scores.detach().clone().requires_grad_()
    probs = native(ff.normmax if norm else ff.entmax, leaf, alpha)
    grad = normal(rng, *scores.shape, dtype=scores.dtype)
    (got,) = torch.autograd.grad(probs, leaf, grad)
    want = pull(probs.detach().double(), grad.double(), alpha, norm)
    scale = 1 + want.abs().amax(-1, keepdim=True).nan_to_num(0.0)
    close(got, want, (1e-9 if scores.dtype == torch.float64 else 2e-5) * scale, "gradient")
    return len(scores)


def supports(rng: np.random.Generator) -> int:
    """The support, written out, is the row of probabilities."""
    scores, alpha = inputs(rng), pick(rng, ALPHAS)
    omega = pick(rng, (ff.Tsallis, ff.Norm))(alpha)
    found = native(ff.map_support, scores, omega)
    if found.weights.numel() and not bool((found.weights > 0).all()):
        raise AssertionError("an atom of the support has no weight")
    expected = plain(omega.argmax, scores)
    close(found.to_dense(scores.shape[-1]), expected, allowed(scores, expected), "support")
    return len(scores)


def subsets(rng: np.random.Generator) -> int:
    """The k-subset map, one k or one for each row, with its gradient."""
    scores = inputs(rng).nan_to_num(neginf=-30.0)
    n = scores.shape[-1]
    k: float | Tensor = float(pick(rng, (1, 2, 0.5, n / 3, n, n - 0.5, rng.uniform(0, n))))
    k = min(max(k, 0.0), float(n))
    if rng.random() < 0.3:
        k = torch.from_numpy(rng.uniform(0, n, (len(scores), 1))).to(
            torch.promote_types(scores.dtype, torch.float32)
        )
    expected = plain(ff.ksubset, scores, k)
    leaf = scores.detach().clone().requires_grad_()
    probs = native(ff.ksubset, leaf, k)
    coarse = 1e-7 * scores.double().abs().amax(-1, keepdim=True).clamp(max=1e3)
    coarse = coarse if scores.dtype != torch.float64 else 1e-16 * coarse
    close(probs, expected, allowed(scores, expected) + coarse)
    if scores.dtype not in (torch.float32, torch.float64):
        return len(scores)  # rounded, a free entry may look as if it were at a bound
    grad = normal(rng, *scores.shape, dtype=scores.dtype)
    (got,) = torch.autograd.grad(probs, leaf, grad)
    free = ((probs > 0) & (probs < 1)).detach().double()
    mean = (free * grad.double()).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    tolerance = 1e-9 if scores.dtype == torch.float64 else 2e-5
    close(got, free * (grad.double() - mean), tolerance, "gradient", tolerance)
    return len(scores)


def grouped(rng: np.random.Generator) -> int:
    """Fusedmax and oscarmax."""
    scores = inputs(rng, 600)
    function = pick(rng, (ff.fusedmax, ff.oscarmax))
    strength = float(pick(rng, (0.0, 1e-3, 0.1, 1.0, 30.0)))
    finite = scores.nan_to_num(neginf=-5.0).clamp(-1e4, 1e4)
    expected = plain(function, finite, strength)
    coarse = {torch.float64: 1e-9, torch.float32: 4e-7}.get(scores.dtype, 4e-7)
    size = finite.double().abs().amax(-1, keepdim=True)
    close(
        native(function, finite, strength),
        expected,
        allowed(scores, expected) + coarse * size,
    )
    return len(scores)


def same_for_any_number_of_threads(rng: np.random.Generator) -> int:
    """Rows do not depend on who else is in the batch, nor on the number of threads."""
    scores, alpha = inputs(rng).float(), pick(rng, ALPHAS)
    whole = native(ff.entmax, scores, alpha)
    torch.set_num_threads(1)
    one = int(rng.integers(len(scores)))
    expected = native(ff.entmax, scores[one : one + 1].clone(), alpha)
    close(whole[one : one + 1], expected, 1e-6, "row alone")
    again = native(ff.entmax, scores, alpha)
    same(native(ff.entmax, scores, alpha), again, "the same call twice")
    return len(scores)


TRIALS = {
    "probabilities": probabilities,
    "spikes": spikes,
    "own_alpha": own_alpha,
    "gradients": gradients,
    "supports": supports,
    "subsets": subsets,
    "grouped": grouped,
    "same_for_any_number_of_threads": same_for_any_number_of_threads,
}
