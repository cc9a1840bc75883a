"""Every torch transform as a check that a map must pass.

The tests run these checks; ``python -m tests.maps.transforms docs/transforms_table.md`` runs them
too and writes the table of the documentation from what passed.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.transforms import Table, close, onnx_session

from .cases import CASES, Case, random_scores, smooth_scores


class Layer(torch.nn.Module):
    """A map with its parameters fixed, as a user would put it into a model."""

    def __init__(self, case: Case, n: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.function, self.numbers = case.function, dict(case.parameters)
        self.upper = torch.nn.Buffer(case.upper(n).to(dtype)) if case.bounded else None
        self.alpha = None
        if case.learnt:
            self.alpha = torch.nn.Parameter(torch.tensor(self.numbers.pop("alpha"), dtype=dtype))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.upper is not None:
            return self.function(scores, self.upper[: scores.shape[-1]], mask=mask, **self.numbers)
        if self.alpha is not None:
            return self.function(scores, alpha=self.alpha, mask=mask, **self.numbers)
        return self.function(scores, mask=mask, **self.numbers)


def weights(scores: Tensor) -> Tensor:
    return random_scores(*scores.shape, seed=11).to(scores.dtype)


def slope(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((function(leaf) * weights(leaf)).sum(), leaf)
    return gradient


def expected_jacobian(case: Case, row: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of the twin, [i, j] = d p_i / d z_j."""
    nudges = step * torch.eye(len(row), dtype=row.dtype)
    return ((case.expected(row + nudges) - case.expected(row - nudges)) / (2 * step)).mT


def expected_slope(case: Case, scores: Tensor) -> Tensor:
    rows = zip(scores, weights(scores), strict=True)
    return torch.stack([w @ expected_jacobian(case, z) for z, w in rows])


def expected_hessian(case: Case, row: Tensor, weight: Tensor, step: float = 1e-3) -> Tensor:
    """Fourth-order differences of the twin's weighted sum; smooth rows allow the wide step."""

    def first(at: Tensor) -> Tensor:
        return weight @ expected_jacobian(case, at)

    columns = []
    for nudge in step * torch.eye(len(row), dtype=row.dtype):
        near = first(row + nudge / 2) - first(row - nudge / 2)
        far = first(row + nudge) - first(row - nudge)
        columns.append((8 * near - far) / (6 * step))
    return torch.stack(columns, -1)


# The checks, in the order of the table -----------------------------------------------------------


def backward(case: Case) -> None:
    scores = smooth_scores(case)
    close(slope(case, scores), expected_slope(case, scores))


def double_backward(case: Case) -> None:
    scores = smooth_scores(case).clone().requires_grad_()
    (first,) = torch.autograd.grad(
        (case(scores) * weights(scores)).sum(), scores, create_graph=True
    )
    direction = random_scores(*scores.shape, seed=12)
    # A piecewise linear map has a constant Jacobian, and no graph leads from it to the scores.
    (second,) = torch.autograd.grad((first * direction + 0 * scores).sum(), scores)
    rows = zip(scores.detach(), weights(scores), direction, strict=True)
    close(second, torch.stack([expected_hessian(case, z, w) @ d for z, w, d in rows]), 1e-4)


def gradcheck(case: Case) -> None:
    scores = smooth_scores(case).clone().requires_grad_()
    assert torch.autograd.gradcheck(case, scores, check_batched_grad=True)


def gradgradcheck(case: Case) -> None:
    scores = smooth_scores(case).clone().requires_grad_()
    assert torch.autograd.gradgradcheck(case, scores, fast_mode=True)


def forward_mode(case: Case) -> None:
    scores = smooth_scores(case)
    tangent = weights(scores)
    with forward_ad.dual_level():
        answer = case(forward_ad.make_dual(scores, tangent))
        moved = forward_ad.unpack_dual(answer).tangent
    rows = zip(scores, tangent, strict=True)
    close(moved, torch.stack([expected_jacobian(case, z) @ t for z, t in rows]))
    close(torch.func.jvp(case, (scores,), (tangent,))[1], moved)


def func_grad(case: Case) -> None:
    scores = smooth_scores(case)
    got = torch.func.grad(lambda s: (case(s) * weights(scores)).sum())(scores)
    close(got, expected_slope(case, scores))


def func_vmap(case: Case) -> None:
    scores = random_scores(4, 3, 6)
    want = case(scores)
    close(torch.vmap(case)(scores), want, 1e-9)
    close(torch.vmap(torch.vmap(case))(scores), want, 1e-9)
    close(torch.vmap(case, in_dims=1, out_dims=1)(scores), want, 1e-9)
    mask = random_scores(4, 3, 6, seed=3) > -0.5
    mask[..., :3] = True
    masked = torch.vmap(lambda s, m: case(s, mask=m))(scores, mask)
    close(masked, case(scores, mask=mask), 1e-9)
    weight = random_scores(6, seed=4)
    per_row = torch.vmap(torch.vmap(torch.func.grad(lambda s: case(s) @ weight)))(scores)
    leaf = scores.clone().requires_grad_()
    close(per_row, torch.autograd.grad((case(leaf) @ weight).sum(), leaf)[0], 1e-9)


