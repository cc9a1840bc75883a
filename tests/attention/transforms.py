"""Every torch transform as a check that attention and memories must pass.

The tests run these checks; ``python -m tests.attention.transforms docs/transforms_attention.md``
runs them too and writes the table of the documentation from what passed.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import fewfold as ff

D = torch.float64
Function = Callable[[Tensor], Tensor]


class Attend(nn.Module):
    """Queries, keys and values made of one input, as in a model."""

    def __init__(self, omega: ff.Omega) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, data: Tensor) -> Tensor:
        query, key, value = data, data.flip(-1) + 0.3 * data, data.roll(1, -2)
        return ff.sparse_attention(query, key, value, self.omega, scale=1.0)


class Step(nn.Module):
    """One step of a memory, or some, from what is given towards its own second half."""

    def __init__(self, energy: ff.Energy, what: str) -> None:
        super().__init__()
        self.energy, self.what = energy, what

    def forward(self, data: Tensor) -> Tensor:
        query, memory = data[..., :2, :], data[..., 2:, :]
        if self.what == "value":
            return self.energy.value(query, memory)
        if self.what == "retrieve":
            return ff.hopfield_retrieve(query, memory, self.energy, max_steps=2).state
        return self.energy.step(query, memory)


@dataclass(frozen=True)
class Case:
    """A row of the table: a module of one input (..., 6, 4)."""

    name: str
    build: Callable[[], nn.Module]
    wide: bool = False  # whether tests compile it, as one of its kind

    def module(self, dtype: torch.dtype = D) -> nn.Module:
        torch.manual_seed(0)
        return self.build().to(dtype).eval()


def _energy(omega: ff.Omega) -> ff.FenchelYoung:
    return ff.FenchelYoung(omega, 0.7)


CASES = [
    Case("sparse_attention", lambda: Attend(ff.Tsallis(1.5)), wide=True),
    Case("sparse_attention, sparsemax", lambda: Attend(ff.Gini())),
    Case("sparse_attention, k-subset", lambda: Attend(ff.Subset(2))),
    Case("sparse_attention, SparseMAP", lambda: Attend(ff.SparseMAP(ff.structures.KSubset(2)))),
    Case("MultiheadAttention", lambda: ff.MultiheadAttention(4, heads=2)),
    Case("FenchelYoung.step", lambda: Step(_energy(ff.Tsallis(1.5)), "step")),
    Case("FenchelYoung.value", lambda: Step(_energy(ff.Gini()), "value")),
    Case("hopfield_retrieve", lambda: Step(_energy(ff.Tsallis(1.5)), "retrieve")),
    Case("Hopfield", lambda: ff.Hopfield(4, beta=1.0, heads=2, steps=2)),
    Case("HopfieldPooling", lambda: ff.HopfieldPooling(4, ff.Norm(2.0), beta=1.0), wide=True),
    Case("HopfieldLayer", lambda: ff.HopfieldLayer(4, beta=1.0, patterns=5)),
]

LIMITS: dict[tuple[str, str], str] = {
    ("sparse_attention, SparseMAP", "ONNX"): "structures are found by an operator that ONNX has not"
}
"""(function, transform) that cannot work, and why. Its test must then fail; the table says so."""


def data(*batch: int, dtype: torch.dtype = D, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, 6, 4, generator=g, dtype=D).to(dtype)


def total(function: Function, given: Tensor) -> Tensor:
    """A number with a gradient that is nowhere the same."""
    out = function(given)
    waves = torch.cos(1.7 * torch.arange(out.numel(), dtype=D) + 0.3)  # vmap draws no numbers
    return (out * waves.view(out.shape).to(out)).sum()


def slope(function: Function, given: Tensor) -> Tensor:
    leaf = given.detach().clone().requires_grad_()
    return torch.autograd.grad(total(function, leaf), leaf)[0]


def nudged(function: Function, given: Tensor, direction: Tensor, step: float = 1e-5) -> Tensor:
    """The derivative in a direction, by central differences."""
    with torch.no_grad():
        return (function(given + step * direction) - function(given - step * direction)) / (
            2 * step
        )


def close(got: Tensor, want: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), atol=tolerance, rtol=tolerance)


# The checks, in the order of the table -----------------------------------------------------------


def backward(case: Case) -> None:
    module, given, direction = case.module(), data(3), data(3, seed=2)
    want = nudged(lambda x: total(module, x), given, direction)
    close((slope(module, given) * direction).sum(), want)


def double_backward(case: Case) -> None:
    module, given, direction = case.module(), data(2).requires_grad_(), data(2, seed=2)
    (first,) = torch.autograd.grad(total(module, given), given, create_graph=True)
    # what is linear in places has a constant gradient there, and no graph behind it
    (second,) = torch.autograd.grad((first * direction + 0 * given).sum(), given)
    close(second, nudged(lambda x: slope_graph(module, x), given.detach(), direction), 1e-4)


def slope_graph(module: Function, given: Tensor) -> Tensor:
    with torch.enable_grad():
        return slope(module, given)


def gradcheck(case: Case) -> None:
    assert torch.autograd.gradcheck(
        case.module(), data(1).requires_grad_(), check_batched_grad=True
    )


def gradgradcheck(case: Case) -> None:
    assert torch.autograd.gradgradcheck(case.module(), data(1).requires_grad_())


def autocast(case: Case) -> None:
    module, given = case.module(torch.float32), data(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, moved = module(given), slope(lambda x: module(x).float(), given)
    assert out.isfinite().all()
    assert moved.dtype == torch.float32
    close(out.double(), module(given).double(), 0.15)


def half(case: Case) -> None:
    for dtype, rounding in ((torch.float16, 0.02), (torch.bfloat16, 0.15)):
        module, given = case.module(dtype), data(3).to(dtype)
        assert module(given).dtype == dtype
        close(module(given).double(), module.double()(given.double()), rounding)
        assert slope(case.module(dtype), given).isfinite().all()


def forward_mode(case: Case) -> None:
    module, given, tangent = case.module(), data(3), data(3, seed=2)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(module(forward_ad.make_dual(given, tangent))).tangent
    close(moved, nudged(module, given, tangent))
    close(torch.func.jvp(module, (given,), (tangent,))[1], moved)


def func_grad(case: Case) -> None:
    module, given = case.module(), data(3)
    close(torch.func.grad(lambda x: total(module, x))(given), slope(module, given))


def func_vmap(case: Case) -> None:
    module, given = case.module(), data(3, 2)
    close(torch.vmap(module)(given), module(given), 1e-9)
    close(torch.vmap(module, in_dims=1, out_dims=1)(given), module(given), 1e-9)
    one = torch.vmap(torch.func.grad(lambda x: total(module, x)))(given)
    close(one, torch.stack([slope(module, x) for x in given]), 1e-9)


def func_jacobians(case: Case) -> None:
    module, given = case.module(), data()
    reverse, forward = (f(module)(given) for f in (torch.func.jacrev, torch.func.jacfwd))
    close(reverse, forward, 1e-8)
    eye = torch.eye(given.numel(), dtype=D).view(-1, *given.shape)
    want = torch.stack([nudged(module, given, direction) for direction in eye], -1)
    close(reverse.flatten(-2), want)


def func_hessian(case: Case) -> None:
    module, given, direction = case.module(), data(), data(seed=2)
    found = torch.func.hessian(lambda x: total(module, x))(given)
    want = nudged(lambda x: slope_graph(module, x), given, direction)
    close((found * direction).sum((-1, -2)), want, 1e-4)


def compiled(case: Case, backend: str = "inductor") -> None:
    torch._dynamo.reset()
    module = case.module(torch.float32)
    fast = torch.compile(module, fullgraph=True, dynamic=False, backend=backend)
    given = data(3, dtype=torch.float32)
    close(slope(fast, given), slope(module, given), 1e-4)
    close(fast(given), module(given), 1e-5)


def compiled_dynamic(case: Case) -> None:
    torch._dynamo.reset()
    module = case.module(torch.float32)
    fast = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5, 2):
        given = data(rows, dtype=torch.float32, seed=rows)
        close(slope(fast, given), slope(module, given), 1e-4)


def program(case: Case) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("rows")},)
    given = data(3, dtype=torch.float32)
    return torch.export.export(case.module(torch.float32), (given,), dynamic_shapes=shapes)


def exported(case: Case) -> None:
    module, made = case.module(torch.float32), program(case).module()
    for rows in (3, 5):
        given = data(rows, dtype=torch.float32, seed=rows)
        close(made(given), module(given), 1e-5)


def onnx(case: Case) -> None:
    module = case.module(torch.float32)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # the exporter and its libraries warn about themselves
        path = Path(folder) / "attention.onnx"
        torch.onnx.export(program(case), (), path, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = onnxruntime.InferenceSession(path, options)
        name = session.get_inputs()[0].name
        for rows in (3, 5):
            given = data(rows, dtype=torch.float32, seed=rows)
            (got,) = session.run(None, {name: given.numpy()})
            close(torch.from_numpy(got), module(given), 1e-5)


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
    "jacrev, jacfwd": func_jacobians,
    "hessian": func_hessian,
}

TRACED: dict[str, Callable[[Case], None]] = {
    "compile": compiled,
    "compile, dynamic": compiled_dynamic,
    "export": exported,
    "ONNX": onnx,
}

CHECKS = EAGER | FUNCTIONAL | TRACED


def table(passed: Callable[[Case, str], bool]) -> str:
    """The page of the documentation: one row per function, one column per transform."""
    lines = ["| function | " + " | ".join(CHECKS) + " |", "|" + "---|" * (len(CHECKS) + 1)]
    notes: list[str] = []
    for case in CASES:
        cells = []
        for name in CHECKS:
            if passed(case, name):
                cells.append("yes")
            else:
                notes.append(f"{case.name}, {name}: {LIMITS.get((case.name, name), 'fails')}.")
                cells.append(f"no ({len(notes)})")
        lines.append(f"| `{case.name}` | " + " | ".join(cells) + " |")
    lines += ["", *(f"{i}. {note}" for i, note in enumerate(notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def promised() -> str:
    """The table when every check passes except the known limits."""
    return table(lambda case, name: (case.name, name) not in LIMITS)


def measured() -> str:
    """The table from running every check now."""

    def passed(case: Case, name: str) -> bool:
        try:
            CHECKS[name](case)
        except Exception as error:
            print(f"{case.name}, {name}: {error}", file=sys.stderr)
            return False
        return True

    return table(passed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = measured()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text, end="")
