"""Expanded scores and transitions (a stride of 0) give the results of their copies."""

import math

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.structured.structures.structure import Structure

pytestmark = pytest.mark.usefixtures("path")
SHAPES = [(1, 1), (5, 1), (6, 4), (2, 17)]
# What is stored of (batch, n, S) scores and (batch, n - 1, S, S) transitions: 1, or 0 for all.
REPEATED = {
    "last": ((0, 0, 1), (0, 0, 0, 1)),
    "inner": ((0, 1, 0), (0, 0, 1, 0)),
    "positions": ((0, 1, 1), (0, 1, 0, 0)),
    "batch": ((1, 0, 0), (1, 1, 0, 0)),
    "everything": ((1, 1, 1), (1, 1, 1, 1)),
}
KINDS = ["normal", "equal", "infinite", "nan"]


def repeated(shape: tuple[int, ...], memory: tuple[int, ...], kind: str, seed: int) -> Tensor:
    """A tensor of this shape with a stride of 0 in each dimension of which 1 is stored."""
    generator = torch.Generator().manual_seed(seed)
    own = [small or size for size, small in zip(shape, memory, strict=True)]
    x = torch.randn(own, dtype=torch.float64, generator=generator)
    if kind == "equal":
        x.fill_(0.25)
    elif kind != "normal":
        odd = -math.inf if kind == "infinite" else math.nan
        x[torch.rand(own, generator=generator) < 0.2] = odd
    strides = [0 if small else step for small, step in zip(memory, x.stride(), strict=True)]
    return torch.as_strided(x, shape, strides)


def copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def answers(scores: Tensor, given: Tensor, tables: bool) -> list[Tensor | str]:
    """Marginals, support and their gradients; the message where there is no structure."""

    def made(given: Tensor) -> Structure:
        if tables:
            return ff.structures.Sequence(given, by_position=True)
        return ff.structures.SequentialSubset(min(3, scores.shape[-1]), given)

    found: list[Tensor | str] = []
    for function in (ff.sparsemap, ff.sparsemap_support):
        try:
            leaves = scores.detach().requires_grad_(), given.detach().requires_grad_()
            answer = function(leaves[0], made(leaves[1]))
        except ValueError as error:
            found.append(str(error))
            continue
        value = answer if isinstance(answer, Tensor) else answer.weights
        found += [value.detach()] if value is answer else [answer.atoms, answer.row]
        pull = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
        found += torch.autograd.grad(value, leaves, pull, materialize_grads=True)
    return found


@pytest.mark.parametrize("which", REPEATED)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_contiguous_copy(which: str, kind: str) -> None:
    # Strides do not depend on values, so that odd values need one shape.
    for n, states in SHAPES if kind == "normal" else SHAPES[2:3]:
        for_scores, for_tables = REPEATED[which]
        scores = repeated((2, n, states), for_scores, kind, 0)
        tables = repeated((2, max(n - 1, 1), states, states), for_tables, "normal", 1)
        bonus = repeated((2, states - 1), for_scores[1:], "normal", 2)
        for x, given in ((scores, tables), (scores[:, 0], bonus)):
            ours = answers(x, given, given is tables)
            theirs = answers(copied(x), copied(given), given is tables)
            for one, other in zip(ours, theirs, strict=True):
                if isinstance(one, str):
                    assert one == other
                else:
                    torch.testing.assert_close(one, other, equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(28, 5), (12, 4), (1, 9), (9, 1)])
def test_the_derivative_at_equal_scores_is_that_of_each_position(shape: tuple[int, int]) -> None:
    """Without transitions positions are rows of sparsemax, whose Jacobian there centres."""
    scores = torch.zeros((), dtype=torch.float64).expand(shape).requires_grad_()
    pull = torch.linspace(-1, 2, scores.numel(), dtype=torch.float64).view(shape).square()
    solution = ff.structured.sparsemap_solution(scores, ff.structures.Sequence())
    marginals = solution.marginals
    # As many structures as the face has dimensions, and one: none of them is a mix of others.
    assert len(solution.problem.active.weights) == shape[0] * (shape[1] - 1) + 1
    torch.testing.assert_close(marginals, torch.full_like(marginals, 1 / shape[1]))
    (found,) = torch.autograd.grad(marginals, scores, pull)
    torch.testing.assert_close(found, pull - pull.mean(1, keepdim=True), atol=1e-9, rtol=0)