def func_jacrev(case: Case) -> None:
    scores = smooth_scores(case)
    for row in scores:
        close(torch.func.jacrev(case)(row), expected_jacobian(case, row))
    batched = torch.vmap(torch.func.jacrev(case))(scores)
    close(batched, torch.stack([expected_jacobian(case, row) for row in scores]))


def func_jacfwd(case: Case) -> None:
    scores = smooth_scores(case)
    for row in scores:
        close(torch.func.jacfwd(case)(row), expected_jacobian(case, row))
    batched = torch.vmap(torch.func.jacfwd(case))(scores)
    close(batched, torch.stack([expected_jacobian(case, row) for row in scores]))


def func_hessian(case: Case) -> None:
    for row in smooth_scores(case, rows=2):
        weight = weights(row)
        got = torch.func.hessian(lambda s, w=weight: case(s) @ w)(row)
        close(got, expected_hessian(case, row, weight), 1e-4)
        twice = torch.func.jacrev(torch.func.jacrev(lambda s, w=weight: case(s) @ w))(row)
        close(twice, got, 1e-8)


def compiled(case: Case, backend: str = "inductor") -> None:
    torch._dynamo.reset()
    layer = Layer(case, 6)
    fast = torch.compile(layer, fullgraph=True, dynamic=False, backend=backend)
    scores = random_scores(4, 6, dtype=torch.float32)
    close(slope(fast, scores), slope(layer, scores), 1e-5)
    odd = holes(scores).requires_grad_()  # as above, or it would be compiled once more
    close(fast(odd), layer(odd))


def compiled_dynamic(case: Case, backend: str = "aot_eager") -> None:
    torch._dynamo.reset()
    layer = Layer(case, 40)
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for rows, n in ((4, 6), (7, 9), (2, 40)):
        scores = random_scores(rows, n, seed=n, dtype=torch.float32)
        close(slope(fast, scores), slope(layer, scores), 1e-5)


@functools.lru_cache(maxsize=1)
def program(case: Case) -> torch.export.ExportedProgram:
    """For any number of rows; tracing takes longest, so that the next check finds it here."""
    layer = Layer(case, 6).eval()
    return torch.export.export(layer, (random_scores(4, 6).float(),), dynamic_shapes=BATCH)


def exported(case: Case) -> None:
    layer = Layer(case, 6)
    module = program(case).module()
    for rows in (4, 7):
        scores = holes(random_scores(rows, 6, seed=rows).float())
        close(module(scores), layer(scores))


def onnx(case: Case) -> None:
    layer = Layer(case, 6)
    run = onnx_session(program(case))
    for rows in (4, 7):
        scores = holes(random_scores(rows, 6, seed=rows).float())
        close(run(scores), layer(scores))


def autocast(case: Case) -> None:
    scores = random_scores(4, 6, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            got, moved = case(scores), slope(case, scores)
            projected = case(scores @ torch.eye(6))  # the product comes in half precision
        assert got.dtype == torch.float32
        close(got, case(scores))
        close(moved, slope(case, scores), 1e-5)
        assert projected.dtype == dtype
        close(
            projected.double(),
            case.expected(scores.to(dtype)),
            2e-3 if dtype == torch.float16 else 1e-2,
        )


def half(case: Case) -> None:
    for dtype, rounding in ((torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        scores = random_scores(4, 6).to(dtype)
        assert case(scores).dtype == dtype
        close(case(scores).double(), case.expected(scores), 1.01 * rounding)
        assert slope(case, scores).isfinite().all()


BATCH = ({0: torch.export.Dim("rows")},)


def holes(scores: Tensor) -> Tensor:
    """Scores with a dropped entry, a tie, an infinite entry, and a row with nothing left."""
    scores = scores.clone()
    scores[0, 1] = -torch.inf
    scores[1] = 0.25
    scores[2] = -torch.inf
    scores[3, 2] = torch.inf
    return scores


EAGER: dict[str, Callable[[Case], None]] = {
    "backward": backward,
    "double backward": double_backward,
    "gradcheck": gradcheck,
    "gradgradcheck": gradgradcheck,
    "autocast": autocast,
    "fp16, bf16": half,
}
"""These run on both paths."""

FUNCTIONAL: dict[str, Callable[[Case], None]] = {
    "forward mode": forward_mode,
    "func.grad": func_grad,
    "vmap": func_vmap,
    "jacrev": func_jacrev,
    "jacfwd": func_jacfwd,
    "hessian": func_hessian,
}

TRACED: dict[str, Callable[[Case], None]] = {
    "compile": compiled,
    "compile, dynamic": compiled_dynamic,
    "export": exported,
    "ONNX": onnx,
}

CHECKS = EAGER | FUNCTIONAL | TRACED


TABLE = Table("map", [case for case in CASES if case.wide], CHECKS)

if __name__ == "__main__":
    TABLE.main()
